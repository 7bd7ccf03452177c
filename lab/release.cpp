#include "lab/release.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/process.h"
#include "lab/release_files.h"
#include "lab/salt.h"
#include "lab/seal.h"
#include "lab/unlock.h"
#include "lab/variants.h"

namespace lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kShortestSalt = 16;

std::string git(const fs::path& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"git", "-C", folder.string()});
  const Outcome done = run(arguments);
  if (!done.ok())
    throw LabError("git " + arguments[3] + ": " + done.output.substr(0, done.output.find('\n')));
  return done.output.substr(0, done.output.find_last_not_of("\n") + 1);
}

// What is made beside its place, and gets there whole or not at all.
class NewFolder {
 public:
  explicit NewFolder(fs::path target)
      : target_(std::move(target)), path_(target_.string() + ".lab-" + std::to_string(::getpid())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~NewFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const fs::path& path() const { return path_; }
  void finish() const { fs::rename(path_, target_); }

 private:
  fs::path target_, path_;
};

fs::path beside(const fs::path& out) {
  return out.string() + "-instructor";
}

bool is_within(const fs::path& path, const fs::path& folder) {
  const fs::path relative = fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(folder));
  return !relative.empty() && *relative.begin() != "..";
}

std::vector<std::string> labs_to_cut(const Course& course, const std::vector<std::string>& wanted) {
  std::vector<std::string> labs;
  std::string known;
  for (const Lab& lab : course.labs) {
    known += (known.empty() ? "" : ", ") + lab.id;
    if (wanted.empty() ? !lab.weeks.empty() : std::ranges::count(wanted, lab.id) > 0) labs.push_back(lab.id);
  }
  for (const std::string& id : wanted)
    if (std::ranges::count(labs, id) == 0) throw LabError("no lab '" + id + "': there are " + known);
  return labs;
}

void check(const Tree& tree, const ReleaseOptions& options) {
  if (options.course.empty() || options.course.find('\n') != std::string::npos)
    throw LabError("release: expected --course NAME, in one line");
  if (options.salt.size() < kShortestSalt)
    throw LabError("release: expected --salt S of " + std::to_string(kShortestSalt) +
                   " characters or more, since all keys follow from it; `openssl rand -hex 16` makes one");
  if (tree.release_info()) throw LabError("release: this checkout is a release itself");
  for (const fs::path& path : {options.out, beside(options.out)}) {
    if (fs::exists(fs::symlink_status(path)))
      throw LabError("release: " + path.string() + " is there already");
    if (is_within(path, tree.root()))
      throw LabError("release: " + path.string() +
                     " lies in this checkout; --out FOLDER names another place");
  }
  const Outcome top = run({"git", "-C", tree.root().string(), "rev-parse", "--show-toplevel"});
  if (!top.ok() ||
      fs::weakly_canonical(top.output.substr(0, top.output.find('\n'))) != fs::weakly_canonical(tree.root()))
    throw LabError("release: " + tree.root().string() + " is not the root of a git repository");
  const std::string changed = git(tree.root(), {"status", "--porcelain", "--untracked-files=no"});
  if (!changed.empty())
    throw LabError("release: " + changed.substr(0, changed.find('\n')).substr(3) +
                   " has changes that are not committed");
  for (const Task& task : tree.course().tasks)
    for (const std::string& path : task.regions)
      if (!tree.is_reference(task, path))
        throw LabError("release: what stands in the region of task " + task.id + " in " + path +
                       " is not the reference; a release is made of the project's own text");
}

// The seeded defects. Error: one of them has not its one place in this course's text.
json read_bugs(const fs::path& root) {
  const fs::path path = root / "lab" / "bugs.json";
  if (!fs::exists(path)) return json::array();
  const json bugs = json::parse(read_file(path), nullptr, false);
  if (!bugs.is_array()) throw LabError("lab/bugs.json is no JSON array");
  for (const json& bug : bugs) {
    const std::string text = read_file(root / bug.at("file").get<std::string>()), find = bug.at("find");
    const size_t at = text.find(find);
    if (at == std::string::npos || text.find(find, at + 1) != std::string::npos)
      throw LabError("lab/bugs.json: " + bug.at("id").get<std::string>() +
                     " stands not exactly once in its file; --salt with other variants, or --variants none");
  }
  return bugs;
}

// Stubs in the place of every region of these labs; what was there is what must be found nowhere.
RemovedLines cut_out(const Tree& tree, const std::vector<std::string>& labs) {
  RemovedLines removed;
  for (const Lab& lab : tree.course().labs) {
    if (std::ranges::count(labs, lab.id) == 0) continue;
    for (const std::string& id : lab.tasks) {
      const Task& task = tree.course().task(id);
      if (task.given) continue;
      for (const std::string& path : task.regions) {
        const std::string stub = tree.stub(task, path);
        removed.add(tree.region(task, path).text, stub);
        write_file(tree.root() / path, with_regions(read_file(tree.root() / path), {{id, {stub, ""}}}));
      }
    }
  }
  return removed;
}

// All that stands there, whatever the user's settings and hooks are.
void commit(const fs::path& folder, const ReleaseInfo& info) {
  git(folder, {"-c", "core.autocrlf=false", "-c", "core.excludesFile=/dev/null", "add", "-A", "-f"});
  git(folder, {"-c", "user.name=" + info.course, "-c", "user.email=course@example.invalid", "-c",
               "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null", "commit", "-q", "-m",
               info.course + ", release " + info.release});
}

// What hand-ins are graded in, and what Gradescope does it with: the project's tree with the course's variants, and the
// reference and the salt.
void write_instructors_folder(const Tree& tree, const std::string& salt, const ReleaseInfo& info,
                              const fs::path& folder) {
  const fs::path whole = folder / "ladder";
  git(tree.root(), {"clone", "-q", "--no-local", "--depth", "1", "-c", "advice.detachedHead=false",
                    tree.root().string(), whole.string()});
  git(whole, {"remote", "remove", "origin"});
  apply_variants(whole, info.variants);
  fs::remove(whole / "lab" / "variants.json");  // they are made
  if (!git(whole, {"status", "--porcelain"}).empty()) commit(whole, info);
  const fs::path scripts = whole / "lab" / "release" / "gradescope";
  for (const char* name : {"setup.sh", "run_autograder"})
    if (fs::exists(scripts / name)) fs::copy_file(scripts / name, folder / name);
  write_file(folder / "salt", salt + "\n");
  fs::permissions(folder / "salt", fs::perms::owner_read | fs::perms::owner_write);
}

}  // namespace

std::map<std::string, std::string> lab_keys(const Course& course, const std::string& salt) {
  std::map<std::string, std::string> keys;
  for (const Lab& lab : course.labs) keys[lab.id] = to_hex(derive(salt, "key/" + lab.id));
  return keys;
}

ReleaseInfo make_release(const Tree& tree, const ReleaseOptions& options) {
  ReleaseInfo info;
  info.course = options.course;
  info.cut = labs_to_cut(tree.course(), options.labs);
  check(tree, options);
  info.source = git(tree.root(), {"rev-parse", "HEAD"});
  info.salt = key_id(derive(options.salt, "id of the salt"));

  const NewFolder repository(options.out), instructors(beside(options.out));
  git(tree.root(),
      {"checkout-index", "-a", "-f", "--prefix=" + fs::absolute(repository.path()).string() + "/"});
  const std::vector<Variant> variants = read_variants(repository.path());
  if (options.with_variants)
    info.variants = draw_variants(variants, options.salt);
  else
    for (const Variant& variant : variants) info.variants[variant.name] = variant.choices[0].name;
  apply_variants(repository.path(), info.variants);
  const json bugs = read_bugs(repository.path());
  const Tree whole(repository.path());
  info.release = whole.release();
  std::map<std::string, std::string> sealed;
  if (options.with_reference)
    for (const Lab& lab : whole.course().labs) {
      if (std::ranges::count(info.cut, lab.id) == 0) continue;
      const std::string key = derive(options.salt, "key/" + lab.id);
      info.sealed[lab.id] = key_id(key);
      sealed[lab.id] = seal_lab(whole, lab, bugs, key, info.release);
    }
  const RemovedLines removed = cut_out(whole, info.cut);
  if (fs::exists(repository.path() / "lab" / "release" / "tree"))
    fs::copy(repository.path() / "lab" / "release" / "tree", repository.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  leave_out(repository.path());
  add_course_files(repository.path(), whole.course(), info);
  for (const auto& [lab, text] : sealed)
    write_file(repository.path() / "lab" / "sealed" / (lab + ".bin"), text);
  expect_no_leaks(repository.path(), removed);
  git(repository.path(), {"init", "-q", "--template=", "-b", "main"});
  commit(repository.path(), info);
  write_instructors_folder(tree, options.salt, info, instructors.path());
  repository.finish();
  instructors.finish();
  return info;
}

}  // namespace lab
