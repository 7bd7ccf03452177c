// Task 5.2.admit by itself: how large a chunk is, what a sequence shares, what it takes to let it run.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

using Admission = OpenScheduler::Admission;
using Budget = OpenScheduler::Budget;

Budget budget_of(int64_t num_tokens) {
  Budget budget;
  budget.prefill = num_tokens;
  return budget;
}

SchedulerConfig config_of(int64_t num_blocks) {
  SchedulerConfig config = small_config();  // 4 tokens a block
  config.batch.num_kv_blocks = num_blocks;
  config.watermark = 0;
  return config;
}

// The cache knows the full blocks of these tokens, and nobody holds them.
void fill_cache(OpenScheduler& scheduler, const std::vector<int32_t>& tokens) {
  PrefixKey key;
  BlockTable table;
  ASSERT_TRUE(scheduler.block_manager().append(table, std::ssize(tokens)));
  scheduler.block_manager().cache(key, tokens, table, std::ssize(tokens));
  scheduler.block_manager().free(table);
}

TEST(Task5_2_AdmitChunks, APromptThatFitsIsNotCut) {
  const OpenScheduler scheduler(small_config());
  Budget budget = budget_of(16);
  EXPECT_EQ(scheduler.chunk_size(16, budget), 16);
  EXPECT_FALSE(budget.limited);
  scheduler.take(16, 16, budget);
  EXPECT_EQ(budget.prefill, 0);
  EXPECT_EQ(budget.num_partial, 0) << "it was not cut";
}

TEST(Task5_2_AdmitChunks, OneThatDoesNotFitGetsTheRestAndTheNextOneWaits) {
  const OpenScheduler scheduler(small_config());
  Budget budget = budget_of(16);
  EXPECT_EQ(scheduler.chunk_size(17, budget), 16);
  EXPECT_TRUE(budget.limited);
  scheduler.take(17, 12, budget);  // as if there had been blocks for 12
  EXPECT_EQ(budget.prefill, 4);
  EXPECT_EQ(budget.num_partial, 1);
  EXPECT_EQ(scheduler.chunk_size(5, budget), 0) << "one prompt is cut in a step, max_num_partial_prefills";
  EXPECT_EQ(scheduler.chunk_size(4, budget), 4) << "this one need not be cut";
}

TEST(Task5_2_AdmitChunks, WithoutChunkedPrefillNothingIsCut) {
  SchedulerConfig config = small_config();
  config.enable_chunked_prefill = false;
  config.batch.max_num_batched_tokens = config.batch.max_model_len;
  const OpenScheduler scheduler(config);
  Budget budget = budget_of(16);
  EXPECT_EQ(scheduler.chunk_size(17, budget), 0);
  EXPECT_EQ(scheduler.chunk_size(16, budget), 16);
}

TEST(Task5_2_AdmitChunks, ThoseThatAreCutGetEvenSharesRoundedUp) {
  SchedulerConfig config = small_config();
  config.max_num_partial_prefills = 3;
  config.max_long_partial_prefills = 3;
  config.long_prefill_token_threshold = 200;
  const OpenScheduler scheduler(config);
  Budget budget = budget_of(16);
  for (const int64_t share : {6, 5, 5}) {
    ASSERT_EQ(scheduler.chunk_size(100, budget), share);
    scheduler.take(100, share, budget);
  }
  EXPECT_EQ(budget.prefill, 0);
  EXPECT_EQ(budget.num_partial, 3);
  EXPECT_EQ(budget.num_long, 0) << "none lacks more than 200 tokens";
}

TEST(Task5_2_AdmitChunks, LongOnesGetNoMoreThanTheThresholdAndNoMoreOfThemThanAllowed) {
  SchedulerConfig config = small_config();
  config.max_num_partial_prefills = 3;
  config.max_long_partial_prefills = 1;
  config.long_prefill_token_threshold = 10;
  const OpenScheduler scheduler(config);
  Budget budget = budget_of(60);
  EXPECT_EQ(scheduler.chunk_size(10, budget), 10) << "not long: it lacks no more than the threshold";
  EXPECT_FALSE(budget.limited);
  EXPECT_EQ(scheduler.chunk_size(11, budget), 10) << "it would fit, but it is long";
  EXPECT_TRUE(budget.limited);
  scheduler.take(11, 10, budget);
  EXPECT_EQ(budget.num_long, 1);
  EXPECT_EQ(scheduler.chunk_size(11, budget), 0) << "one long one is at work";
  EXPECT_EQ(scheduler.chunk_size(9, budget), 9);

  budget.with_limits = false;  // the second walk
  EXPECT_EQ(scheduler.chunk_size(11, budget), 11);
  EXPECT_EQ(scheduler.chunk_size(100, budget), 50) << "all that is left";
}

TEST(Task5_2_Admit, TakesBlocksForTheFirstChunkAndPromisesTheRest) {
  OpenScheduler scheduler(config_of(10));
  scheduler.add(iota_prompt(37), greedy(2));
  Sequence& sequence = scheduler.sequence(0);
  Budget budget = budget_of(16);
  EXPECT_EQ(scheduler.admit(sequence, budget), Admission::admitted);
  EXPECT_EQ(sequence.status, SequenceStatus::running);
  EXPECT_EQ(scheduler.running_, (std::vector<Sequence*>{&sequence}));
  EXPECT_TRUE(scheduler.waiting_.empty());
  EXPECT_EQ(sequence.block_table.size(), 4u);
  EXPECT_EQ(sequence.num_computed_tokens, 16);
  ASSERT_EQ(scheduler.plan_.size(), 1u);
  EXPECT_EQ(scheduler.plan_[0].num_tokens, 16);
  EXPECT_EQ(budget.prefill, 0);
  EXPECT_EQ(budget.num_partial, 1);
  EXPECT_EQ(budget.num_promised_blocks, 6) << "10 blocks hold 37 tokens";
}

void expect_waiting_still(OpenScheduler& scheduler, Sequence& sequence, const Budget& budget,
                          int64_t prefill) {
  EXPECT_EQ(sequence.status, SequenceStatus::waiting);
  EXPECT_TRUE(sequence.block_table.empty());
  EXPECT_EQ(sequence.num_computed_tokens, 0);
  EXPECT_EQ(std::count(scheduler.running_.begin(), scheduler.running_.end(), &sequence), 0);
  EXPECT_EQ(budget.prefill, prefill);
  EXPECT_EQ(budget.num_partial, 0);
  bool found = false;
  for (Sequence* other = scheduler.waiting_.next(); other != nullptr; other = scheduler.waiting_.next(other))
    found |= other == &sequence;
  EXPECT_TRUE(found) << "it is in the queue";
  expect_books_balance(scheduler);
}

TEST(Task5_2_Admit, RefusesAFirstChunkWhereNotAllOfItWouldFit) {
  OpenScheduler scheduler(config_of(10));
  BlockTable others;
  ASSERT_TRUE(scheduler.block_manager().append(others, 4));
  scheduler.add(iota_prompt(37), greedy(2));
  Budget budget = budget_of(16);
  EXPECT_EQ(scheduler.admit(scheduler.sequence(0), budget), Admission::refused)
      << "9 blocks are free, 10 needed";
  scheduler.block_manager().free(others);
  expect_waiting_still(scheduler, scheduler.sequence(0), budget, 16);
  EXPECT_EQ(scheduler.admit(scheduler.sequence(0), budget), Admission::admitted);
}

TEST(Task5_2_Admit, LeavesTheWatermarkAndWhatIsPromisedFreeWhileOthersRun) {
  for (const auto& [watermark, promised, expected] :
       {std::tuple{0.0, 0, Admission::admitted}, std::tuple{0.2, 0, Admission::admitted},
        std::tuple{0.0, 4, Admission::admitted}, std::tuple{0.3, 0, Admission::refused},
        std::tuple{0.0, 5, Admission::refused}, std::tuple{0.2, 3, Admission::refused}}) {
    SchedulerConfig config = config_of(20);  // 0.2 of it: 4 blocks
    config.watermark = watermark;
    OpenScheduler scheduler(config);
    scheduler.add(iota_prompt(40), greedy(2));
    scheduler.add(iota_prompt(24, 100), greedy(2));
    Budget budget = budget_of(64);
    ASSERT_EQ(scheduler.admit(scheduler.sequence(0), budget), Admission::admitted);
    budget.num_promised_blocks = promised;
    EXPECT_EQ(scheduler.admit(scheduler.sequence(1), budget), expected)
        << "10 blocks are free, 6 needed; watermark " << watermark << ", promised " << promised;
  }
  // Alone it needs no headroom: what fits the cache runs.
  SchedulerConfig config = config_of(10);
  config.watermark = 0.5;
  OpenScheduler scheduler(config);
  scheduler.add(iota_prompt(37), greedy(2));
  Budget budget = budget_of(64);
  EXPECT_EQ(scheduler.admit(scheduler.sequence(0), budget), Admission::admitted);
}

TEST(Task5_2_Admit, WithoutAChunkALongOneLetsShortOnesPassAndAShortOneNobody) {
  SchedulerConfig config = config_of(100);
  config.long_prefill_token_threshold = 20;
  OpenScheduler scheduler(config);
  scheduler.add(iota_prompt(21), greedy(2));
  scheduler.add(iota_prompt(20, 100), greedy(2));
  Budget budget = budget_of(8);
  budget.num_partial = 1;  // as many as may be cut were cut
  EXPECT_EQ(scheduler.admit(scheduler.sequence(0), budget), Admission::too_long);
  EXPECT_EQ(scheduler.admit(scheduler.sequence(1), budget), Admission::refused);
}

// Short of blocks is a step in which a running sequence lacks them.
TEST(Task5_2_Admit, OneThatIsRefusedDoesNotMakeTheStepShortOfBlocks) {
  OpenScheduler scheduler(config_of(10));
  scheduler.add(iota_prompt(20), greedy(2));
  scheduler.add(iota_prompt(30, 100), greedy(2));
  Budget budget = budget_of(64);
  ASSERT_EQ(scheduler.admit(scheduler.sequence(0), budget), Admission::admitted);
  ASSERT_EQ(scheduler.admit(scheduler.sequence(1), budget), Admission::refused) << "8 blocks needed, 5 free";
  EXPECT_FALSE(budget.short_of_blocks);
}

// It was preempted while a token was being sampled: computed without that token it would be given another.
TEST(Task5_2_Admit, WaitsForATokenThatIsBeingSampled) {
  OpenScheduler scheduler(config_of(100));
  scheduler.add(iota_prompt(8), greedy(4));
  Sequence& sequence = scheduler.sequence(0);
  sequence.num_placeholders = 1;
  Budget budget = budget_of(16);
  EXPECT_EQ(scheduler.admit(sequence, budget), Admission::refused);
  expect_waiting_still(scheduler, sequence, budget, 16);
}

TEST(Task5_2_Admit, ComputesWhatFollowsACachedPrefixAndCountsTheHitOnce) {
  OpenScheduler scheduler(config_of(100));
  fill_cache(scheduler, iota_prompt(11));  // two full blocks
  scheduler.add(iota_prompt(11), greedy(2));
  Sequence& sequence = scheduler.sequence(0);
  Budget budget = budget_of(16);
  EXPECT_EQ(scheduler.admit(sequence, budget), Admission::admitted);
  ASSERT_EQ(scheduler.plan_.size(), 1u);
  EXPECT_EQ(scheduler.plan_[0].num_tokens, 3);
  EXPECT_EQ(sequence.num_computed_tokens, 11);
  EXPECT_EQ(sequence.block_table.size(), 3u);
  EXPECT_EQ(sequence.prefix.num_indexed_blocks, 2) << "of its table, found in the index";
  EXPECT_EQ(budget.prefill, 13);
  EXPECT_EQ(sequence.num_cached_tokens, 8);
  EXPECT_EQ(scheduler.stats().num_prefix_hit_tokens, 8);
  EXPECT_EQ(scheduler.stats().num_prefix_queried_tokens, 11);

  // One that comes back is no second question.
  scheduler.add(iota_prompt(11), greedy(2));
  scheduler.sequence(1).num_preemptions = 1;
  EXPECT_EQ(scheduler.admit(scheduler.sequence(1), budget), Admission::admitted);
  EXPECT_EQ(scheduler.sequence(1).num_computed_tokens, 11);
  EXPECT_EQ(scheduler.sequence(1).num_cached_tokens, 0);
  EXPECT_EQ(scheduler.stats().num_prefix_queried_tokens, 11);
}

TEST(Task5_2_AdmitSharing, ScoringAPromptSharesNothing) {
  OpenScheduler scheduler(config_of(100));
  fill_cache(scheduler, iota_prompt(12));
  SamplingParams sampling = greedy(2);
  sampling.prompt_logprobs = 0;
  scheduler.add(iota_prompt(12), sampling);
  BlockTable shared{1, 2, 3};
  EXPECT_TRUE(scheduler.find_shared_blocks(scheduler.sequence(0), shared));
  EXPECT_TRUE(shared.empty());
}

// Three completions of a prompt, without the prefix cache.
class Siblings {
 public:
  explicit Siblings(int64_t num_prompt_tokens, bool prefix_caching = false)
      : scheduler(config_with(prefix_caching)) {
    SamplingParams sampling = greedy(8);
    sampling.n = 3;
    scheduler.add(iota_prompt(num_prompt_tokens), sampling);
  }

  OpenScheduler scheduler;
  Budget budget = budget_of(1000);

 private:
  static SchedulerConfig config_with(bool prefix_caching) {
    SchedulerConfig config = config_of(100);
    config.enable_prefix_caching = prefix_caching;
    return config;
  }
};

TEST(Task5_2_AdmitSharing, TheFullBlocksOfThePromptOfAnyRunningCompletion) {
  for (const int64_t first : {0, 1, 2}) {
    Siblings siblings(10);
    OpenScheduler& scheduler = siblings.scheduler;
    ASSERT_EQ(scheduler.admit(scheduler.sequence(first), siblings.budget), Admission::admitted);
    const BlockTable prompt = scheduler.sequence(first).block_table;
    ASSERT_EQ(prompt.size(), 3u);
    for (SequenceId id = 0; id < 3; ++id) {
      if (id == first) continue;
      ASSERT_EQ(scheduler.admit(scheduler.sequence(id), siblings.budget), Admission::admitted);
      const Sequence& sequence = scheduler.sequence(id);
      EXPECT_EQ(scheduler.plan_.back().num_tokens, 2) << "sequence " << id << " after sequence " << first;
      ASSERT_EQ(sequence.block_table.size(), 3u);
      EXPECT_EQ(sequence.block_table[0], prompt[0]);
      EXPECT_EQ(sequence.block_table[1], prompt[1]);
      EXPECT_NE(sequence.block_table[2], prompt[2]) << "each will write its own tokens after the prompt's";
      EXPECT_EQ(sequence.num_cached_tokens, 8);
    }
    EXPECT_EQ(scheduler.blocks().num_used_blocks(), 2 + 3);
  }
}

TEST(Task5_2_AdmitSharing, NeverAllTokensOfAPrompt) {
  Siblings siblings(8);
  OpenScheduler& scheduler = siblings.scheduler;
  ASSERT_EQ(scheduler.admit(scheduler.sequence(0), siblings.budget), Admission::admitted);
  ASSERT_EQ(scheduler.admit(scheduler.sequence(1), siblings.budget), Admission::admitted);
  EXPECT_EQ(scheduler.plan_.back().num_tokens, 4) << "the last block is computed by each: logits need a row";
}

TEST(Task5_2_AdmitSharing, OneWhoseSiblingIsInTheMiddleOfThePromptIsPassedOver) {
  Siblings siblings(41);
  OpenScheduler& scheduler = siblings.scheduler;
  Budget budget = budget_of(16);
  ASSERT_EQ(scheduler.admit(scheduler.sequence(0), budget), Admission::admitted);
  ASSERT_EQ(scheduler.sequence(0).num_computed_tokens, 16);
  budget = budget_of(100);
  EXPECT_EQ(scheduler.admit(scheduler.sequence(1), budget), Admission::passed_over);
  expect_waiting_still(scheduler, scheduler.sequence(1), budget, 100);
  scheduler.sequence(0).num_computed_tokens = 40;  // its full blocks are there
  ASSERT_TRUE(scheduler.block_manager().append(scheduler.sequence(0).block_table, 40));
  EXPECT_EQ(scheduler.admit(scheduler.sequence(1), budget), Admission::admitted);
  EXPECT_EQ(scheduler.sequence(1).num_cached_tokens, 40);
}

TEST(Task5_2_AdmitSharing, OneWhoseSiblingHasNoFullBlockYetIsPassedOver) {
  Siblings siblings(41);
  OpenScheduler& scheduler = siblings.scheduler;
  Budget budget = budget_of(3);
  ASSERT_EQ(scheduler.admit(scheduler.sequence(0), budget), Admission::admitted);
  ASSERT_EQ(scheduler.sequence(0).num_computed_tokens, 3);
  budget = budget_of(100);
  EXPECT_EQ(scheduler.admit(scheduler.sequence(1), budget), Admission::passed_over)
      << "it would compute all ten blocks of the prompt too";
}

TEST(Task5_2_AdmitSharing, OneThatWaitsForASiblingTakesAWholeCachedPromptInstead) {
  Siblings siblings(41, true);
  OpenScheduler& scheduler = siblings.scheduler;
  Budget budget = budget_of(16);
  ASSERT_EQ(scheduler.admit(scheduler.sequence(0), budget), Admission::admitted);
  BlockTable shared;
  EXPECT_FALSE(scheduler.find_shared_blocks(scheduler.sequence(1), shared));
  fill_cache(scheduler, iota_prompt(40));
  EXPECT_TRUE(scheduler.find_shared_blocks(scheduler.sequence(1), shared));
  EXPECT_EQ(shared.size(), 10u);
}

// A look-up of the cache leaves its count in the key; blocks of a sibling are no blocks that were looked up.
TEST(Task5_2_AdmitSharing, TheKeyCountsNoBlocksOfASibling) {
  Siblings siblings(10, true);
  OpenScheduler& scheduler = siblings.scheduler;
  ASSERT_EQ(scheduler.admit(scheduler.sequence(0), siblings.budget), Admission::admitted);
  Sequence& sequence = scheduler.sequence(1);
  sequence.prefix.num_indexed_blocks = 1;
  sequence.prefix.last_entry = 5;
  BlockTable shared;
  EXPECT_TRUE(scheduler.find_shared_blocks(sequence, shared));
  EXPECT_EQ(shared.size(), 2u);
  EXPECT_EQ(sequence.prefix.num_indexed_blocks, 0);
  EXPECT_EQ(sequence.prefix.last_entry, 0u);
}

// A sequence that was preempted has computed output too, which may still be in the cache.
TEST(Task5_2_AdmitSharing, OneThatComesBackTakesTheLongerOfTheTwo) {
  for (const bool cached : {true, false}) {
    Siblings siblings(10, true);
    OpenScheduler& scheduler = siblings.scheduler;
    Sequence& sequence = scheduler.sequence(0);
    sequence.output_token_ids = {11, 12, 13, 14, 15};
    ASSERT_EQ(scheduler.admit(scheduler.sequence(1), siblings.budget), Admission::admitted);
    fill_cache(scheduler, iota_prompt(cached ? 15 : 4));
    BlockTable shared;
    EXPECT_TRUE(scheduler.find_shared_blocks(sequence, shared));
    EXPECT_EQ(shared.size(), cached ? 3u : 2u) << "the cache has 3 blocks or 1, the sibling 2";
    EXPECT_EQ(sequence.prefix.num_indexed_blocks, cached ? 3 : 0);
    if (!cached) {
      EXPECT_EQ(shared[0], scheduler.sequence(1).block_table[0]);
    }
  }
}

}  // namespace
}  // namespace ladder
