// Task 7.9.wave: more replicas and requests than the public tests have, messages in any order, and steps at any pace.
#include "step7_parallel/data/wave.h"

#include <gtest/gtest.h>

#include <thread>

#include "step1_layers/core/error.h"
#include "step7_parallel/data/common_rows.h"
#include "step7_parallel/data/lockstep_executor.h"
#include "tests/step7_parallel/data/noting_executor.h"
#include "tests/step7_parallel/data/wave_fleet.h"

namespace ladder {
namespace {

using testing::NotingExecutor;
using testing::Random;

TEST(Hidden7_9_Wave, AllStepTogetherHoweverLateTheMessagesAre) {
  Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200; ++round) {
    testing::WaveFleet(static_cast<int>(random.integer(1, 9)), random).serve(random.integer(0, 30));
    if (HasFailure()) return;
  }
}

// Against what the contract says: it runs if a wave of its number or a later one was started.
TEST(Hidden7_9_Wave, StartsCountByTheirNumberWheneverTheyCome) {
  Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 100; ++round) {
    Wave wave;
    int64_t number = 0, started = -1;
    for (int turn = 0; turn < 200; ++turn) {
      const bool running = started >= number;
      ASSERT_EQ(wave.running(), running)
          << "wave " << number << ", the highest that was started: " << started;
      ASSERT_EQ(wave.number(), number);
      const int64_t what = random.integer(0, 3);
      if (what == 0) {
        ASSERT_EQ(wave.begin(), !running) << "wave " << number;
        started = std::max(started, number);
      } else if (what == 1) {
        const int64_t of = std::max<int64_t>(0, number + random.integer(-2, 1));
        wave.on_start(of);
        started = std::max(started, of);
      } else {
        std::vector<int32_t> votes(static_cast<size_t>(random.integer(1, 6)), 0);
        if (random.integer(0, 2) > 0)
          votes[static_cast<size_t>(random.integer(0, std::ssize(votes) - 1))] = 1;
        const bool goes_on = std::ranges::count(votes, 1) > 0;
        if (!running) {
          ASSERT_THROW(wave.on_votes(votes), Error);
          continue;
        }
        ASSERT_EQ(wave.on_votes(votes), goes_on);
        if (!goes_on) ++number;
      }
    }
  }
}

// Replicas on threads of their own, with bursts of steps and pauses: each step is run by all, and none of which nobody has anything;
// as if on GPUs, all with the same rows.
TEST(Hidden7_9_Wave, EveryStepIsRunByAllWithAsManyRows) {
  Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 6; ++round) {
    RunnerConfig config;
    config.device = {round % 2 == 0 ? DeviceType::fake : DeviceType::cpu, 0};
    config.expert_replicas = static_cast<int>(random.integer(2, 4));
    config.batch.max_num_seqs = 64;
    config.batch.max_num_batched_tokens = 512;
    config.batch.max_model_len = 1024;
    struct Burst {
      std::vector<int64_t> tokens;  // of its steps
      int64_t looks = 0;            // behind it, without a step
    };
    std::vector<std::vector<Burst>> bursts(static_cast<size_t>(config.expert_replicas));
    for (auto& of_replica : bursts)
      for (int64_t more = random.integer(0, 4); more > 0; --more) {
        Burst& burst = of_replica.emplace_back();
        for (int64_t steps = random.integer(1, 4); steps > 0; --steps)
          burst.tokens.push_back(random.integer(1, random.integer(0, 4) == 0 ? 512 : 40));
        burst.looks = random.integer(0, 40);
      }
    const auto group = std::make_shared<LockstepGroup>(config);
    std::vector<std::vector<NotingExecutor::Step>> ran(bursts.size());
    std::vector<std::thread> threads;
    for (int replica = 0; replica < config.expert_replicas; ++replica)
      threads.emplace_back([&, replica] {
        LockstepExecutor executor(std::make_unique<NotingExecutor>(ran[static_cast<size_t>(replica)]), group,
                                  replica);
        for (const Burst& burst : bursts[static_cast<size_t>(replica)]) {
          for (const int64_t tokens : burst.tokens) {
            SchedulerOutput step;
            step.total_num_tokens = tokens;
            executor.collect(executor.submit(step));
          }
          for (int64_t look = 0; look < burst.looks; ++look)
            executor.is_awaited() ? executor.run_along() : std::this_thread::yield();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (size_t replica = 0; replica < ran.size(); ++replica) {
      ASSERT_EQ(ran[replica].size(), ran[0].size()) << "replica " << replica << " has not run every step";
      std::vector<int64_t> own;
      for (const NotingExecutor::Step& step : ran[replica])
        if (step.tokens > 0) own.push_back(step.tokens);
      std::vector<int64_t> expected;
      for (const Burst& burst : bursts[replica])
        expected.insert(expected.end(), burst.tokens.begin(), burst.tokens.end());
      EXPECT_EQ(own, expected) << "the steps of replica " << replica;
    }
    for (size_t step = 0; step < ran[0].size(); ++step) {
      int64_t most = 0;
      for (const auto& of_replica : ran) most = std::max(most, of_replica[step].tokens);
      ASSERT_GT(most, 0) << "step " << step << " was nobody's";
      for (const auto& of_replica : ran)
        ASSERT_EQ(of_replica[step].rows(),
                  config.device.is_cpu() ? of_replica[step].tokens : common_rows(most, config.batch))
            << "step " << step;
    }
  }
}

}  // namespace
}  // namespace ladder
