#pragma once
// Whether a student's test finds a seeded defect: it fails on the defect, by a check, and passes on the reference.
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "lab/bug.h"
#include "lab/process.h"

namespace lab {

// What one run of a test binary did.
struct BugRun {
  std::set<std::string> passed, failed;  // names of tests; failed: by a check, EXPECT_... or ASSERT_...
  std::string broke;    // why it is no answer: it crashed, did not end, threw, ended by exit(); or ""
  std::string message;  // of the first check that failed, as GoogleTest has it
};

// From how a binary ended and the report of --gtest_output=json ("" if it wrote none).
BugRun read_bug_run(const Outcome& ended, const std::string& report);

struct BugVerdict {
  bool found = false;
  std::string why;      // where not: which of the two does not hold, for the student
  std::string message;  // where found: what the test said on the defect
};

// Runs each of the four binaries several times. A test is to find what the code does: one whose answer changes from
// run to run, or with how the compiler has optimized the file, finds nothing. `run` is called with a binary that is
// always at the same path.
using RunBug = std::function<BugRun(const std::filesystem::path& binary)>;
BugVerdict judge_bug(const std::filesystem::path& build_folder, const Bug& bug, const RunBug& run);

// What `lab test 3.3#2` and grading say about a test before it is built; "" if nothing.
std::string not_written_yet(const Bug& bug, const std::string& text);

// The target of ninja that builds them.
std::string bug_target(const Bug& bug);

}  // namespace lab
