#pragma once
// What the reference does in a task's tests: which there are, how long they take, which pass on an empty text too.
// A hand-in is held against it.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lab/grade_tree.h"
#include "lab/machine.h"
#include "lab/performance.h"
#include "lab/test_run.h"

namespace lab {

// A test, run once for each of these seeds.
struct GradedTest {
  std::string target, name;
  std::string part;                 // "public" or "hidden"
  std::string seed;                 // LADDER_TEST_SEED
  std::map<Build, double> seconds;  // of the builds that it is run in
  bool guard = false;  // passes on the stub: brings no points, and costs as much as another where it fails
  std::set<std::string> tools;  // of sanitizer.h, that look at it once more
};

struct Baseline {
  // Those that the tests run in. Of a task with CUDA kernels one: the emulator reports by itself what ASan would, and
  // what needs a GPU runs in the build with CUDA.
  std::set<Build> builds = {Build::release, Build::asan};
  Build build() const {
    return *builds.begin();
  }  // whose programs list the tests, and whose objects are looked at

  std::vector<GradedTest> tests;
  std::vector<std::string> skipped;        // what this machine cannot run
  std::map<std::string, Symbols> symbols;  // of each region's file
  std::set<std::string> elsewhere;         // what the test binary defines
  std::vector<std::string> targets;
  std::vector<std::string>
      measuring;           // targets of the performance points; of one build, a kernel's of that with CUDA
  MeasuredBuild pristine;  // copies of their programs with the reference
};

// What measures a kernel is built with CUDA, all else without.
Build measured_in(const Task& task);

// From .lab/grade/baseline-TASK.json where nothing has changed since. Error: the reference fails a test, or the machine
// can run none.
Baseline make_baseline(GradeTree& tree, const Task& task, const std::string& salt, Sandbox sandbox,
                       const Machine& machine);

// Starts a task's tests in the sandbox. `never_ends`: set when one was ended by its time, and then others get less.
TestRun run_graded(const GradeTree& tree, const GradedTest& test, Build build, Sandbox sandbox,
                   bool reference, bool never_ends);

// What a tool of compute-sanitizer finds in those of its tests that have passed, on a GPU: "racecheck: ...". Where of
// its tests none has passed that is what it says, since no run is clean then. "": nothing, or no test is looked at.
std::string found_in_tests(const GradeTree& tree, const Baseline& of, const std::vector<bool>& passed,
                           const Machine& machine, Sandbox sandbox);

// The tests' results in their order, as many at a time as there are cores. Release first, and of those that pass the
// same with ASan.
std::vector<TestResult> run_graded_tests(const GradeTree& tree, const Baseline& of, Sandbox sandbox);

}  // namespace lab
