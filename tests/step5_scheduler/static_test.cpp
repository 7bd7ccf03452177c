#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

SchedulerConfig static_config() {
  SchedulerConfig config = small_config();
  config.static_batching = true;
  config.batch.max_num_seqs = 3;
  return config;
}

TEST(Task5_1_StaticBatching, NobodyJoinsUntilTheWholeBatchIsDone) {
  Harness harness(static_config());
  for (const int64_t max_tokens : {2, 5, 3, 4}) harness.add(iota_prompt(4), greedy(max_tokens));
  std::vector<std::vector<SequenceId>> steps;
  while (harness.submit()) {
    steps.emplace_back();
    for (const ScheduledSequence& scheduled : harness.output.scheduled) steps.back().push_back(scheduled.id);
    harness.collect();
  }
  const std::vector<std::vector<SequenceId>> expected = {{0, 1, 2}, {0, 1, 2}, {1, 2}, {1}, {1},
                                                         {3},       {3},       {3},    {3}};
  EXPECT_EQ(steps, expected);
  harness.expect_empty();
  harness.expect_reference_outputs();
}

TEST(Task5_1_StaticBatching, RowsOfFinishedSequencesAndPromptPaddingAreComputed) {
  Harness harness(static_config());
  harness.add(iota_prompt(10), greedy(1));
  harness.add(iota_prompt(4), greedy(3));
  harness.add(iota_prompt(7), greedy(2));
  std::vector<std::pair<int64_t, int64_t>> rows;  // tokens, padding
  while (harness.submit()) {
    rows.push_back({harness.output.total_num_tokens, harness.output.num_static_padding_rows});
    harness.collect();
  }
  const std::vector<std::pair<int64_t, int64_t>> expected = {{21, 9},  // three prompts padded to 10
                                                             {2, 1},   // one has ended
                                                             {1, 2}};
  EXPECT_EQ(rows, expected);
}

TEST(Task5_1_StaticBatching, PaddingKeepsToTheBudgetAndIsCaughtUpWith) {
  SchedulerConfig config = static_config();
  config.batch.max_num_batched_tokens = 12;
  Harness harness(config);
  harness.add(iota_prompt(20), greedy(4));
  harness.add(iota_prompt(1), greedy(4));
  harness.run();  // checks the budget in every step
  EXPECT_EQ(harness.executor.num_padding_rows(), 19);
}

TEST(Task5_1_StaticBatching, NobodyDecodesBeforeAllPromptsAreDone) {
  SchedulerConfig config = static_config();
  config.batch.max_num_batched_tokens = 12;
  Harness harness(config);
  harness.add(iota_prompt(12), greedy(3));
  harness.add(iota_prompt(8), greedy(3));
  std::vector<std::vector<SequenceId>> steps;
  while (harness.submit()) {
    steps.emplace_back();
    for (const ScheduledSequence& scheduled : harness.output.scheduled) steps.back().push_back(scheduled.id);
    harness.collect();
  }
  const std::vector<std::vector<SequenceId>> expected = {{0}, {1}, {0, 1}, {0, 1}};
  EXPECT_EQ(steps, expected);
}

// A row that waits for the other prompts is no idle one: its padding was counted with the prompts'.
TEST(Task5_1_StaticBatching, NoRowIsIdleBeforeAllPromptsAreDone) {
  SchedulerConfig config = static_config();
  config.batch.max_num_batched_tokens = 16;
  Harness harness(config);
  harness.add(iota_prompt(12), greedy(2));
  harness.add(iota_prompt(8), greedy(1));
  std::vector<std::pair<int64_t, int64_t>> rows;  // tokens, padding
  while (harness.submit()) {
    rows.push_back({harness.output.total_num_tokens, harness.output.num_static_padding_rows});
    harness.collect();
  }
  const std::vector<std::pair<int64_t, int64_t>> expected = {{16, 0},  // 12 and 4
                                                             {4, 4},   // two prompts padded to 12
                                                             {1, 1}};
  EXPECT_EQ(rows, expected);
}

TEST(Task5_1_StaticBatching, ReservesTheLongestAnswerForEachSequence) {
  SchedulerConfig config = static_config();
  config.batch.num_kv_blocks = 10;
  Harness harness(config);
  for (int i = 0; i < 3; ++i) harness.add(iota_prompt(4), greedy(13));  // 16 slots: 4 blocks each
  ASSERT_TRUE(harness.submit());
  const SchedulerStats stats = harness.scheduler.stats();
  EXPECT_EQ(stats.num_running, 2) << "the third would need 12 blocks";
  EXPECT_EQ(stats.num_used_blocks, 8);
  EXPECT_EQ(stats.num_live_tokens, 8) << "of 32 slots that are reserved";
  harness.collect();
  harness.run();
  EXPECT_EQ(harness.scheduler.stats().num_preemptions, 0);
  harness.expect_reference_outputs();
}

TEST(Task5_1_StaticBatching, WithoutKvReuseEveryTokenIsComputedAgain) {
  SchedulerConfig config = static_config();
  config.recompute_everything = true;
  Harness harness(config);
  harness.add(iota_prompt(10), greedy(4));
  harness.run();
  EXPECT_EQ(harness.executor.num_rows(), 10 + 11 + 12 + 13);
  harness.expect_reference_outputs();
}

// The executor runs ahead: a step is asked for before the tokens of the last one have come.
TEST(Task5_1_StaticBatching, PaddingIsNotLostInAStepThatIsDropped) {
  SchedulerConfig config = static_config();
  config.recompute_everything = true;
  config.batch.max_num_batched_tokens = 24;
  Harness harness(config, 1);
  harness.add(iota_prompt(1), greedy(2));
  harness.add(iota_prompt(20, 100), greedy(2));  // 19 rows of padding for the other one
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.num_static_padding_rows, 3) << "24 rows, 21 of them tokens";
  EXPECT_FALSE(harness.submit()) << "both sequences wait for their tokens";
  EXPECT_EQ(harness.output.num_static_padding_rows, 0);
  harness.run();
  EXPECT_EQ(harness.executor.num_padding_rows(), 3 + 1) << "one more beside the second step's 2 + 21 tokens";
}

TEST(Task5_1_StaticBatching, PaddingThatABatchLeftIsNotTheNextOnes) {
  SchedulerConfig config = static_config();
  config.batch.max_num_seqs = 2;
  config.batch.max_num_batched_tokens = 24;
  Harness harness(config);
  for (const int64_t size : {1, 20, 4, 4}) harness.add(iota_prompt(size), greedy(1));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.num_static_padding_rows, 3) << "of 19 that two prompts of 20 would have";
  harness.collect();
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.total_num_tokens, 8);
  EXPECT_EQ(harness.output.num_static_padding_rows, 0) << "two prompts of 4";
  harness.collect();
}

TEST(Task5_1_StaticBatching, WithoutChunksAPromptThatWaitsLetsThoseAfterItGoOn) {
  SchedulerConfig config = static_config();
  config.enable_chunked_prefill = false;
  config.batch.max_num_batched_tokens = 256;
  Harness harness(config);
  for (const int64_t size : {200, 100, 30}) harness.add(iota_prompt(size), greedy(1));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.total_num_tokens, 200 + 30);
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_1_StaticBatching, NoBatchBeginsWhileAStepIsInFlight) {
  Harness harness(static_config(), 1);
  harness.add(iota_prompt(5), greedy(4));
  ASSERT_TRUE(harness.submit());
  harness.abort(0);  // nothing runs now
  harness.add(iota_prompt(3), greedy(4));
  EXPECT_FALSE(harness.submit());
  harness.collect();
  EXPECT_TRUE(harness.submit());
  harness.collect();
}

}  // namespace
}  // namespace ladder
