// Nobody starves: what each sequence gets while a long prompt is computed, counted in steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

int64_t num_tokens_of(const SchedulerOutput& output, SequenceId id) {
  for (const ScheduledSequence& scheduled : output.scheduled)
    if (scheduled.id == id) return scheduled.num_tokens;
  return 0;
}

SamplingParams with_priority(int64_t max_tokens, int32_t priority) {
  SamplingParams sampling = greedy(max_tokens);
  sampling.priority = priority;
  return sampling;
}

// Steps until sequence `id` has its first token, or 1000.
int64_t steps_to_first_token(Harness& harness, SequenceId id) {
  for (int64_t steps = 1; steps < 1000; ++steps) {
    if (!harness.submit()) break;
    harness.collect();
    if (!harness.results.at(id).output.empty()) return steps;
  }
  return 1000;
}

SchedulerConfig config_of(SchedulingPolicy policy) {
  SchedulerConfig config = small_config();
  config.policy = policy;
  config.batch.max_num_batched_tokens = 16;
  config.batch.max_num_seqs = 16;
  return config;
}

TEST(Task5_2_Fairness, EveryDecodeGetsATokenInEveryStepWhileAPromptIsComputed) {
  for (const SchedulingPolicy policy : {SchedulingPolicy::fcfs, SchedulingPolicy::priority}) {
    Harness harness(config_of(policy));
    for (int i = 0; i < 8; ++i) harness.add(iota_prompt(1, 10 * i), with_priority(100, 0));
    ASSERT_TRUE(harness.submit());
    harness.collect();
    harness.add(iota_prompt(200, 300), with_priority(2, -1));
    int64_t steps = 0;
    while (harness.results[8].output.empty()) {
      ASSERT_TRUE(harness.submit());
      for (SequenceId id = 0; id < 8; ++id)
        ASSERT_EQ(num_tokens_of(harness.output, id), 1) << "step " << steps;
      EXPECT_EQ(num_tokens_of(harness.output, 8), 8) << "the prompt gets all that the decodes leave";
      harness.collect();
      ASSERT_LE(++steps, 25);
    }
    EXPECT_EQ(steps, 25) << "200 tokens, 8 a step";
    harness.run();
    harness.expect_reference_outputs();
  }
}

TEST(Task5_2_Fairness, AnUrgentPromptIsComputedBeforeTheNextChunkOfALessUrgentOne) {
  Harness harness(config_of(SchedulingPolicy::priority));
  harness.add(iota_prompt(200), with_priority(2, 1));
  ASSERT_TRUE(harness.submit());
  harness.collect();
  harness.add(iota_prompt(5, 500), with_priority(2, 0));
  EXPECT_EQ(steps_to_first_token(harness, 1), 1);
  EXPECT_EQ(num_tokens_of(harness.output, 0), 11) << "the rest goes on with the long one";
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_Fairness, ALessUrgentPromptWaitsForTheChunksOfAMoreUrgentOne) {
  Harness harness(config_of(SchedulingPolicy::priority));
  harness.add(iota_prompt(40), with_priority(2, 0));
  harness.add(iota_prompt(5, 500), with_priority(2, 1));
  EXPECT_EQ(steps_to_first_token(harness, 1), 3) << "16, 16, 8 and 5";
  harness.run();
}

TEST(Task5_2_PartialPrefills, ByDefaultAPromptTakesAllThatIsLeftInTheOrderOfArrival) {
  Harness harness(config_of(SchedulingPolicy::fcfs));
  harness.add(iota_prompt(160), greedy(2));
  harness.add(iota_prompt(5, 500), greedy(2));
  EXPECT_EQ(steps_to_first_token(harness, 1), 11);
  harness.run();
}

TEST(Task5_2_PartialPrefills, AShortPromptPassesALongOneWhereTwoMayShare) {
  SchedulerConfig config = config_of(SchedulingPolicy::fcfs);
  config.max_num_partial_prefills = 2;
  Harness harness(config);
  EXPECT_EQ(harness.scheduler.config().long_prefill_token_threshold, 256 * 4 / 100);
  harness.add(iota_prompt(200), greedy(2));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(num_tokens_of(harness.output, 0), 16) << "alone it has all of the budget";
  harness.collect();
  harness.add(iota_prompt(5, 500), greedy(2));
  EXPECT_EQ(steps_to_first_token(harness, 1), 1);
  EXPECT_EQ(num_tokens_of(harness.output, 0), 11) << "and what the short one leaves";
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_PartialPrefills, LongPromptsShareEvenlyAndShortOnesPassThoseBeyondTheLimit) {
  SchedulerConfig config = config_of(SchedulingPolicy::fcfs);
  config.max_num_partial_prefills = 3;
  config.max_long_partial_prefills = 2;
  config.long_prefill_token_threshold = 20;
  Harness harness(config);
  for (int i = 0; i < 3; ++i) harness.add(iota_prompt(100, 200 * i), greedy(2));
  harness.add(iota_prompt(15, 700), greedy(2));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(num_tokens_of(harness.output, 0), 6) << "a third of 16";
  EXPECT_EQ(num_tokens_of(harness.output, 1), 5) << "half of the rest";
  EXPECT_EQ(num_tokens_of(harness.output, 2), 0) << "two long ones are at work";
  EXPECT_EQ(num_tokens_of(harness.output, 3), 5);
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_PartialPrefills, TheThresholdAloneLeavesRoomForShortPrompts) {
  SchedulerConfig config = config_of(SchedulingPolicy::fcfs);
  config.long_prefill_token_threshold = 6;
  Harness harness(config);
  harness.add(iota_prompt(100), greedy(2));
  harness.add(iota_prompt(100, 200), greedy(2));
  harness.add(iota_prompt(4, 700), greedy(2));
  EXPECT_EQ(steps_to_first_token(harness, 2), 1);
  EXPECT_EQ(num_tokens_of(harness.output, 0), 12) << "6, and what no other could use";
  EXPECT_EQ(num_tokens_of(harness.output, 1), 0) << "one partial prefill at a time";
  harness.run();
  harness.expect_reference_outputs();
}

// Long ones keep their order: after one that waits none is asked, not even one that is short but for its hits.
TEST(Task5_2_PartialPrefills, AfterALongOneThatWaitsOnlyShortOnesAreAdmitted) {
  SchedulerConfig config = config_of(SchedulingPolicy::fcfs);
  config.long_prefill_token_threshold = 8;
  Harness harness(config);
  harness.add(iota_prompt(40, 500), greedy(1));
  harness.run();
  const SequenceId at_work = harness.add(iota_prompt(30), greedy(1))[0];
  const SequenceId waits = harness.add(iota_prompt(30, 100), greedy(1))[0];
  const SequenceId is_short = harness.add(iota_prompt(2, 200), greedy(1))[0];
  const SequenceId cached = harness.add(iota_prompt(40, 500), greedy(1))[0];  // 36 of its tokens
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(num_tokens_of(harness.output, at_work), 8 + 6) << "the threshold, and what is left in the end";
  EXPECT_EQ(num_tokens_of(harness.output, waits), 0) << "one partial prefill at a time";
  EXPECT_EQ(num_tokens_of(harness.output, is_short), 2);
  EXPECT_EQ(num_tokens_of(harness.output, cached), 0) << "its turn comes after the one that waits";
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

SchedulerConfig two_walks_config(int64_t budget, int64_t num_blocks) {
  SchedulerConfig config = small_config();  // 4 tokens a block
  config.batch.max_num_batched_tokens = budget;
  config.batch.num_kv_blocks = num_blocks;
  config.watermark = 0;
  config.long_prefill_token_threshold = 8;
  return config;
}

TEST(Task5_2_Promises, ARunningPromptThatGetsNoTokenIsPromisedItsBlocks) {
  SchedulerConfig config = two_walks_config(10, 20);
  config.policy = SchedulingPolicy::priority;
  Harness harness(config);
  harness.add(iota_prompt(40), with_priority(1, 1));  // 10 blocks in all, 3 after the first step
  ASSERT_TRUE(harness.submit());
  harness.collect();
  harness.add(iota_prompt(40, 100), with_priority(1, 0));  // goes first, and is promised 10 blocks
  harness.add(iota_prompt(2, 200), with_priority(1, 2));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(num_tokens_of(harness.output, 0), 0) << "one partial prefill at a time";
  EXPECT_EQ(num_tokens_of(harness.output, 2), 0) << "all free blocks are promised to the two long ones";
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_Promises, BeginAnewInTheSecondWalk) {
  Harness harness(two_walks_config(64, 9));
  harness.add(iota_prompt(16), greedy(1));
  harness.add(iota_prompt(16, 100), greedy(1));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(num_tokens_of(harness.output, 0), 16);
  EXPECT_EQ(num_tokens_of(harness.output, 1), 16) << "5 blocks are free, and none is promised any more";
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_ShortOfBlocks, ANewcomerThatIsRefusedLeavesTheRestToThoseThatWereCut) {
  SchedulerConfig config = two_walks_config(32, 12);
  config.max_num_partial_prefills = config.max_long_partial_prefills = 2;
  Harness harness(config);
  harness.add(iota_prompt(40), greedy(1));
  harness.add(iota_prompt(40, 100), greedy(1));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(num_tokens_of(harness.output, 0), 32) << "8, and in the second walk the rest";
  EXPECT_EQ(num_tokens_of(harness.output, 1), 0) << "20 blocks needed for both, 12 are there";
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_ShortOfBlocks, ANewcomerDoesNotOvertakeWhoFindsNoBlocksInTheSecondWalk) {
  Harness harness(two_walks_config(20, 16));
  harness.add(iota_prompt(60), greedy(1));
  ASSERT_TRUE(harness.submit());
  harness.collect();
  BlockTable held;
  ASSERT_TRUE(harness.scheduler.block_manager().append(held, 7 * 4));  // 4 are free
  harness.add(iota_prompt(3, 100), greedy(1));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(num_tokens_of(harness.output, 0), 8) << "then 2 blocks are free, and 12 more tokens need 3";
  EXPECT_EQ(num_tokens_of(harness.output, 1), 0) << "the blocks that are left are not for a newcomer";
  harness.scheduler.block_manager().free(held);
  harness.collect();
}

TEST(Task5_2_ShortOfBlocks, NoSecondWalkIntoTheRoomThatAPreemptionMade) {
  SchedulerConfig config = two_walks_config(36, 20);
  config.long_prefill_token_threshold = 16;
  Harness harness(config);
  harness.add(iota_prompt(40), greedy(4));
  harness.add(iota_prompt(4, 100), greedy(4));
  harness.add(iota_prompt(16, 200), greedy(4));
  ASSERT_TRUE(harness.submit());
  ASSERT_EQ(harness.output.total_num_tokens, 36);
  harness.collect();
  BlockTable held;
  ASSERT_TRUE(harness.scheduler.block_manager().append(held, 7 * 4));  // 4 are free
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.preempted, (std::vector<SequenceId>{2})) << "for the next token of sequence 1";
  EXPECT_EQ(num_tokens_of(harness.output, 0), 16) << "a chunk of the first walk, and no other";
  EXPECT_EQ(num_tokens_of(harness.output, 1), 1);
  harness.scheduler.block_manager().free(held);
  harness.collect();
}

// A limit says who comes first. It never leaves budget unused: as many steps with any limits as without.
TEST(Task5_2_PartialPrefills, LimitsNeverMakeAStepSmaller) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    SchedulerConfig config = config_of(random() % 2 ? SchedulingPolicy::fcfs : SchedulingPolicy::priority);
    config.batch.max_num_batched_tokens = 8 + random() % 40;
    config.max_num_partial_prefills = 1 + random() % 4;
    config.max_long_partial_prefills = 1 + random() % config.max_num_partial_prefills;
    config.long_prefill_token_threshold = random() % 60;
    Harness harness(config);
    for (int i = 0; i < 12; ++i)
      harness.add(iota_prompt(1 + random() % (random() % 2 ? 10 : 120), 60 * i),
                  with_priority(1, static_cast<int32_t>(random() % 3)));
    while (harness.submit()) {
      if (harness.scheduler.stats().num_waiting > 0) {
        EXPECT_EQ(harness.output.total_num_tokens, config.batch.max_num_batched_tokens);
      }
      harness.collect();
    }
    harness.expect_empty();
    harness.expect_reference_outputs();
  }
}

// In every step of a random day each decode has its token, or was preempted for it.
TEST(Task5_2_Fairness, NoDecodeEverWaitsOnRandomDays) {
  int64_t num_decodes = 0, num_mixed_steps = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    SchedulerConfig config = config_of(random() % 2 ? SchedulingPolicy::fcfs : SchedulingPolicy::priority);
    config.batch.max_num_seqs = 1 + random() % 12;
    config.batch.max_num_batched_tokens = config.batch.max_num_seqs + random() % 20;
    config.max_num_partial_prefills = 1 + random() % 3;
    config.max_long_partial_prefills = 1 + random() % config.max_num_partial_prefills;
    config.long_prefill_token_threshold = random() % 30;
    config.batch.num_kv_blocks = 30 + random() % 60;
    config.watermark = random() % 2 ? 0.05 : 0;
    Harness harness(config);
    for (int event = 0; event < 120; ++event) {
      if (random() % 4 == 0)
        harness.add(iota_prompt(1 + random() % (random() % 3 ? 20 : 80), 100 * (random() % 3)),
                    with_priority(1 + random() % 20, static_cast<int32_t>(random() % 3)));
      std::vector<SequenceId> decoding;
      for (const auto& [id, result] : harness.results) {
        const Sequence* sequence = harness.scheduler.find(id);
        if (sequence != nullptr && sequence->status == SequenceStatus::running &&
            sequence->num_uncomputed_tokens() == 1)
          decoding.push_back(id);
      }
      if (!harness.submit()) continue;
      for (const SequenceId id : decoding) {
        if (harness.scheduler.find(id)->status == SequenceStatus::preempted) continue;
        ASSERT_EQ(num_tokens_of(harness.output, id), 1) << "sequence " << id;
      }
      num_decodes += std::ssize(decoding);
      num_mixed_steps += !decoding.empty() && harness.output.total_num_tokens > std::ssize(decoding);
      harness.collect();
    }
    harness.run();
    harness.expect_reference_outputs();
    if (HasFailure()) return;
  }
  EXPECT_GT(num_decodes, 1000);
  EXPECT_GT(num_mixed_steps, 1000);
}

TEST(SchedulerChecks, RefusesLimitsThatDoNotFitEachOther) {
  const auto expect_error = [](void (*change)(SchedulerConfig&), const std::string& field) {
    SchedulerConfig config = small_config();
    change(config);
    try {
      Scheduler scheduler(config);
      ADD_FAILURE() << "accepted: " << field;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
  };
  expect_error([](SchedulerConfig& c) { c.max_num_partial_prefills = 0; }, "max-num-partial-prefills");
  expect_error(
      [](SchedulerConfig& c) {
        c.max_num_partial_prefills = 2;
        c.enable_chunked_prefill = false;
        c.batch.max_num_batched_tokens = c.batch.max_model_len;
      },
      "max-num-partial-prefills");
  expect_error([](SchedulerConfig& c) { c.max_long_partial_prefills = 0; }, "max-long-partial-prefills");
  expect_error([](SchedulerConfig& c) { c.max_long_partial_prefills = 2; }, "max-long-partial-prefills");
  expect_error([](SchedulerConfig& c) { c.long_prefill_token_threshold = -1; },
               "long-prefill-token-threshold");
  expect_error([](SchedulerConfig& c) { c.long_prefill_token_threshold = c.batch.max_model_len + 1; },
               "long-prefill-token-threshold");
  expect_error([](SchedulerConfig& c) { c.watermark = 1; }, "watermark");
  expect_error([](SchedulerConfig& c) { c.watermark = -0.1; }, "watermark");
  expect_error([](SchedulerConfig& c) { c.max_logprobs = -2; }, "max-logprobs");
}

}  // namespace
}  // namespace ladder
