// Task 8.7.scheduler: random loads and kept prompts, n completions of each, in pools that are too small.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/checked_index.h"
#include "tests/step5_scheduler/fake_kv_connector.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::fresh_seed;
using testing::Random;

// What the other engine does next, for good or bad.
void other_engine(FakeKvConnector& fake, Random& random) {
  fake.has_room = random.integer(0, 3) > 0;
  fake.ends_sequences = random.integer(0, 4) == 0;
  for (int64_t events = random.integer(0, 2); events > 0 && !fake.loading.empty(); --events) {
    const SequenceId id = *std::next(fake.loading.begin(), random.integer(0, std::ssize(fake.loading) - 1));
    const int64_t wanted = fake.started.at(id).load.num_tokens;
    if (random.integer(0, 3) == 0) fake.scribble(id);
    const int64_t came = random.integer(0, 2) == 0 ? random.integer(0, wanted) : wanted;
    for (int64_t times = random.integer(1, 2); times > 0; --times) fake.come(id, came);
  }
  if (!fake.held.empty() && random.integer(0, 2) == 0) {
    const SequenceId id = std::next(fake.held.begin(), random.integer(0, std::ssize(fake.held) - 1))->first;
    for (int64_t times = random.integer(1, 2); times > 0; --times) fake.release(id);
  }
}

void random_day(Random& random) {
  SchedulerConfig config = small_config();
  config.batch.block_size = random.integer(1, 8);
  config.batch.max_model_len = random.integer(12, 120);
  config.batch.num_kv_blocks =
      random.integer(6, 24) + config.batch.max_model_len / config.batch.block_size;  // the longest one fits
  config.batch.max_num_seqs = random.integer(1, 6);
  config.batch.max_num_batched_tokens = random.integer(2, 40);
  config.watermark = random.integer(0, 1) == 0 ? 0.0 : 0.1;
  config.enable_prefix_caching = random.integer(0, 3) > 0;
  ConnectedHarness harness(
      config, static_cast<int>(random.integer(0, 2)),
      std::make_unique<CheckedIndex>(config.batch.num_kv_blocks, config.batch.block_size));
  std::vector<SequenceId> ids;
  std::map<SequenceId, int64_t> wanted;  // of those that load: tokens over there
  for (int event = 0; event < 120 && !::testing::Test::HasFailure(); ++event) {
    if (random.integer(0, 3) == 0) {
      const int64_t size = random.integer(1, config.batch.max_model_len - 1);
      SamplingParams sampling = greedy(random.integer(1, config.batch.max_model_len - size));
      sampling.seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
      sampling.n = random.integer(0, 2) == 0 ? 2 : 1;
      const int64_t way = random.integer(0, 3), there = random.integer(0, size);
      const auto added =
          harness.add(iota_prompt(size, static_cast<int32_t>(random.integer(0, 2)) * 200 + 1), sampling,
                      way < 2    ? from_there(there)
                      : way == 2 ? for_there()
                                 : nullptr);
      if (way < 2) wanted[added[0]] = there;
      ids.insert(ids.end(), added.begin(), added.end());
    }
    if (!ids.empty() && random.integer(0, 15) == 0)
      harness.abort(ids[static_cast<size_t>(random.integer(0, std::ssize(ids) - 1))]);
    other_engine(harness.connector, random);
    harness.turn();
    for (const FinishedKvLoad& failed : harness.scheduler.take_failed_loads()) {
      EXPECT_EQ(harness.scheduler.find(failed.id), nullptr);
      harness.abort(failed.id);
    }
    expect_books_balance(harness.scheduler);
  }
  for (int turn = 0; harness.scheduler.has_unfinished() || harness.scheduler.num_steps_in_flight() > 0 ||
                     harness.scheduler.waits_for_kv();
       ++turn) {
    ASSERT_LT(turn, 20'000) << "no end";
    ASSERT_FALSE(::testing::Test::HasFailure());
    other_engine(harness.connector, random);
    harness.turn();
    for (const FinishedKvLoad& failed : harness.scheduler.take_failed_loads()) harness.abort(failed.id);
    expect_books_balance(harness.scheduler);
  }
  harness.run();
  harness.expect_reference_outputs();
  for (const auto& [id, started] : harness.connector.started) {
    ASSERT_TRUE(wanted.contains(id)) << "nobody wanted it, or a sibling has loaded too";
    EXPECT_LE(started.load.first_token + started.load.num_tokens,
              std::min<int64_t>(wanted[id], std::ssize(harness.results.at(id).prompt) - 1));
  }
}

TEST(Hidden8_7_Scheduler, NoBlockIsLostAndEveryAnswerIsRight) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int day = 0; day < 150 && !HasFailure(); ++day) random_day(random);
}

TEST(Hidden8_7_Scheduler, WhoLoadsHasAllItsBlocksWhileItsSiblingsWait) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 100 && !HasFailure(); ++round) {
    SchedulerConfig config = small_config();
    config.batch.block_size = random.integer(1, 8);
    const int64_t size = random.integer(2, 100), there = random.integer(1, size - 1);
    ConnectedHarness harness(config);
    SamplingParams sampling = greedy(random.integer(1, 5));
    sampling.n = static_cast<int32_t>(random.integer(1, 4));
    const std::vector<SequenceId> ids = harness.add(iota_prompt(size), sampling, from_there(there));
    for (int step = 0; step < 2; ++step)
      EXPECT_FALSE(harness.submit()) << "there is nothing to compute before the keys are here";
    EXPECT_EQ(harness.scheduler.stats().num_waiting, sampling.n - 1);
    EXPECT_EQ(std::ssize(harness.connector.started.at(ids[0]).load.block_table),
              (size + config.batch.block_size - 1) / config.batch.block_size);
    harness.connector.ends_sequences = random.integer(0, 1) == 0;
    const int64_t came = random.integer(0, there);
    harness.connector.come(ids[0], came);
    harness.turn();
    const bool ends = harness.connector.ends_sequences && came < there;
    const std::vector<FinishedKvLoad> failed = harness.scheduler.take_failed_loads();
    ASSERT_EQ(std::ssize(failed), ends ? 1 : 0) << came << " of " << there;
    if (ends) {
      EXPECT_EQ(harness.scheduler.find(ids[0]), nullptr);
      for (const SequenceId id : ids) harness.abort(id);
    }
    harness.run();
    harness.expect_reference_outputs();
  }
}

// A reader is done with what a step in flight still writes.
TEST(Hidden8_7_Scheduler, BlocksComeBackWithTheLastStepThatWritesThem) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 50 && !HasFailure(); ++round) {
    SchedulerConfig config = small_config();
    config.batch.block_size = random.integer(1, 8);
    ConnectedHarness harness(config, 1);
    const int64_t size = random.integer(1, 50);
    SamplingParams sampling = greedy(8);
    sampling.stop_token_ids = {reference_output(iota_prompt(size), sampling, 7, 1000, 256, {})[0]};
    const SequenceId id = harness.add(iota_prompt(size), sampling, for_there())[0];
    harness.submit();
    harness.submit();
    harness.collect();
    ASSERT_EQ(harness.results.at(id).reason, FinishReason::stop);
    const int64_t num_held = harness.scheduler.stats().num_held_blocks;
    harness.connector.release(id);
    harness.scheduler.take_kv_events();
    EXPECT_EQ(harness.scheduler.stats().num_held_blocks, 0);
    EXPECT_EQ(harness.scheduler.stats().num_used_blocks, num_held);
    expect_books_balance(harness.scheduler);
    harness.run();
  }
}

}  // namespace
}  // namespace ladder
