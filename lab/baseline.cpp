#include "lab/baseline.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>

#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/lane.h"
#include "lab/salt.h"
#include "lab/sanitizer.h"
#include "lab/sha256.h"
#include "lab/stub.h"

namespace lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kSecretSeeds = 2;  // of each test with random inputs

std::string seed_of(const std::string& salt, const Task& task, int number) {
  return std::to_string(derive_number(salt, "seed/" + task.id + "/" + std::to_string(number)));
}

// A word that what is tested cannot know.
std::string fresh_word() {
  std::random_device random;
  std::string bytes;
  for (int i = 0; i < 32; ++i) bytes += static_cast<char>(random());
  return to_hex(bytes);
}

// Of the one test in GoogleTest's report: whether its inputs are random.
bool is_random(const std::string& report) {
  const json all =
      json::parse(report);  // a name of its own: a range-for keeps only what it names itself alive
  for (const auto& suite : all.at("testsuites"))
    for (const auto& test : suite.at("testsuite"))
      if (test.contains("inputs")) return true;
  return false;
}

// Exactly this test has run to its end.
bool is_about(const std::string& report, const std::string& name) {
  try {
    const json all = json::parse(report);
    const auto& suites = all.at("testsuites");
    if (all.at("tests") != 1 || suites.size() != 1 || suites[0].at("testsuite").size() != 1) return false;
    const auto& test = suites[0].at("testsuite")[0];
    return suites[0].at("name").get<std::string>() + "." + test.at("name").get<std::string>() == name &&
           test.at("status") == "RUN" && (test.at("result") == "COMPLETED" || test.at("result") == "SKIPPED");
  } catch (const json::exception&) {
    return false;
  }
}

// All at a time that the cores can run; the results in the order of the tests. Throws what one of them throws, when all
// have ended.
template <class Result, class Run>
std::vector<Result> on_all_cores(size_t count, const Run& run_one) {
  std::vector<Result> results(count);
  std::atomic<size_t> next = 0;
  std::exception_ptr thrown;
  std::once_flag once;
  std::vector<std::jthread> workers;
  const size_t cores = std::max<size_t>(std::thread::hardware_concurrency(), 1);
  for (size_t i = 0; i < std::min(cores, count); ++i)
    workers.emplace_back([&] {
      try {
        for (size_t at; (at = next++) < count;) results[at] = run_one(at);
      } catch (...) {
        next = count;
        std::call_once(once, [&] { thrown = std::current_exception(); });
      }
    });
  workers.clear();
  if (thrown) std::rethrow_exception(thrown);
  return results;
}

json to_json(const Baseline& baseline) {
  json all;
  for (const GradedTest& test : baseline.tests)
    all["tests"].push_back(
        {test.target, test.name, test.part, test.seed, test.seconds, test.guard, test.tools});
  all["skipped"] = baseline.skipped;
  for (const auto& [path, symbols] : baseline.symbols)
    all["symbols"][path] = {symbols.undefined, symbols.strong, symbols.weak};
  all["elsewhere"] = baseline.elsewhere;
  all["targets"] = baseline.targets;
  return all;
}

Baseline from_json(const json& all) {
  Baseline baseline;
  for (const json& test : all.at("tests"))
    baseline.tests.push_back(
        {test[0], test[1], test[2], test[3], test[4].get<std::map<Build, double>>(), test[5], test[6]});
  baseline.skipped = all.at("skipped");
  for (const auto& [path, sets] : all.at("symbols").items())
    baseline.symbols[path] = {sets[0], sets[1], sets[2]};
  baseline.elsewhere = all.at("elsewhere");
  baseline.targets = all.at("targets");
  return baseline;
}

// What a test's process sees.
Folders folders_of(const GradeTree& tree, const fs::path& binary, Build build, const std::string& seed) {
  Folders folders;
  folders.gpu = build == Build::gpu;
  folders.readable = {binary.parent_path()};
  for (const char* name : {"tests/goldens", "models"})
    if (fs::is_directory(tree.root() / name)) folders.readable.push_back(tree.root() / name);
  // As many threads on any machine: on one of many cores their waiting alone would take the processor time allowed.
  folders.environment = {{"GOMP_SPINCOUNT", "1000"}, {"OMP_NUM_THREADS", "4"}, {"LADDER_TEST_SEED", seed}};
  return folders;
}

// Runs the reference and keeps what it took. A test that is skipped leaves the list.
void run_reference(const GradeTree& tree, Build build, Sandbox sandbox, Baseline& baseline,
                   std::vector<std::string>* random) {
  const auto runs = on_all_cores<std::pair<TestRun, double>>(baseline.tests.size(), [&](size_t i) {
    const auto begin = std::chrono::steady_clock::now();
    TestRun run = run_graded(tree, baseline.tests[i], build, sandbox, true, false);
    return std::pair(run, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  });
  std::vector<GradedTest> kept;
  for (size_t i = 0; i < runs.size(); ++i) {
    GradedTest& test = baseline.tests[i];
    const TestResult result = judge(test.name, runs[i].first);
    if (result.verdict == Verdict::skipped) {
      baseline.skipped.push_back(test.name + ": " + (result.messages.empty() ? "" : result.messages[0]));
      continue;
    }
    if (result.verdict != Verdict::passed)
      throw LabError("the reference fails " + test.name +
                     (build == Build::asan ? " with AddressSanitizer" : "") + " (" + test.part + ", seed " +
                     test.seed + "): " + (result.messages.empty() ? "" : result.messages[0]));
    if (random != nullptr && is_random(runs[i].first.report)) random->push_back(test.name);
    test.seconds[build] = runs[i].second;
    kept.push_back(std::move(test));
  }
  baseline.tests = std::move(kept);
}

}  // namespace

TestRun run_graded(const GradeTree& tree, const GradedTest& test, Build build, Sandbox sandbox,
                   bool reference, bool never_ends) {
  const fs::path binary = tree.binary(build, test.target);
  Limits limits = build == Build::gpu ? gpu_limits() : Limits();
  if (build == Build::asan) limits.memory = int64_t{4} << 30;
  double seconds = 120;
  if (!reference) seconds = std::max(never_ends ? 3.0 : 10.0, (never_ends ? 5 : 10) * test.seconds.at(build));
  limits.wall = std::chrono::seconds(static_cast<int64_t>(std::ceil(seconds)));
  limits.cpu = limits.wall * 4;
  Folders folders = folders_of(tree, binary, build, test.seed);
  if (build != Build::asan)
    folders.environment["MALLOC_PERTURB_"] =
        "165";  // what is read after it was given back shall look different
  else if (sandbox == Sandbox::none)
    folders.environment["ASAN_OPTIONS"] = "detect_leaks=0";  // needs ptrace, which containers refuse
  const std::string word = fresh_word();
  folders.input = word + "\n";
  const Confined ran = run_confined(
      {"sh", "-c", "exec \"$0\" --graded --gtest_filter=\"$1\" --gtest_output=json:$TMPDIR/report.json",
       binary.string(), test.name},
      limits, folders, sandbox);
  TestRun run{ran, ran.stopped, ""};
  const std::string begin = word + "\n", end = "\n" + word + "\n";
  if (ran.result.size() > begin.size() + end.size() && ran.result.starts_with(begin) &&
      ran.result.ends_with(end)) {
    const std::string report = ran.result.substr(begin.size(), ran.result.size() - begin.size() - end.size());
    if (is_about(report, test.name)) run.report = report;
  }
  return run;
}

std::string found_in_tests(const GradeTree& tree, const Baseline& of, const std::vector<bool>& passed,
                           const Machine& machine, Sandbox sandbox) {
  for (const std::string tool : kSanitizerTools) {
    const GradedTest* looked_at = nullptr;
    std::string names;
    for (size_t i = 0; i < of.tests.size(); ++i) {
      if (!of.tests[i].tools.contains(tool)) continue;
      looked_at = &of.tests[i];
      if (passed[i]) names += (names.empty() ? "" : ":") + of.tests[i].name;
    }
    if (looked_at == nullptr) continue;
    if (names.empty()) return tool + ": no test passes that it looks at, such as " + looked_at->name;
    const fs::path binary = tree.binary(of.build(), looked_at->target);
    const std::string found = found_by_sanitizer(
        machine.sanitizer, tool, {binary.string(), "--gtest_brief=1", "--gtest_filter=" + names},
        [&](const std::vector<std::string>& command) -> Outcome {
          return run_confined(command, gpu_limits(), folders_of(tree, binary, of.build(), looked_at->seed),
                              sandbox);
        });
    if (!found.empty()) return found;
  }
  return "";
}

std::vector<TestResult> run_graded_tests(const GradeTree& tree, const Baseline& of, Sandbox sandbox) {
  const std::vector<GradedTest>& tests = of.tests;
  std::atomic<bool> never_ends = false;
  std::vector<size_t> order(tests.size());  // the longest first, so that no core waits for one at the end
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(),
                           [&](size_t i) { return tests[i].seconds.at(*of.builds.rbegin()); });
  std::vector<TestResult> results(tests.size());
  on_all_cores<char>(tests.size(), [&](size_t at) {
    const size_t i = order[at];
    TestResult result;
    for (const Build build : of.builds) {
      const TestRun run = run_graded(tree, tests[i], build, sandbox, false, never_ends);
      if (run.outcome.timed_out) never_ends = true;
      result = judge(tests[i].name, run);
      if (result.verdict == Verdict::passed) continue;
      if (build == Build::asan)
        for (std::string& message : result.messages) message = "with AddressSanitizer and UBSan: " + message;
      break;
    }
    results[i] = std::move(result);
    return '\0';
  });
  return results;
}

Build measured_in(const Task& task) {
  return task.gpu ? Build::gpu : Build::release;
}

Baseline make_baseline(GradeTree& tree, const Task& task, const std::string& salt, Sandbox sandbox,
                       const Machine& machine) {
  Baseline baseline;
  const bool emulated = task.gpu && task.lane == "emulator";
  const std::string target = emulated ? kEmulatorTarget : task.target;
  if (task.gpu) baseline.builds = {emulated ? Build::release : Build::gpu};
  baseline.targets = {target};
  const bool has_hidden = !task.hidden_target.empty() && !emulated;
  if (has_hidden) baseline.targets.push_back(task.hidden_target);
  baseline.measuring = measuring_targets(task, machine);
  tree.restore();
  for (const Build build : baseline.builds) tree.build_reference(build, baseline.targets);
  if (!baseline.measuring
           .empty()) {  // the judges, and who runs against a student's, have the reference in them
    tree.build_reference(measured_in(task), baseline.measuring);
    const MeasuredBuild built = measured_build(tree.build_folder(measured_in(task)));
    const fs::path folder = tree.folder() / ("measured-" + task.id);
    baseline.pristine = {folder / built.counts.filename(), folder / built.race.filename()};
    fs::create_directories(folder);
    for (const auto& [from, to] :
         {std::pair(built.counts, baseline.pristine.counts), std::pair(built.race, baseline.pristine.race)})
      if (fs::exists(from)) fs::copy_file(from, to, fs::copy_options::overwrite_existing);
  }
  const fs::path kept = tree.folder() / ("baseline-" + task.id + ".json");
  const bool looked_at = baseline.build() == Build::gpu && !machine.sanitizer.empty();
  const std::string key =
      sha256(tree.hash() + task.filter + task.hidden_filter + derive(salt, "seed/" + task.id) +
             (sandbox == Sandbox::none ? "none" : "") + (looked_at ? "sanitizer" : ""));
  if (fs::exists(kept)) {
    const json all = json::parse(read_file(kept), nullptr, false);
    if (all.is_object() && all.value("key", "") == key) {
      Baseline known = from_json(all);
      known.builds = baseline.builds;
      known.measuring = baseline.measuring;
      known.pristine = baseline.pristine;
      return known;
    }
  }
  const auto add = [&](const std::string& target, const std::string& filter, const std::string& part,
                       int seed) {
    for (const std::string& name : list_tests(tree.binary(baseline.build(), target), filter, ""))
      baseline.tests.push_back({target, name, part, seed_of(salt, task, seed), {}, false, {}});
  };
  std::vector<std::string> random;
  add(target, task.filter, "public", 0);
  for (const Build build : baseline.builds)
    run_reference(tree, build, sandbox, baseline, build == baseline.build() ? &random : nullptr);
  if (baseline.tests.empty())
    throw LabError("task " + task.id + ": no test of it runs on this machine: " + baseline.skipped.front());
  if (looked_at) {
    for (const auto& [tool, filter] : task.sanitized)
      for (const std::string& name : list_tests(tree.binary(baseline.build(), target), filter, ""))
        for (GradedTest& test : baseline.tests)
          if (test.name == name) test.tools.insert(tool);
    const std::string found =
        found_in_tests(tree, baseline, std::vector<bool>(baseline.tests.size(), true), machine, sandbox);
    if (!found.empty()) throw LabError("the reference of task " + task.id + " is not clean: " + found);
  }
  Baseline hidden;
  std::swap(hidden.tests, baseline.tests);
  for (int seed = 1; seed <= kSecretSeeds; ++seed) {
    for (const GradedTest& test : hidden.tests)
      if (std::ranges::find(random, test.name) != random.end())
        baseline.tests.push_back(
            {test.target, test.name, "hidden", seed_of(salt, task, seed), {}, false, {}});
    if (has_hidden) add(task.hidden_target, task.hidden_filter, "hidden", seed);
  }
  for (const Build build : baseline.builds) run_reference(tree, build, sandbox, baseline, nullptr);
  baseline.tests.insert(baseline.tests.begin(), hidden.tests.begin(), hidden.tests.end());
  for (const std::string& path : task.regions) {
    const std::vector<fs::path> objects = tree.objects(baseline.build(), path);
    if (objects.empty()) throw LabError("the build compiles " + path + " into no object that is known");
    for (const fs::path& object : objects) {
      const Symbols symbols = symbols_of(object);
      baseline.symbols[path].undefined.insert(symbols.undefined.begin(), symbols.undefined.end());
      baseline.symbols[path].strong.insert(symbols.strong.begin(), symbols.strong.end());
      baseline.symbols[path].weak.insert(symbols.weak.begin(), symbols.weak.end());
    }
  }
  for (const std::string& target : baseline.targets) {
    const Symbols all = symbols_of(tree.binary(baseline.build(), target));
    baseline.elsewhere.insert(all.strong.begin(), all.strong.end());
    baseline.elsewhere.insert(all.weak.begin(), all.weak.end());
  }

  std::map<std::string, std::string> stubs;
  for (const std::string& path : task.regions)
    stubs[path] = make_stub(tree.tree().reference(task, path), task.id, task.rungs);
  tree.put(task, stubs);
  if (const std::string said = tree.build_hand_in(baseline.build(), baseline.targets); !said.empty())
    throw LabError("the stub of task " + task.id + " does not compile:\n" + said);
  const auto passes = on_all_cores<char>(baseline.tests.size(), [&](size_t i) {
    const GradedTest& test = baseline.tests[i];
    return judge(test.name, run_graded(tree, test, baseline.build(), sandbox, false, false)).verdict ==
           Verdict::passed;
  });
  for (size_t i = 0; i < passes.size(); ++i) baseline.tests[i].guard = passes[i] != 0;
  tree.restore();
  json all = to_json(baseline);
  all["key"] = key;
  write_file(kept, all.dump());
  return baseline;
}

}  // namespace lab
