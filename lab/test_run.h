#pragma once
// Builds a test binary and runs its tests one by one, each in a process of its own: one that crashes or never ends
// costs the others nothing.
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lab/process.h"

namespace lab {

// not_written: what failed first is that a task is not implemented.
enum class Verdict { passed, failed, not_written, skipped };

struct TestResult {
  std::string name;  // Task5_2_Forks.SiblingsShareBlocks, or with a rung: .../avx2
  Verdict verdict = Verdict::passed;
  std::vector<std::string> messages;  // of the failed checks, or why it was skipped
};

// Where tasks are built: build/course, without CUDA and without benchmarks, which takes minutes less; those that need
// a GPU in build/release, as ./ladder does it.
std::filesystem::path build_folder(const std::filesystem::path& root, bool gpu);

// Configures the folder where needed and builds a target. Returns what the compiler said where it failed, or "".
std::string build(const std::filesystem::path& root, bool gpu, const std::string& target);

// The errors among what ninja prints; all of it where none is marked as one.
std::string errors_of(const std::string& output);

// The tests that a GoogleTest filter leaves; with `rung` only those of that rung ("avx2", "naive" of cuda_naive).
// Error: none.
std::vector<std::string> list_tests(const std::filesystem::path& binary, const std::string& filter,
                                    const std::string& rung);

// How a test ended that ran alone in its process.
struct TestRun {
  Outcome outcome;
  std::string stopped;  // why it was ended, if it was
  std::string report;   // GoogleTest's, as JSON; "" if the process ended before it was written
};

// Runs one test, within this time; `worker` names what runs beside it.
using StartTest = std::function<TestRun(const std::string& name, std::chrono::seconds limit, size_t worker)>;

// As `lab test` does it: a process with the rights of the user.
StartTest plainly(const std::filesystem::path& binary);

// What a run says about its test.
TestResult judge(const std::string& name, const TestRun& run);

// As many at a time as there are cores. Calls report() in the order of `names`, each as soon as it is known, and
// still_running() with the next one's name where that takes long.
void run_tests(const StartTest& start, const std::vector<std::string>& names,
               const std::function<void(const TestResult&)>& report,
               const std::function<void(const std::string&)>& still_running);

// What follows the last / of a test's name, if it is a rung; else "".
std::string rung_of(const std::string& test);

}  // namespace lab
