#include "lab/grade_tree.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lab/failure_text.h"
#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/sha256.h"
#include "lab/variants.h"

namespace lab {
namespace {

namespace fs = std::filesystem;

// What a template can eat before the compiler is ended.
Limits compile_limits() {
  Limits limits;
  limits.wall = std::chrono::seconds(300);
  limits.cpu = std::chrono::seconds(240);
  limits.memory = int64_t{4} << 30;
  limits.file = int64_t{1} << 30;
  limits.scratch = int64_t{512} << 20;
  limits.processes = 128;
  limits.open_files = 1024;
  return limits;
}

// What the checkout holds: what git tracks or would, or all but builds where there is no git.
std::vector<std::string> files_of(const fs::path& root) {
  std::vector<std::string> files;
  const Outcome listed = run({"git", "-C", root.string(), "ls-files", "-co", "--exclude-standard", "-z"});
  if (listed.ok() && !listed.output.empty()) {
    std::istringstream names(listed.output);
    for (std::string name; std::getline(names, name, '\0');)
      if (fs::is_regular_file(root / name)) files.push_back(name);
    return files;
  }
  for (auto at = fs::recursive_directory_iterator(root); at != fs::recursive_directory_iterator(); ++at) {
    const std::string name = fs::relative(at->path(), root).string();
    if (name == "build" || name == ".lab" || name == ".git")
      at.disable_recursion_pending();
    else if (at->is_regular_file())
      files.push_back(name);
  }
  return files;
}

}  // namespace

GradeTree::GradeTree(const Tree& instructors, const std::string& salt, Sandbox sandbox)
    : sandbox_(sandbox), folder_(instructors.root() / ".lab" / "grade") {
  ::umask(022);  // the tests run as another user, who must be able to read them
  fs::create_directories(folder_);
  lock_ = ::open((folder_ / ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) != 0)
    throw LabError("another `lab grade` works in " + folder_.string());
  copy(instructors, salt);
  tree_.emplace(root());
}

GradeTree::~GradeTree() {
  ::close(lock_);
}

void GradeTree::copy(const Tree& instructors, const std::string& salt) {
  std::map<std::string, std::vector<const Task*>> tasks_of;
  for (const Task& task : instructors.course().tasks)
    for (const std::string& path : task.regions) tasks_of[path].push_back(&task);
  // Made beside it, so that a file which the variants change is written, and built, only where it is another than before.
  const fs::path made = folder_ / "new";
  fs::remove_all(made);
  const std::vector<std::string> files = files_of(instructors.root());
  for (const std::string& name : files) {
    std::string text = read_file(instructors.root() / name);
    if (const auto of = tasks_of.find(name); of != tasks_of.end()) {
      std::map<std::string, NewText> references;
      for (const Task* task : of->second)
        if (!instructors.is_reference(*task, name))
          references[task->id] = {instructors.reference(*task, name), ""};
      text = with_regions(text, references);
    }
    fs::create_directories((made / name).parent_path());
    std::ofstream(made / name, std::ios::binary) << text;
  }
  if (!salt.empty()) apply_variants(made, draw_variants(read_variants(made), salt));
  std::string all;
  for (const std::string& name : files) {
    const std::string text = read_file(made / name);
    write_if_changed(root() / name, text);
    if (tasks_of.contains(name)) pristine_[name] = text;
    hashes_[name] = sha256(text);
    all += name + " " + hashes_[name] + "\n";
  }
  fs::remove_all(made);
  hash_ = sha256(all);
  std::vector<fs::path> gone;
  for (auto at = fs::recursive_directory_iterator(root()); at != fs::recursive_directory_iterator(); ++at) {
    const std::string name = fs::relative(at->path(), root()).string();
    if (name == "build")
      at.disable_recursion_pending();
    else if (!at->is_directory() && !hashes_.contains(name))
      gone.push_back(at->path());
  }
  for (const fs::path& path : gone) fs::remove(path);
}

void GradeTree::restore() {
  for (const auto& [path, text] : pristine_) write_if_changed(root() / path, text);
  for (const auto& [path, hash] : hashes_)
    if (sha256(read_file(root() / path)) != hash)
      throw LabError((root() / path).string() + " is not what was copied: delete " + root().string());
}

void GradeTree::put(const Task& task, const std::map<std::string, std::string>& texts) {
  restore();
  for (const auto& [path, text] : texts) {
    std::string region = text;
    if (!region.empty() && region.back() != '\n') region += '\n';  // else it would swallow the closing marker
    write_file(root() / path, with_regions(pristine_.at(path), {{task.id, {region, ""}}}));
  }
}

fs::path GradeTree::build_folder(Build build) const {
  return root() / "build" / (build == Build::release ? "course" : build == Build::asan ? "asan" : "release");
}

fs::path GradeTree::binary(Build build, const std::string& target) const {
  return build_folder(build) / "tests" / target;
}

void GradeTree::configure(Build build) {
  const fs::path folder = build_folder(build);
  if (fs::exists(folder / "build.ninja")) return;
  std::vector<std::string> words = {"cmake", "-G", "Ninja", "-S", root().string(), "-B", folder.string(),
                                    build == Build::gpu ? "-DLADDER_CUDA=ON" : "-DLADDER_CUDA=OFF",
                                    "-DLADDER_BENCH=OFF",
                                    // else linking a test binary would run it, outside the sandbox
                                    "-DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST"};
  if (build != Build::asan)
    words.insert(words.end(), {"-DCMAKE_BUILD_TYPE=Release"});
  else
    words.insert(words.end(), {"-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1",
                               "-DLADDER_SANITIZE=address,undefined"});
  const Outcome done = run(words);
  if (!done.ok()) throw LabError("the course cannot be configured:\n" + done.output);
}

void GradeTree::build_reference(Build build, const std::vector<std::string>& targets) {
  configure(build);
  std::vector<std::string> words = {"ninja", "-C", build_folder(build).string()};
  words.insert(words.end(), targets.begin(), targets.end());
  const Outcome done = run(words);
  if (!done.ok()) throw LabError("the reference does not compile:\n" + done.output);
}

std::string GradeTree::build_hand_in(Build build, const std::vector<std::string>& targets) {
  std::vector<std::string> words = {"ninja", "-C", build_folder(build).string()};
  words.insert(words.end(), targets.begin(), targets.end());
  Folders folders;
  folders.readable = {root()};
  folders.writable = {build_folder(build)};
  folders.environment = {{"CCACHE_DISABLE", "1"}, {"LANG", "C"}};  // its folder is not in the sandbox
  const Confined done = run_confined(words, compile_limits(), folders, sandbox_);
  if (done.ok()) return "";
  if (!done.stopped.empty()) return "the compiler " + done.stopped;
  return done.output.empty() ? "the compiler could not be started" : done.output;
}

std::vector<fs::path> GradeTree::objects(Build build, const std::string& file) const {
  std::vector<fs::path> found;
  const fs::path folder = build_folder(build);
  const std::string wanted = (root() / file).string(), emulated = (folder / "emulated" / file).string();
  for (const auto& entry : nlohmann::json::parse(read_file(folder / "compile_commands.json")))
    if (entry.at("file") == wanted || entry.at("file") == emulated) {
      const std::string command = entry.at("command");
      const size_t begin = command.find(" -o ") + 4;
      found.push_back(folder / command.substr(begin, command.find(' ', begin) - begin));
    }
  return found;
}

}  // namespace lab
