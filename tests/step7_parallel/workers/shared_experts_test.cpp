// 7.9: replicas that share out experts and whose ranks are processes: tokens cross from one replica's processes to another's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <mutex>

#include "step7_parallel/data/data_parallel_client.h"
#include "step7_parallel/data/lockstep_executor.h"
#include "tests/step6_engine/engine_client_fixture.h"
#include "tests/step7_parallel/data/becomes.h"
#include "tests/step7_parallel/workers/worker_program.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::Grid;
using ::testing::HasSubstr;
using testing::output_of;

struct Golden {
  explicit Golden(const std::string& name)
      : checkpoint(testing::load_golden(testing::golden_folder() / name)),
        one_rank(testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len)),
        requests(testing::greedy_requests(checkpoint)),
        alone(testing::engine_with(one_rank)->generate(requests)) {}

  testing::GoldenCheckpoint checkpoint;
  EngineOptions one_rank;
  std::vector<Request> requests;
  std::vector<RequestOutput> alone;
};

// Two replicas behind a door, whose ranks are processes. `experts`: as in workers/program/worker_ranks.cpp.
class ProcessFleet {
 public:
  ProcessFleet(const EngineOptions& one_rank, Grid grid, const std::string& experts) {
    EngineOptions options = testing::on_grid(one_rank, grid);
    options.runner.expert_parallel = experts != "split";
    options.runner.balance_experts = experts.starts_with("moving");
    if (options.runner.balance_experts) options.runner.num_redundant_experts = 2 * grid.tp;
    options.runner.expert_replicas = 2;
    const WorkerProgram program = testing::worker_program(one_rank.model, "none", "1 1 1", experts);
    const auto start = [this, program](const ExecutorOptions& given, std::vector<int> groups) {
      MadeExecutor made = start_workers(given, program, std::move(groups));
      std::lock_guard lock(mutex_);
      pids_[given.config.expert_replica] = dynamic_cast<WorkerExecutor&>(*made.executor).pids();
      return made;
    };
    options.makers.executor = make_lockstep_executor(groups_, start);
    DataParallelOptions door;
    door.num_replicas = 2;
    door.balancer = "round_robin";
    door.first_pause = 10ms;
    door.max_pause = 50ms;
    door.on_stop = [groups = groups_] { groups->close(); };
    door.start = [groups = groups_, options](int number) {
      return groups->start(number, [&]() -> StartedEngine {
        EngineOptions own = options;
        own.runner.expert_replica = number;
        std::unique_ptr<Engine> engine = testing::engine_with(own);
        SchedulerConfig config = engine->scheduler().config();
        return {std::make_unique<ThreadEngineClient>(std::move(engine)), std::move(config)};
      });
    };
    client = std::make_unique<DataParallelClient>(std::move(door));
  }

  std::vector<int> pids(int replica) {
    std::lock_guard lock(mutex_);
    return pids_[replica];
  }

 private:
  const std::shared_ptr<LockstepGroups> groups_ = std::make_shared<LockstepGroups>();
  std::mutex mutex_;
  std::array<std::vector<int>, 2> pids_;

 public:
  std::unique_ptr<DataParallelClient> client;  // ends first
};

class Task7_9_Processes : public ::testing::TestWithParam<const char*> {};

TEST_P(Task7_9_Processes, ShareOutExpertsAndAnswerWhatOneEngineAnswers) {
  const Golden golden("qwen3_moe_normed");
  for (const Grid grid : {Grid{1, 1}, Grid{2, 1}, Grid{1, 2}}) {
    ProcessFleet fleet(golden.one_rank, grid, GetParam());
    std::vector<RequestStream> streams;
    for (const Request& request : golden.requests) streams.push_back(fleet.client->submit(request));
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_TRUE(testing::equal_or_near_tie(
          golden.alone[i].completions[0], output_of(streams[i]).completions[0], 1e-4,
          fmt::format("{}, tensor {} x pipeline {}, prompt {}", GetParam(), grid.tp, grid.pp, i)));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Task7_9_Processes, ::testing::Values("whole", "split", "moving 0 3"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, std::string(info.param).find(' '));
                         });

TEST(Task7_9_ProcessFaults, OneThatIsKilledEndsAllAndTheyStartAgainTogether) {
  const Golden golden("mixtral_top2");
  for (const int dying : {0, 1}) {  // who has the request, or who runs along
    ProcessFleet fleet(golden.one_rank, {}, "whole");
    const std::vector<int> before = fleet.pids(dying);
    ASSERT_EQ(before.size(), 1u);
    Request request = golden.requests[0];
    request.sampling.max_tokens = 40;
    RequestStream stream = fleet.client->submit(request);
    ASSERT_TRUE(stream.next(30s).has_value());
    const auto begin = StreamBuffer::Clock::now();
    ::kill(before[0], SIGKILL);
    const CompletionOutput answer = output_of(stream).completions[0];
    EXPECT_LT(StreamBuffer::Clock::now() - begin, 30s);
    if (answer.finish_reason == FinishReason::error) {  // else it was done before
      EXPECT_THAT(answer.error, HasSubstr("was ended by SIGKILL"));
      if (dying == 1) {
        EXPECT_THAT(answer.error, HasSubstr("replica 1, which has a share of the experts"));
      }
    }
    EXPECT_TRUE(testing::becomes([&] {
      return !fleet.pids(dying).empty() && fleet.pids(dying) != before &&
             fleet.client->stats().num_live_replicas == 2;
    }));
    EXPECT_TRUE(testing::equal_or_near_tie(golden.alone[1].completions[0],
                                           output_of(fleet.client->submit(golden.requests[1])).completions[0],
                                           1e-4, "after the new start"));
  }
}

}  // namespace
}  // namespace ladder
