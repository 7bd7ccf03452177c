// 7.9: replicas that step together on GPUs all run as many rows; who has fewer, or no step, fills up.
#include "step7_parallel/data/common_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <future>
#include <thread>

#include "step2_model/model_makers.h"
#include "step4_runner/local_executor.h"
#include "step4_runner/step_graphs.h"
#include "step7_parallel/data/lockstep_executor.h"
#include "step7_parallel/expert/expert_parallel.h"
#include "tests/step6_engine/engine_client_fixture.h"
#include "tests/step7_parallel/data/noting_executor.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::NotingExecutor;
using testing::output_of;

BatchConfig batch_of(int64_t max_seqs, int64_t max_rows) {
  BatchConfig batch;
  batch.max_num_seqs = max_seqs;
  batch.max_num_batched_tokens = max_rows;
  batch.max_model_len = 4096;
  return batch;
}

// The rows of the graph that a runner takes for a step of so many; its own, without one.
int64_t run_as(const std::vector<GraphSize>& sizes, int64_t rows) {
  const size_t at = find_graph_size(sizes, {rows, 1});
  return at == sizes.size() ? rows : sizes[at].rows;
}

TEST(Task7_9_CommonRows, NoRunnerTakesMoreAndNoFewerWouldDo) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 40; ++round) {
    const int64_t max_rows = random.integer(1, round % 2 == 0 ? 300 : 3000);
    const BatchConfig batch = batch_of(random.integer(1, 400), max_rows);
    const std::vector<GraphSize> decode =
        decode_graph_sizes(std::min(batch.max_num_seqs, max_rows), batch.max_model_len);
    const std::vector<GraphSize> mixed = mixed_graph_sizes(max_rows);
    const auto fits = [&](int64_t rows) {
      return run_as(decode, rows) == rows && run_as(mixed, rows) == rows;
    };
    for (int64_t most = 0; most <= max_rows; ++most) {
      const int64_t rows = common_rows(most, batch);
      ASSERT_GE(rows, std::max<int64_t>(most, 1));
      ASSERT_LE(rows, max_rows) << most;
      ASSERT_TRUE(fits(rows)) << most << " rows became " << rows;
      for (int64_t fewer = std::max<int64_t>(most, 1); fewer < rows; ++fewer)
        ASSERT_FALSE(fits(fewer)) << most << " rows became " << rows;
    }
  }
}

TEST(Task7_9_CommonRows, AreThoseOfAGraphWhereThereIsOne) {
  const BatchConfig batch = batch_of(100, 2048);
  EXPECT_EQ(common_rows(0, batch), 1);
  EXPECT_EQ(common_rows(3, batch), 4);
  EXPECT_EQ(common_rows(9, batch), 16);
  EXPECT_EQ(common_rows(21, batch), 24);
  EXPECT_EQ(common_rows(97, batch), 104)
      << "100, of decodes, is not a size of mixed steps, which would run 104";
  EXPECT_EQ(common_rows(1500, batch), 1500) << "beyond all graphs";
}

// Steps of each replica, by turns: so many tokens, or 0 for none. What each one's executor ran.
std::vector<std::vector<NotingExecutor::Step>> run_lockstep(Device device,
                                                            const std::vector<std::vector<int64_t>>& turns) {
  RunnerConfig config;
  config.device = device;
  config.expert_replicas = static_cast<int>(turns[0].size());
  config.batch = batch_of(100, 2048);
  const auto group = std::make_shared<LockstepGroup>(config);
  std::vector<std::vector<NotingExecutor::Step>> ran(turns[0].size());
  std::barrier all_have_left(std::ssize(ran));
  std::vector<std::thread> threads;
  for (int replica = 0; replica < config.expert_replicas; ++replica)
    threads.emplace_back([&, replica] {
      auto& mine = ran[static_cast<size_t>(replica)];
      LockstepExecutor executor(std::make_unique<NotingExecutor>(mine), group, replica);
      for (const std::vector<int64_t>& turn : turns) {
        SchedulerOutput step;
        step.total_num_tokens = turn[static_cast<size_t>(replica)];
        step.num_static_padding_rows = step.total_num_tokens > 0 ? 1 : 0;
        if (step.total_num_tokens > 0)
          executor.collect(executor.submit(step));
        else
          executor.run_along();
      }
      all_have_left.arrive_and_wait();
    });
  for (std::thread& thread : threads) thread.join();
  return ran;
}

TEST(Task7_9_LockstepRows, AreThoseOfAllReplicasAndOfOneWithoutAStepToo) {
  const std::vector<std::vector<int64_t>> turns = {{2, 20, 0}, {1, 1, 1}, {0, 0, 300}, {5, 0, 0}};
  const auto ran = run_lockstep({DeviceType::fake, 0}, turns);
  ASSERT_THAT(ran, Each(::testing::SizeIs(turns.size())));
  std::vector<int64_t> rows;
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    rows.push_back(ran[0][turn].rows());
    for (size_t replica = 0; replica < ran.size(); ++replica) {
      EXPECT_EQ(ran[replica][turn].tokens, turns[turn][replica]) << "its own tokens, replica " << replica;
      EXPECT_EQ(ran[replica][turn].rows(), rows.back()) << "turn " << turn << ", replica " << replica;
    }
  }
  EXPECT_THAT(rows, ElementsAre(24, 2, 320, 8));
}

TEST(Task7_9_LockstepRows, OnTheCpuAreEachOnesOwn) {
  using Step = NotingExecutor::Step;
  const auto ran = run_lockstep({DeviceType::cpu, 0}, {{2, 20}, {0, 7}});
  EXPECT_THAT(ran[0], ElementsAre(Step{2, 1}, Step{0, 0}));
  EXPECT_THAT(ran[1], ElementsAre(Step{20, 1}, Step{7, 1}));
}

// Engines on the CPU whose group takes them for GPUs: rows that fill up change no answer, and go to their experts and back.
TEST(Task7_9_LockstepRows, ThatFillUpChangeNoAnswer) {
  for (const char* name : {"mixtral_top2", "qwen3_moe_normed"}) {
    const testing::GoldenCheckpoint golden = testing::load_golden(testing::golden_folder() / name);
    EngineOptions options = testing::small_options(golden.directory, DeviceType::cpu, golden.max_model_len);
    const std::vector<Request> requests = testing::greedy_requests(golden);
    const auto alone = testing::engine_with(options)->generate(requests);
    options.runner.expert_parallel = true;
    options.runner.expert_replicas = 2;
    options.makers.model.mlp = make_expert_parallel_mlp;
    std::mutex mutex;
    std::shared_ptr<LockstepGroup> group;
    options.makers.executor = [&](const ExecutorOptions& given) {
      {
        std::lock_guard lock(mutex);
        RunnerConfig on_gpus = given.config;
        on_gpus.device = {DeviceType::fake, 0};
        if (group == nullptr) group = std::make_shared<LockstepGroup>(on_gpus);
      }
      ExecutorOptions own = given;
      own.expert_ranks = group->ranks_of(given.config.expert_replica);
      MadeExecutor made = make_executor_in_process(own);
      made.executor =
          std::make_unique<LockstepExecutor>(std::move(made.executor), group, given.config.expert_replica);
      return made;
    };
    std::vector<std::future<std::unique_ptr<ThreadEngineClient>>> starting;
    for (int replica = 0; replica < 2; ++replica)
      starting.push_back(std::async(std::launch::async, [&, replica] {
        EngineOptions own = options;
        own.runner.expert_replica = replica;
        return std::make_unique<ThreadEngineClient>(testing::engine_with(own));
      }));
    std::vector<std::unique_ptr<ThreadEngineClient>> clients;
    for (auto& client : starting) clients.push_back(client.get());
    std::vector<RequestStream> streams;
    for (size_t i = 0; i < requests.size(); ++i) streams.push_back(clients[i % 3 == 0]->submit(requests[i]));
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_TRUE(testing::equal_or_near_tie(alone[i].completions[0], output_of(streams[i]).completions[0],
                                             1e-4, fmt::format("{}, prompt {}", name, i)));
    std::vector<std::thread> leaving;
    for (auto& client : clients) leaving.emplace_back([&client] { client.reset(); });
    for (std::thread& thread : leaving) thread.join();
  }
}

}  // namespace
}  // namespace ladder
