#include "lab/test_run.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/process.h"

namespace lab {
namespace {

namespace fs = std::filesystem;

// Of one test; the slowest of the reference take some ten seconds. Where one never ends, more will not.
constexpr std::chrono::seconds kLimit{90}, kLimitAfterOne{20}, kLong{10};

// The checks that failed, from GoogleTest's own report, and why a test was skipped.
void read_report(const std::string& report, TestResult& result) {
  const auto all = nlohmann::json::parse(report);
  for (const auto& suite : all.at("testsuites"))
    for (const auto& test : suite.at("testsuite")) {
      if (test.value("result", "") == "SKIPPED") result.verdict = Verdict::skipped;
      for (const auto& skip : test.value("skipped", nlohmann::json::array()))
        result.messages.push_back(skip.at("message"));
      for (const auto& failure : test.value("failures", nlohmann::json::array())) {
        result.verdict = Verdict::failed;
        result.messages.push_back(failure.at("failure"));
      }
    }
}

// What a program printed last, without GoogleTest's own lines.
std::string last_lines(const std::string& output) {
  constexpr std::array kOwn = {"Running main()", "Note: Google Test", "[=====", "[-----", "[ RUN "};
  std::string kept;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    if (std::ranges::none_of(kOwn, [&](const char* begin) { return line.starts_with(begin); }))
      kept += line + "\n";
  return kept.substr(kept.size() - std::min<size_t>(kept.size(), 600));
}

// Why a test was skipped: GoogleTest before 1.13 prints it, and leaves it out of its report.
std::string why_skipped(const std::string& output) {
  const std::string before = ": Skipped\n";
  const size_t begin = output.find(before);
  if (begin == std::string::npos) return "";
  const std::string text = output.substr(begin + before.size());
  return text.substr(0, text.find_first_of('\n'));
}

}  // namespace

StartTest plainly(const fs::path& binary) {
  return [binary](const std::string& name, std::chrono::seconds limit, size_t worker) {
    const fs::path report = binary.parent_path() /
                            (".lab-" + std::to_string(::getpid()) + "-" + std::to_string(worker) + ".json");
    std::error_code ignored;
    fs::remove(report, ignored);
    TestRun done;
    done.outcome =
        run({binary.string(), "--gtest_filter=" + name, "--gtest_output=json:" + report.string()}, limit,
            // What is read after it was given back shall not look as it did before.
            {{"GOMP_SPINCOUNT", "1000"}, {"MALLOC_PERTURB_", "165"}});
    if (done.outcome.timed_out)
      done.stopped =
          "did not end within " + std::to_string(limit.count()) + " s: a loop or a wait without end?";
    if (fs::exists(report)) done.report = read_file(report);
    fs::remove(report, ignored);
    return done;
  };
}

TestResult judge(const std::string& name, const TestRun& run) {
  TestResult result{name, Verdict::passed, {}};
  const Outcome& ran = run.outcome;
  try {
    if (!run.report.empty()) read_report(run.report, result);
  } catch (const nlohmann::json::exception&) {  // ended while it wrote: said below
  }
  if (result.verdict == Verdict::skipped && result.messages.empty())
    result.messages.push_back(why_skipped(ran.output));
  if (!run.stopped.empty())
    result.messages.push_back(run.stopped);
  else if (ran.signal != 0)
    result.messages.push_back(std::string("crashed: ") + ::strsignal(ran.signal) + "\n" +
                              last_lines(ran.output));
  else if (!ran.ok() && result.verdict != Verdict::failed)
    result.messages.push_back("ended with code " + std::to_string(ran.exit_code) + "\n" + ran.output);
  if (!ran.ok() || !run.stopped.empty()) result.verdict = Verdict::failed;
  if (result.verdict == Verdict::passed && run.report.empty()) {
    result.verdict = Verdict::failed;
    result.messages.push_back("ended before its test did: something calls exit()");
  }
  const bool unwritten =
      !result.messages.empty() && result.messages[0].find("is not implemented") != std::string::npos;
  if (result.verdict == Verdict::failed && unwritten) result.verdict = Verdict::not_written;
  return result;
}

fs::path build_folder(const fs::path& root, bool gpu) {
  return root / "build" / (gpu ? "release" : "course");
}

std::string build(const fs::path& root, bool gpu, const std::string& target) {
  const fs::path folder = build_folder(root, gpu);
  const FileLock lock(
      folder / ".ladder.lock");  // which `./ladder` takes too: two builds at once would spoil the folder
  if (!fs::exists(folder / "build.ninja")) {
    std::vector<std::string> configure = {"cmake",       "-G", "Ninja",         "-S",
                                          root.string(), "-B", folder.string(), "-DCMAKE_BUILD_TYPE=Release"};
    if (!gpu) configure.insert(configure.end(), {"-DLADDER_CUDA=OFF", "-DLADDER_BENCH=OFF"});
    const Outcome configured = run(configure);
    write_file(folder / "configure.log", configured.output);
    if (!configured.ok()) return configured.output;
  }
  const Outcome built = run({"ninja", "-C", folder.string(), target});
  return built.ok() ? "" : built.output.empty() ? "ninja could not be started" : built.output;
}

std::string errors_of(const std::string& output) {
  std::string errors;
  std::istringstream lines(output);
  int left = 60;
  bool in_error = false;
  for (std::string line; std::getline(lines, line) && left > 0;) {
    if (line.find("error:") != std::string::npos || line.find("undefined reference") != std::string::npos)
      in_error = true;
    if (line.find("warning:") != std::string::npos || line.starts_with("[") ||
        line.find("In function") != std::string::npos)
      in_error = false;
    if (in_error) errors += line + "\n", --left;
  }
  return errors.empty() ? output : errors;
}

std::string rung_of(const std::string& test) {
  const size_t slash = test.rfind('/');
  return slash == std::string::npos || slash < test.find('.') ? "" : test.substr(slash + 1);
}

std::vector<std::string> list_tests(const fs::path& binary, const std::string& filter,
                                    const std::string& rung) {
  const Outcome listed = run({binary.string(), "--gtest_list_tests", "--gtest_filter=" + filter}, kLimit);
  if (!listed.ok()) throw LabError(binary.string() + " does not list its tests:\n" + listed.output);
  std::vector<std::string> names;
  std::istringstream lines(listed.output);
  std::string suite;
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find("  # "));
    if (line.starts_with("  ")) {
      const std::string name = suite + line.substr(2);
      if (rung.empty() || rung_of(name) == rung || rung_of(name) == "cuda_" + rung) names.push_back(name);
    } else if (line.ends_with('.')) {
      suite = line;
    }
  }
  if (names.empty())
    throw LabError(rung.empty() ? "no test is named " + filter
                                : "none of these tests is of rung '" + rung + "'");
  return names;
}

void run_tests(const StartTest& start, const std::vector<std::string>& names,
               const std::function<void(const TestResult&)>& report,
               const std::function<void(const std::string&)>& still_running) {
  std::mutex mutex;
  std::condition_variable one_done;
  std::vector<std::optional<TestResult>> results(names.size());
  std::atomic<size_t> next = 0;
  std::atomic<bool> one_never_ends = false;
  const auto work = [&](size_t worker) {
    for (size_t i; (i = next++) < names.size();) {
      const TestRun ran = start(names[i], one_never_ends ? kLimitAfterOne : kLimit, worker);
      if (ran.outcome.timed_out) one_never_ends = true;
      TestResult result = judge(names[i], ran);
      const std::lock_guard lock(mutex);
      results[i] = std::move(result);
      one_done.notify_one();
    }
  };
  std::vector<std::jthread> workers;
  const size_t count = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, names.size());
  for (size_t i = 0; i < count; ++i) workers.emplace_back(work, i);
  for (size_t i = 0; i < names.size(); ++i) {
    std::unique_lock lock(mutex);
    const auto known = [&] { return results[i].has_value(); };
    if (!one_done.wait_for(lock, kLong, known)) {
      still_running(names[i]);
      one_done.wait(lock, known);
    }
    report(*results[i]);
  }
}

}  // namespace lab
