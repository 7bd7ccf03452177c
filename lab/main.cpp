// `./ladder lab`: what to build next, a checkout with exactly that missing, and whether it works.
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "lab/commands.h"
#include "lab/emulated_source.h"
#include "lab/files.h"
#include "lab/hand_in.h"
#include "lab/lab_error.h"

namespace {

constexpr const char* kUsage =
    "usage: ./ladder lab COMMAND\n"
    "  list                     labs and tasks: what each needs, hours, points\n"
    "  start ID [--anew]        leaves task ID for you to write, the rest as it is\n"
    "  test ID [--rung R]       builds and runs the tests of a task or a lab\n"
    "       [--lane emulator]   CUDA kernels without a GPU (lab/EMULATOR.md)\n"
    "  bench ID                 counts and times of a task beside the reference's\n"
    "  status                   of every task: stub, mine or reference\n"
    "  use mine|reference ID    which text of a task the build takes\n"
    "  bug --list | bug ID      seeded defects: one such as 3.3#2, for which you write the test that finds it\n"
    "  demo [ARGUMENT...]       the tiny model with what you wrote, and what of it ran\n"
    "  hand-in ID... [--out F]  your text of these tasks as one file; hand-in --check F looks at one\n"
    "  unlock LAB --key K       the reference of a released lab, with the instructor's key\n"
    "for instructors\n"
    "  release --course C --salt S [--out FOLDER] [--labs A,B] [--no-reference] [--variants none]\n"
    "                           a repository for students, without the reference\n"
    "  release --keys --salt S  the keys of its labs\n"
    "  grade HANDIN... [--format text|gradescope|classroom|csv] [--salt S | --salt-file F] [--tasks ID,...] [--out FOLDER]\n"
    "        [--sandbox none] [--variants none]\n"
    "                           points and a report for each hand-in: files, folders, archives of them; with --tasks and\n"
    "                           no hand-in: builds and runs the reference, so that grading begins at once\n";

using Arguments = std::vector<std::string>;

// Takes `name VALUE` out of the arguments; "" if it is not there.
std::string option(Arguments& arguments, const std::string& name) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] != name) continue;
    if (i + 1 == arguments.size()) throw lab::LabError(name + ": expected a value");
    std::string value = arguments[i + 1];
    arguments.erase(arguments.begin() + i, arguments.begin() + i + 2);
    return value;
  }
  return "";
}

// release: a folder named after the course, beside the checkout.
lab::ReleaseOptions release_options(Arguments& arguments, const std::filesystem::path& root) {
  lab::ReleaseOptions options;
  options.course = option(arguments, "--course");
  options.salt = option(arguments, "--salt");
  options.out = option(arguments, "--out");
  if (options.out.empty()) {
    std::string name = options.course;
    for (char& letter : name)
      if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '-';
    options.out = std::filesystem::weakly_canonical(root).parent_path() / ("ladder-" + name);
  }
  options.out = std::filesystem::absolute(options.out);
  if (!options.out.has_filename()) options.out = options.out.parent_path();  // given as FOLDER/
  std::istringstream labs(option(arguments, "--labs"));
  for (std::string lab; std::getline(labs, lab, ',');) options.labs.push_back(lab);
  options.with_reference = std::erase(arguments, "--no-reference") == 0;
  if (const std::string variants = option(arguments, "--variants"); !variants.empty()) {
    if (variants != "none") throw lab::LabError("--variants: expected none, got '" + variants + "'");
    options.with_variants = false;
  }
  return options;
}

void expect(const Arguments& arguments, size_t count, const std::string& form) {
  if (arguments.size() != count) throw lab::LabError("expected ./ladder lab " + form);
}

int run(Arguments arguments) {
  std::string root;
  if (!arguments.empty() && arguments[0] == "--root") root = option(arguments, "--root");
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "help") {
    std::cout << kUsage;
    return 0;
  }
  const std::string command = arguments[0];
  arguments.erase(arguments.begin());
  if (command == "write-emulated") {  // a step of the build (emulator/CMakeLists.txt): no tree needed
    expect(arguments, 2, "write-emulated FILE OUT");
    lab::write_if_changed(arguments[1], lab::emulated_source(lab::read_file(arguments[0]), arguments[0]));
    return 0;
  }
  const std::filesystem::path folder = root.empty() ? lab::find_root(std::filesystem::current_path())
                                                    : std::filesystem::weakly_canonical(root);
  std::optional<lab::FileLock> lock;
  if (command == "start" || command == "use" || command == "status" || command == "sync" ||
      command == "unlock")
    lock.emplace(lab::lock_of(folder));
  lab::Tree tree(folder);
  if (command == "list") return expect(arguments, 0, "list"), lab::list(tree);
  if (command == "status") return expect(arguments, 0, "status"), lab::status(tree);
  if (command == "start") {
    const bool anew = std::erase(arguments, "--anew") > 0;
    return expect(arguments, 1, "start ID [--anew]"), lab::start(tree, arguments[0], anew);
  }
  if (command == "use")
    return expect(arguments, 2, "use mine|reference ID"), lab::use(tree, arguments[0], arguments[1]);
  if (command == "bug") {
    if (arguments == Arguments{"--list"}) return lab::list_bugs(tree);
    return expect(arguments, 1, "bug ID, or bug --list"), lab::bug(tree, arguments[0]);
  }
  if (command == "demo") return lab::demo(tree, arguments);
  if (command == "sync") return expect(arguments, 0, "sync"), tree.splice(), 0;
  if (command == "test") {
    const std::string rung = option(arguments, "--rung"), lane = option(arguments, "--lane");
    if (!lane.empty() && lane != "emulator")
      throw lab::LabError("--lane: expected emulator, got '" + lane + "'");
    expect(arguments, 1, "test ID [--rung R] [--lane emulator]");
    if (arguments[0].find('#') != std::string::npos) return lab::test_bug(tree, arguments[0]);
    return lab::test(tree, arguments[0], rung, lane == "emulator");
  }
  if (command == "bench") return expect(arguments, 1, "bench ID"), lab::bench(tree, arguments[0]);
  if (command == "hand-in") {
    if (const std::string file = option(arguments, "--check"); !file.empty()) {
      const int texts = lab::check_hand_in(tree, file);
      std::cout << file << ": " << texts << " texts of this release\n";
      return 0;
    }
    const std::string out = option(arguments, "--out");
    return lab::hand_in(tree, arguments, out);
  }
  if (command == "release") {
    if (std::erase(arguments, "--keys") > 0) {
      const std::string salt = option(arguments, "--salt");
      return expect(arguments, 0, "release --keys --salt S"), lab::print_keys(tree, salt);
    }
    const lab::ReleaseOptions options = release_options(arguments, tree.root());
    return expect(arguments, 0, "release --course C --salt S ..."), lab::release(tree, options);
  }
  if (command == "unlock") {
    const std::string key = option(arguments, "--key");
    return expect(arguments, 1, "unlock LAB --key K"), lab::unlock_lab(tree, arguments[0], key);
  }
  if (command == "grade") {
    lab::GradeSettings settings;
    settings.format = option(arguments, "--format");
    settings.salt = option(arguments, "--salt");
    if (const std::string file = option(arguments, "--salt-file"); !file.empty()) {
      settings.salt = lab::read_file(file);
      settings.salt.erase(settings.salt.find_last_not_of(" \t\r\n") + 1);
      if (settings.salt.empty()) throw lab::LabError("--salt-file " + file + ": holds no salt");
    }
    settings.tasks = option(arguments, "--tasks");
    settings.out = option(arguments, "--out");
    settings.sandbox = option(arguments, "--sandbox");
    settings.variants = option(arguments, "--variants");
    return lab::grade(tree, arguments, settings);
  }
  if (command == "write-stub")
    return expect(arguments, 2, "write-stub ID FOLDER"), lab::write_stubs(tree, arguments[0], arguments[1]);
  if (command == "check-text" && arguments.size() >= 2)
    return lab::check_text(tree, arguments[0], {arguments.begin() + 1, arguments.end()});
  if (command == "measure" && arguments.size() >= 3) {
    const bool confined = std::erase(arguments, "--unconfined") == 0;
    return lab::measure(tree, arguments[0], {arguments.begin() + 1, arguments.end()}, confined);
  }
  if (command == "write-traced")
    return expect(arguments, 1, "write-traced FOLDER"), lab::write_traced(tree, arguments[0]);
  throw lab::LabError(
      "no command '" + command +
      "': expected list, start, test, bench, status, use, bug, demo, hand-in, unlock, release or grade");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const lab::LabError& error) {
    std::cerr << "lab: " << error.what() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "lab: " << error.what() << "\n";
  }
  return 2;
}
