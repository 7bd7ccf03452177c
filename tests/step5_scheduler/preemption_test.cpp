// Preemption in the whole scheduler (task 5.3 by itself: allocate_slots_test.cpp).
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

// Two sequences of 8 prompt tokens fill the cache; both want to grow.
SchedulerConfig tight_config() {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 5;
  config.enable_prefix_caching = false;
  return config;
}

TEST(Task5_2_Preemption, TheLatestGivesWayAndKeepsItsTokens) {
  Harness harness(tight_config());
  harness.add(iota_prompt(8, 1), greedy(8));
  harness.add(iota_prompt(8, 100), greedy(8));
  harness.add(iota_prompt(5, 200), greedy(2));
  ASSERT_TRUE(harness.submit());
  harness.collect();
  ASSERT_TRUE(harness.submit())
      << "the third does not fit; the fifth block goes to the first, the second has none";
  EXPECT_EQ(harness.output.preempted, (std::vector<SequenceId>{1}));
  ASSERT_EQ(harness.output.scheduled.size(), 1u);
  EXPECT_EQ(harness.output.scheduled[0].id, 0);
  EXPECT_EQ(harness.scheduler.find(1)->status, SequenceStatus::preempted);
  EXPECT_EQ(harness.scheduler.find(1)->num_output_tokens(), 1);
  EXPECT_EQ(harness.scheduler.find(1)->num_computed_tokens, 0);
  EXPECT_TRUE(harness.scheduler.find(1)->block_table.empty());
  harness.collect();
  harness.run();
  EXPECT_EQ(harness.results[1].num_preemptions, 1);
  EXPECT_EQ(harness.results[0].num_preemptions, 0);
  harness.expect_reference_outputs();
}

// nano-vllm #144: a sequence that comes back was taken for a decoding one.
TEST(Task5_2_Preemption, AResumedSequenceIsComputedAnewWithAllItsTokens) {
  Harness harness(tight_config());
  harness.add(iota_prompt(8, 1), greedy(8));
  harness.add(iota_prompt(8, 100), greedy(8));
  bool resumed = false;
  while (harness.submit()) {
    for (const NewSequence& added : harness.output.new_sequences)
      if (added.id == 1 && added.token_ids.size() > 8) {
        resumed = true;
        EXPECT_EQ(added.num_prompt_tokens, 8);
        EXPECT_EQ(added.num_computed_tokens, 0);
        EXPECT_EQ(harness.output.scheduled.back().num_tokens, std::ssize(added.token_ids));
      }
    harness.collect();
  }
  EXPECT_TRUE(resumed);
  harness.expect_empty();
  harness.expect_reference_outputs();
}

TEST(Task5_2_Preemption, AResumedSequenceFindsItsOwnBlocksInTheCache) {
  SchedulerConfig config = tight_config();
  config.enable_prefix_caching = true;
  config.batch.num_kv_blocks = 6;
  Harness harness(config);
  harness.add(iota_prompt(8, 1), greedy(10));
  harness.add(iota_prompt(11, 100), greedy(10));
  int64_t computed_on_return = -1;
  while (harness.submit()) {
    for (const NewSequence& added : harness.output.new_sequences)
      if (added.id == 1 && added.token_ids.size() > 11) computed_on_return = added.num_computed_tokens;
    harness.collect();
  }
  EXPECT_GT(computed_on_return, 0);
  harness.expect_reference_outputs();
}

TEST(Task5_2_Preemption, PreemptedSequencesGoBeforeThoseThatNeverRan) {
  Harness harness(tight_config());
  harness.add(iota_prompt(8, 1), greedy(6));
  harness.add(iota_prompt(8, 100), greedy(6));
  harness.add(iota_prompt(5, 200), greedy(2));
  std::vector<SequenceId> admitted;
  while (harness.submit()) {
    for (const NewSequence& added : harness.output.new_sequences) admitted.push_back(added.id);
    harness.collect();
  }
  EXPECT_EQ(admitted, (std::vector<SequenceId>{0, 1, 1, 2}));
  harness.expect_reference_outputs();
}

TEST(Task5_2_Preemption, ASequenceThatNeedsRoomAndIsTheLatestPreemptsItself) {
  SchedulerConfig config = tight_config();
  config.batch.num_kv_blocks = 4;
  Harness harness(config);
  harness.add(iota_prompt(7, 1), greedy(9));
  harness.add(iota_prompt(8, 100), greedy(8));
  ASSERT_TRUE(harness.submit());
  harness.collect();
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.preempted, (std::vector<SequenceId>{1}));
  ASSERT_EQ(harness.output.scheduled.size(), 1u);
  EXPECT_EQ(harness.output.scheduled[0].id, 0);
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_Preemption, UnderPriorityTheLeastImportantGivesWay) {
  SchedulerConfig config = tight_config();
  config.policy = SchedulingPolicy::priority;
  Harness harness(config);
  SamplingParams low = greedy(8), high = greedy(8);
  low.priority = 5;
  high.priority = -1;
  harness.add(iota_prompt(8, 1), low);
  harness.add(iota_prompt(8, 100), high);
  ASSERT_TRUE(harness.submit());
  harness.collect();
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.preempted, (std::vector<SequenceId>{0}));
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

// Every sequence alone needs nearly the whole cache, so they can only run one after the other.
TEST(Task5_2_Preemption, ManyLargeSequencesInASmallCacheAllEnd) {
  for (const int delay : {0, 1, 2}) {
    SchedulerConfig config = tight_config();
    config.batch.num_kv_blocks = 12;
    Harness harness(config, delay);
    for (int i = 0; i < 8; ++i) harness.add(iota_prompt(4, 100 * i), greedy(44));
    harness.run();
    harness.expect_reference_outputs();
    EXPECT_GT(harness.scheduler.stats().num_preemptions, 0);
  }
}

TEST(Task5_2_Preemption, ANewcomerIsNotAdmittedIntoTheRoomThatWasMade) {
  Harness harness(tight_config());
  harness.add(iota_prompt(8, 1), greedy(8));
  harness.add(iota_prompt(8, 100), greedy(8));
  ASSERT_TRUE(harness.submit());
  harness.collect();
  harness.add(iota_prompt(2, 200), greedy(1));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.preempted, (std::vector<SequenceId>{1}));
  EXPECT_TRUE(harness.output.new_sequences.empty());
  harness.collect();
  harness.run();
}

// The first request stops, and its blocks are still being written by a step in flight. The second needs two,
// one is free: it waits, and so does the third, for which one would be enough.
TEST(Task5_2_Preemption, ANewcomerDoesNotOvertakeASequenceThatWaitsForBlocks) {
  SchedulerConfig config = tight_config();
  config.batch.num_kv_blocks = 8;
  config.batch.max_num_batched_tokens = 12;
  Harness harness(config, 1);
  SamplingParams stopping = greedy(4);
  stopping.stop_token_ids = reference_output(iota_prompt(8), greedy(1), 7, config.vocab_size, 256, {});
  harness.add(iota_prompt(8), stopping);
  harness.add(iota_prompt(24, 100), greedy(2));
  ASSERT_TRUE(harness.submit());
  ASSERT_TRUE(harness.submit());
  harness.add(iota_prompt(2, 200), greedy(1));
  harness.collect();
  EXPECT_EQ(harness.results[0].reason, FinishReason::stop);
  EXPECT_EQ(harness.scheduler.blocks().num_free_blocks(), 1);
  EXPECT_FALSE(harness.submit());
  EXPECT_EQ(harness.scheduler.stats().num_preemptions, 0) << "blocks are on their way";
  harness.collect();
  EXPECT_EQ(harness.scheduler.blocks().num_free_blocks(), 4);
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.scheduled.size(), 2u);
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_Preemption, PromptLogprobsAreToldOnceThoughComputedTwice) {
  SchedulerConfig config = tight_config();
  config.enable_prefix_caching = true;
  config.batch.num_kv_blocks = 6;
  config.batch.max_num_batched_tokens = 8;
  Harness harness(config);
  harness.add(iota_prompt(4, 1), greedy(20));
  SamplingParams sampling = greedy(8);
  sampling.prompt_logprobs = 0;
  harness.add(iota_prompt(15, 100), sampling);
  harness.run();
  EXPECT_GT(harness.results[1].num_preemptions, 0);
  ASSERT_EQ(harness.results[1].prompt_logprobs.size(), 14u);
  for (int i = 0; i < 14; ++i) EXPECT_EQ(harness.results[1].prompt_logprobs[i].chosen.token_id, 101 + i);
}

TEST(Task5_2_Preemption, APreemptedSequenceKeepsTheTokenThatWasInFlight) {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 5;
  config.enable_prefix_caching = false;
  Harness harness(config, 1);
  harness.add(iota_prompt(8, 1), greedy(8));
  harness.add(iota_prompt(8, 100), greedy(8));
  ASSERT_TRUE(harness.submit());
  ASSERT_TRUE(harness.submit());  // one block is left for two sequences: the second gives way
  EXPECT_EQ(harness.scheduler.find(1)->status, SequenceStatus::preempted);
  EXPECT_EQ(harness.scheduler.find(1)->num_output_tokens(), 0);
  EXPECT_EQ(harness.scheduler.blocks().num_used_blocks(), 5) << "not given back before its step is done";
  harness.collect();
  EXPECT_EQ(harness.scheduler.find(1)->num_output_tokens(), 1);
  EXPECT_EQ(harness.scheduler.blocks().num_used_blocks(), 3);
  harness.run();
  harness.expect_reference_outputs();
}

}  // namespace
}  // namespace ladder
