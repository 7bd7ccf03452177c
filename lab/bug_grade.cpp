#include "lab/bug_grade.h"

#include <algorithm>
#include <random>

#include "lab/bug_judge.h"
#include "lab/failure_text.h"
#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/salt.h"
#include "lab/test_run.h"

namespace lab {
namespace {

namespace fs = std::filesystem;

constexpr Limits kLimits{.wall = std::chrono::seconds(30), .cpu = std::chrono::seconds(60)};

// A word that a test cannot know (tests/support/test_main.cpp).
std::string fresh_word() {
  std::random_device random;
  std::string bytes;
  for (int i = 0; i < 16; ++i) bytes += static_cast<char>(random());
  return to_hex(bytes);
}

BugRun run_graded(const fs::path& binary, Sandbox sandbox) {
  const std::string word = fresh_word();
  Folders folders;
  folders.readable = {binary.parent_path()};
  folders.environment = {{"GOMP_SPINCOUNT", "1000"}};
  folders.input = word + "\n";
  const Confined ended = run_confined({binary.string(), "--graded", "--gtest_output=json:report.json"},
                                      kLimits, folders, sandbox);
  if (!ended.stopped.empty()) {
    BugRun run;
    run.broke = ended.stopped;
    return run;
  }
  const std::string begin = word + "\n", end = "\n" + begin;
  const bool whole = ended.result.size() > begin.size() + end.size() && ended.result.starts_with(begin) &&
                     ended.result.ends_with(end);
  return read_bug_run(
      ended, whole ? ended.result.substr(begin.size(), ended.result.size() - begin.size() - end.size()) : "");
}

// Why a test finds nothing, or "".
std::string why_not(const BugGrading& grading, const Bug& bug, const std::string& text) {
  if (const std::string refused = refused_bug_test(text); !refused.empty()) return refused;
  if (const std::string empty = not_written_yet(bug, text); !empty.empty()) return empty;
  prepare_bug(grading.tree, bug);
  write_file(grading.tree.root() / bug.test_path(), text);
  const std::string said = grading.build(bug_target(bug));
  if (!said.empty()) return "it does not compile:\n" + errors_of(said);
  return judge_bug(grading.folder, bug,
                   [&](const fs::path& binary) { return run_graded(binary, grading.sandbox); })
      .why;
}

}  // namespace

std::vector<Part> bug_parts(const BugGrading& grading, const std::vector<BugTest>& tests, double of) {
  std::vector<Part> parts;
  for (const BugTest& test : tests) {
    const auto bug = std::ranges::find(grading.bugs, test.bug, &Bug::id);
    Part part{test.bug.substr(0, test.bug.find('#')), "bug", test.bug, 0, of, ""};
    if (bug == grading.bugs.end()) {
      part.text = "no such bug";
    } else {
      try {
        part.text = why_not(grading, *bug, test.text);
      } catch (const LabError& error) {
        part.text = error.what();
      }
      std::error_code ignored;
      fs::remove(grading.tree.root() / bug->test_path(), ignored);
    }
    if (part.text.empty()) part.points = of;
    parts.push_back(part);
  }
  return parts;
}

}  // namespace lab
