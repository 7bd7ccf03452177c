#include <iostream>
#include <sstream>

#include "lab/bug.h"
#include "lab/bug_judge.h"
#include "lab/commands.h"
#include "lab/failure_text.h"
#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/test_run.h"

// `lab bug` and `lab test 3.3#2`.

namespace lab {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLimit{30};

std::string hours(int count) {
  return std::to_string(count) + (count == 1 ? " hour" : " hours");
}

// In lines of at most `width`.
void print_wrapped(const std::string& text, const std::string& indent, size_t width) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      std::cout << indent << line << "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  std::cout << indent << line << "\n";
}

std::string text_of(const Tree& tree, const Bug& bug) {
  const fs::path path = tree.root() / bug.test_path();
  return fs::exists(path) ? read_file(path) : "";
}

}  // namespace

int list_bugs(const Tree& tree) {
  const std::vector<Bug> bugs = read_bugs(tree.root());
  if (bugs.empty()) throw LabError("no bugs here: those of a lab come with ./ladder lab unlock");
  for (const Bug& bug : bugs) {
    const std::string text = text_of(tree, bug);
    const char* state = text.empty() ? "-" : not_written_yet(bug, text).empty() ? "test written" : "begun";
    std::cout << bug.id << std::string(bug.id.size() < 16 ? 16 - bug.id.size() : 1, ' ') << state
              << std::string(14 - std::string(state).size(), ' ') << hours(bug.hours) << ": " << bug.title
              << "\n";
  }
  return 0;
}

int bug(const Tree& tree, const std::string& id) {
  const Bug bug = find_bug(tree.root(), id);
  const Task& task = tree.course().task(bug.task);
  prepare_bug(tree, bug);
  const fs::path path = tree.root() / bug.test_path();
  const bool there = fs::exists(path);
  if (!there) write_file(path, bug_template(bug));
  std::cout << "bug " << bug.id << ": " << bug.title << " (" << hours(bug.hours) << ", of task " << task.id
            << ")\n";
  print_wrapped(bug.report, "  ", 100);
  std::cout << "write    " << bug.test_path() << (there ? "      (it is there; nothing was changed)" : "")
            << "\n"
            << "         a test that fails where this happens, by a check, and passes on the reference\n"
            << "test     ./ladder lab test " << bug.id << "\n"
            << "hand in  ./ladder lab hand-in " << bug.id << "\n"
            << "chapter  " << task.chapter << "\n";
  return 0;
}

int test_bug(const Tree& tree, const std::string& id) {
  const Bug bug = find_bug(tree.root(), id);
  const std::string text = text_of(tree, bug);
  if (text.empty()) throw LabError(bug.test_path() + " is not there: ./ladder lab bug " + id);
  std::cout << "bug " << bug.id << ": " << bug.title << "\n";
  const std::string refused = refused_bug_test(text), empty = not_written_yet(bug, text);
  if (!refused.empty()) throw LabError(bug.test_path() + ", " + refused);
  if (!empty.empty()) {
    std::cout << empty << "\n";
    return 1;
  }
  prepare_bug(tree, bug);
  const fs::path folder = build_folder(tree.root(), false);
  std::string said;
  {
    const FileLock lock(lock_of(tree.root()));
    tree.splice(false, true);
    std::cout << "building it beside the defect and beside the reference"
              << (fs::exists(folder / "build.ninja") ? "" : ", which takes minutes the first time")
              << std::endl;
    said = build(tree.root(), false, bug_target(bug));
    tree.splice();
  }
  if (!said.empty()) {
    std::cout << errors_of(said) << "it does not compile\n";
    return 1;
  }
  const fs::path report = folder / "tests" / "bug_run" / "report.json";
  const BugVerdict verdict = judge_bug(folder, bug, [&](const fs::path& binary) {
    std::error_code ignored;
    fs::remove(report, ignored);
    const Outcome ended = run({binary.string(), "--gtest_output=json:" + report.string()}, kLimit,
                              {{"GOMP_SPINCOUNT", "1000"}});
    return read_bug_run(ended, fs::exists(report) ? read_file(report) : "");
  });
  if (!verdict.found) {
    std::cout << "NOT FOUND: " << verdict.why << "\n";
    return 1;
  }
  std::cout << "on the defect it fails:\n";
  std::istringstream lines(failure_text(verdict.message, tree.root().string()));
  for (std::string line; std::getline(lines, line);) std::cout << "        " << line << "\n";
  std::cout << "on the reference it passes\nfound: " << bug.id << "\n";
  return 0;
}

}  // namespace lab
