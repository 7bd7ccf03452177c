// Whatever befalls one worker ends all of them soon, with one line that names the rank and the cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <set>
#include <thread>
#include <tuple>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/process/killed_parent.h"
#include "tests/step6_engine/process/open_files.h"
#include "tests/step7_parallel/workers/worker_program.h"
#include "tests/support/memory_files.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::on_grid;

EngineOptions tiny(testing::Grid grid = {2, 2}) {
  return on_grid(testing::small_options(testing::tiny_model(), DeviceType::cpu, 96), grid);
}

// Processes that this one has started and that are still there, zombies too.
std::set<int> children() {
  std::set<int> pids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream list(task.path() / "children");
    for (int pid = 0; list >> pid;) pids.insert(pid);
  }
  return pids;
}

std::vector<Request> some_requests() {
  std::vector<Request> requests(3);
  for (Request& request : requests) {
    request.prompt_token_ids = {5, 6, 7};
    request.sampling.max_tokens = 30;
    request.sampling.ignore_eos = true;
  }
  return requests;
}

struct Outcome {
  std::string text;  // of what was thrown
  bool users_mistake = false;
};
Outcome outcome_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.what(), true};
  } catch (const std::exception& error) {
    return {error.what(), false};
  }
  return {"nothing was thrown", false};
}

struct Fault {
  const char* kind;
  const char* cause;  // a regular expression
  bool users_mistake;
};
constexpr Fault kFaults[] = {
    {"kill", R"( \(pid [0-9]+\) was ended by SIGKILL .*)", false},
    {"stop", R"( \(pid [0-9]+\) was stopped \(SIGSTOP\) and has not gone on for 3 s)", false},
    {"abort", R"( \(pid [0-9]+\) was ended by SIGABRT)", false},
    {"exit", R"( \(pid [0-9]+\) ended with exit code 3)", false},
    {"memory", ": out of memory", true},
    {"defect", ": the disk is on fire", false},
    {"mistake", ": expected a drier disk", true},
};
struct Phase {
  const char* name;
  int forward;  // of the first layer, see program/worker_ranks.cpp
};
constexpr Phase kPhases[] = {{"Load", 0}, {"WarmUp", 1}, {"Step", 4}};

// Four ranks end in time, each of them alike, when one has this fault, and the engine says which one.
void expect_all_end(testing::Grid grid, int rank, const Phase& phase, const Fault& fault) {
  SCOPED_TRACE(fmt::format("rank {}", rank));
  const auto before = children();
  const EngineOptions options =
      testing::on_workers(tiny(grid), fmt::format("{} {} {}", rank, fault.kind, phase.forward));
  Clock::time_point failed;
  const Outcome outcome = outcome_of([&] {
    try {
      const auto engine = testing::engine_with(options);
      EXPECT_GT(phase.forward, 1) << "it has started";
      engine->generate(some_requests());
    } catch (...) {
      failed = Clock::now();
      throw;
    }
  });
  // Also the engine is gone here, and with it everything that it had.
  EXPECT_LT(Clock::now() - failed, 20s);
  EXPECT_THAT(outcome.text, MatchesRegex(fmt::format("rank {} of 4{}", rank, fault.cause)));
  EXPECT_EQ(outcome.text.find('\n'), std::string::npos);
  EXPECT_EQ(outcome.users_mistake, fault.users_mistake);
  EXPECT_EQ(children(), before);
}

class Task7_6_Faults : public ::testing::TestWithParam<std::tuple<Phase, Fault>> {};

TEST_P(Task7_6_Faults, EndsAllOfThemInTimeAndNamesTheRank) {
  const auto [phase, fault] = GetParam();
  const auto memory = testing::files_of_memory();
  const int files = testing::num_open_files();
  for (const int rank : {0, 3}) expect_all_end({2, 2}, rank, phase, fault);
  EXPECT_EQ(testing::files_of_memory(), memory);
  EXPECT_EQ(testing::num_open_files(), files);
}

// Where the others wait for its keys, or for its hidden states.
TEST(Task7_12_Workers, OfWhichOneDiesAllEndInTimeAndNameTheRank) {
  const auto memory = testing::files_of_memory();
  for (const int rank : {0, 2}) expect_all_end({2, 1, 2}, rank, kPhases[2], kFaults[0]);
  for (const int rank : {1, 3}) expect_all_end({1, 1, 4}, rank, kPhases[2], kFaults[5]);
  EXPECT_EQ(testing::files_of_memory(), memory);
}

INSTANTIATE_TEST_SUITE_P(Faults, Task7_6_Faults,
                         ::testing::Combine(::testing::ValuesIn(kPhases), ::testing::ValuesIn(kFaults)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param).name,
                                              std::get<1>(info.param).kind);
                         });

WorkerExecutor executor_on(const EngineOptions& options, const std::string& fault = "none",
                           std::chrono::milliseconds step_patience = WorkerExecutor::kStepPatience) {
  const ModelFolder folder = open_model_folder(options.model);
  return {executor_options(options, folder, resolved_runner_config(options, folder.spec)),
          testing::worker_program(options.model, fault), step_patience};
}

SchedulerOutput first_step() {
  SchedulerOutput step;
  step.step = 1;
  NewSequence sequence;
  sequence.id = 1;
  sequence.token_ids = {5, 6, 7};
  sequence.num_prompt_tokens = 3;
  sequence.block_table = {0};
  step.new_sequences.push_back(sequence);
  step.scheduled.push_back({1, 3, {}});
  step.total_num_tokens = 3;
  return step;
}

// Nobody waits for anything: still it is noticed, and the next step is refused at once.
class Task7_6_Idle : public ::testing::TestWithParam<int> {};

TEST_P(Task7_6_Idle, ThatIsEndedOrStoppedEndsTheOthersToo) {
  for (const int rank : {0, 1}) {
    WorkerExecutor executor = executor_on(tiny({2, 1}));
    const std::vector<int> pids = executor.pids();
    ::kill(pids[static_cast<size_t>(rank)], GetParam());
    const auto begin = Clock::now();
    for (const int pid : pids)
      while (testing::process_state(pid) != 0 && Clock::now() - begin < 60s) std::this_thread::sleep_for(1ms);
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 20);
    EXPECT_THAT(outcome_of([&] { executor.submit(first_step()); }).text,
                HasSubstr(fmt::format("rank {} of 2 (pid {}) was ", rank, pids[static_cast<size_t>(rank)])));
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, Task7_6_Idle, ::testing::Values(SIGKILL, SIGTERM, SIGSTOP),
                         [](const auto& info) { return sigabbrev_np(info.param); });

TEST(Task7_6_Workers, TakeAsManyStepsAsTheyMayAndGiveThemInOrder) {
  WorkerExecutor executor = executor_on(tiny({1, 1}));
  EXPECT_EQ(outcome_of([&] { executor.collect({1}); }).text,
            "ticket 1 is collected, the oldest step in flight is none");
  const Ticket ticket = executor.submit(first_step());
  EXPECT_EQ(outcome_of([&] { executor.submit(first_step()); }).text,
            "step 1 is submitted while 1 are in flight, which is all there may be");
  EXPECT_EQ(outcome_of([&] { executor.collect({2}); }).text,
            "ticket 2 is collected, the oldest step in flight is 1");
  EXPECT_EQ(executor.collect(ticket).sequences.size(), 1u);
}

TEST(Task7_6_Workers, ThatAreStoppedForAMomentGoOn) {
  WorkerExecutor executor = executor_on(tiny({2, 1}));
  const std::vector<int> pids = executor.pids();
  ::kill(pids[1], SIGSTOP);
  const Ticket ticket = executor.submit(first_step());
  std::this_thread::sleep_for(1s);
  ::kill(pids[1], SIGCONT);
  EXPECT_EQ(executor.collect(ticket).sequences.size(), 1u);
}

// One that neither dies nor is stopped, and never comes back.
TEST(Task7_6_Workers, ThatHangAreGivenUpAndItIsSaidWhereTheyAre) {
  WorkerExecutor executor = executor_on(tiny({2, 1}), "1 hang 2", 500ms);
  const Ticket ticket = executor.submit(first_step());
  const Outcome outcome = outcome_of([&] { executor.collect(ticket); });
  EXPECT_THAT(outcome.text, HasSubstr("no answer to a step within 500 ms"));
  EXPECT_THAT(outcome.text, HasSubstr(fmt::format("rank 0 (process {}): ", executor.pids()[0])));
  EXPECT_EQ(outcome.text.find('\n'), std::string::npos);
  EXPECT_THAT(outcome_of([&] { executor.submit(first_step()); }).text, outcome.text);  // it stays failed
}

TEST(Task7_6_Workers, DoNotOutliveTheirEngine) {
  const auto life = testing::life_after_parent([](const auto& tell) {
    const WorkerExecutor executor = executor_on(tiny({2, 1}));
    tell(executor.pids()[1]);
  });
  EXPECT_LT(std::chrono::duration<double>(life).count(), 20);
}

TEST(Task7_6_Workers, OfOtherFilesAreRefused) {
  const EngineOptions options = tiny({2, 1});
  const ModelFolder folder = open_model_folder(options.model);
  testing::TemporaryFolder other;
  for (const auto& file : std::filesystem::directory_iterator(options.model))
    std::filesystem::copy(file.path(), other.path());
  std::ofstream(other.path() / "config.json", std::ios::app) << "\n";
  const Outcome outcome = outcome_of([&] {
    WorkerExecutor(executor_options(options, folder, resolved_runner_config(options, folder.spec)),
                   testing::worker_program(other.path()));
  });
  EXPECT_THAT(outcome.text,
              MatchesRegex("rank [01] of 2: the files of --model are others than those that the engine's "
                           "process sees: expected the same checkpoint"));
  EXPECT_TRUE(outcome.users_mistake);
}

TEST(Task7_6_Workers, OfAnotherProgramAreNone) {
  const EngineOptions options = tiny({1, 1});
  const ModelFolder folder = open_model_folder(options.model);
  const auto start = [&](const WorkerProgram& program) {
    return outcome_of([&] {
             WorkerExecutor(executor_options(options, folder, resolved_runner_config(options, folder.spec)),
                            program);
           })
        .text;
  };
  EXPECT_THAT(start({.arguments = {}, .program = "/bin/false"}), HasSubstr("rank 0 of 1 (pid "));
  EXPECT_THAT(start({.arguments = {}, .program = "/no/such/program"}), HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace ladder
