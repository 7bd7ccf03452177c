#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step3_sequence/prefix/hash_prefix_index.h"
#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

using Scheduled = std::vector<std::pair<SequenceId, int64_t>>;

Scheduled scheduled(const SchedulerOutput& output) {
  Scheduled result;
  for (const ScheduledSequence& sequence : output.scheduled)
    result.push_back({sequence.id, sequence.num_tokens});
  return result;
}

// One line that contains `part`, and nothing queued.
void expect_refused(const SchedulerConfig& config, const std::vector<int32_t>& prompt,
                    const SamplingParams& sampling, const std::string& part) {
  Scheduler scheduler(config);
  try {
    scheduler.add(prompt, sampling);
    ADD_FAILURE() << "accepted: " << part;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(part));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
  }
  EXPECT_FALSE(scheduler.has_unfinished());
}

TEST(Task5_2_ContinuousBatching, APromptIsComputedThenOneTokenAStep) {
  Harness harness(small_config());
  harness.add(iota_prompt(10), greedy(3));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 10}}));
  ASSERT_EQ(harness.output.new_sequences.size(), 1u);
  EXPECT_EQ(harness.output.new_sequences[0].block_table.size(), 3u);
  EXPECT_EQ(harness.output.new_sequences[0].num_prompt_tokens, 10);
  harness.collect();
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 1}}));
  EXPECT_TRUE(harness.output.new_sequences.empty());
  ASSERT_EQ(harness.output.continued.size(), 1u);
  EXPECT_EQ(harness.output.continued[0].num_computed_tokens, 10);
  EXPECT_TRUE(harness.output.continued[0].new_block_ids.empty());
  harness.collect();
  ASSERT_TRUE(harness.submit());
  harness.collect();
  EXPECT_FALSE(harness.submit());
  harness.expect_empty();
  harness.expect_reference_outputs();
}

TEST(Task5_2_ContinuousBatching, ANewSequenceJoinsWhileOthersDecode) {
  Harness harness(small_config());
  harness.add(iota_prompt(10), greedy(5));
  ASSERT_TRUE(harness.submit());
  harness.collect();
  harness.add(iota_prompt(6, 100), greedy(5));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 1}, {1, 6}}));
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

// The published pseudo-code drops a chunk that does not fit; here it shrinks.
TEST(Task5_2_ContinuousBatching, RunningSequencesComeFirstAndAChunkShrinksToTheRestOfTheBudget) {
  SchedulerConfig config = small_config();
  config.batch.max_num_batched_tokens = 16;
  Harness harness(config);
  harness.add(iota_prompt(10), greedy(20));
  harness.add(iota_prompt(40, 100), greedy(20));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 10}, {1, 6}}));
  harness.collect();
  harness.add(iota_prompt(3, 200), greedy(20));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 1}, {1, 15}}));
  harness.collect();
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 1}, {1, 15}}));
  harness.collect();
  EXPECT_TRUE(harness.results[1].output.empty()) << "no token before the prompt is done";
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 1}, {1, 4}, {2, 3}}));
  harness.collect();
  EXPECT_EQ(harness.results[1].output.size(), 1u);
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_ContinuousBatching, WithoutChunksAPromptRunsWholeOrWaits) {
  SchedulerConfig config = small_config();
  config.enable_chunked_prefill = false;
  config.batch.max_num_batched_tokens = config.batch.max_model_len = 40;
  Harness harness(config);
  harness.add(iota_prompt(10), greedy(2));
  harness.add(iota_prompt(35, 100), greedy(2));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 10}}));
  harness.collect();
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 1}, {1, 35}}));
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();

  config.batch.max_model_len = 41;
  EXPECT_THROW(Scheduler{config}, Error) << "a prompt of 41 tokens could never run";
}

TEST(Task5_2_ContinuousBatching, NoMoreSequencesRunThanAllowed) {
  SchedulerConfig config = small_config();
  config.batch.max_num_seqs = 2;
  Harness harness(config);
  for (int i = 0; i < 5; ++i) harness.add(iota_prompt(4, 10 * i), greedy(3));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.scheduler.stats().num_running, 2);
  EXPECT_EQ(harness.scheduler.stats().num_waiting, 3);
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_ContinuousBatching, AHitStartsAfterTheCachedBlocks) {
  Harness harness(small_config());
  harness.add(iota_prompt(10), greedy(1));
  harness.run();
  harness.add(iota_prompt(10), greedy(1));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{1, 2}}));
  EXPECT_EQ(harness.output.new_sequences[0].num_computed_tokens, 8);
  harness.collect();
  EXPECT_EQ(harness.results[1].num_cached_tokens, 8);
  EXPECT_EQ(harness.scheduler.stats().num_prefix_hit_tokens, 8);
  EXPECT_EQ(harness.scheduler.stats().num_prefix_queried_tokens, 20);
  harness.run();
  harness.expect_reference_outputs();
}

// nano-vllm #144: a prompt of whole blocks, all of them cached.
TEST(Task5_2_ContinuousBatching, AFullyCachedPromptStillComputesItsLastBlock) {
  Harness harness(small_config());
  harness.add(iota_prompt(8), greedy(1));
  harness.run();
  harness.add(iota_prompt(8), greedy(4));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{1, 4}}));
  harness.collect();
  EXPECT_EQ(harness.results[1].output.size(), 1u);
  harness.run();
  harness.expect_reference_outputs();
}

// vLLM #7003: the block tables were wrong when only some sequences of a batch hit the cache.
TEST(Task5_2_ContinuousBatching, HitsAndMissesInOneBatchHaveTheRightTables) {
  Harness harness(small_config());
  harness.add(iota_prompt(12), greedy(1));
  harness.run();
  harness.add(iota_prompt(13, 500), greedy(8));
  harness.add(iota_prompt(13), greedy(8));
  harness.add(iota_prompt(13, 700), greedy(8));
  harness.run();  // the simulator reads every position of every table
  EXPECT_EQ(harness.results[1].num_cached_tokens, 0);
  EXPECT_EQ(harness.results[2].num_cached_tokens, 12);
  EXPECT_EQ(harness.results[3].num_cached_tokens, 0);
  harness.expect_reference_outputs();
}

// lite_llama: right until requests finish out of order, since the batch position was taken for the slot.
TEST(Task5_2_ContinuousBatching, RequestsThatFinishOutOfOrderDoNotDisturbTheOthers) {
  Harness harness(small_config());
  for (const int64_t max_tokens : {9, 2, 7, 1, 5, 3})
    harness.add(iota_prompt(5 + max_tokens, static_cast<int32_t>(20 * max_tokens)), greedy(max_tokens));
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_Forks, SiblingsShareTheFullBlocksOfThePrompt) {
  for (const bool prefix_caching : {true, false}) {
    SchedulerConfig config = small_config();
    config.enable_prefix_caching = prefix_caching;
    Harness harness(config);
    SamplingParams sampling = greedy(6);
    sampling.n = 3;
    harness.add(iota_prompt(10), sampling);
    ASSERT_TRUE(harness.submit());
    EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 10}, {1, 2}, {2, 2}}))
        << "the partial block is computed by each";
    EXPECT_EQ(harness.scheduler.stats().num_used_blocks, 2 + 3);
    EXPECT_EQ(harness.scheduler.stats().num_live_tokens, 8 + 3 * 2);
    harness.collect();
    harness.run();
    harness.expect_reference_outputs();
    EXPECT_EQ(harness.results[1].num_cached_tokens, 8);
    EXPECT_NE(harness.results[0].output, harness.results[1].output) << "each has a seed of its own";
  }
}

TEST(Task5_2_Forks, OfAPromptOfWholeBlocksTheLastIsComputedByEach) {
  SchedulerConfig config = small_config();
  config.enable_prefix_caching = false;
  Harness harness(config);
  SamplingParams sampling = greedy(6);
  sampling.n = 2;
  harness.add(iota_prompt(8), sampling);
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 8}, {1, 4}}));
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_Forks, APromptOfManyChunksIsComputedOnce) {
  SchedulerConfig config = small_config();
  config.batch.max_num_batched_tokens = 16;
  Harness harness(config);
  SamplingParams sampling = greedy(3);
  sampling.n = 2;
  harness.add(iota_prompt(41), sampling);
  harness.run();
  EXPECT_EQ(harness.executor.num_rows(), 41 + 1 + 2 * 2);
  harness.expect_reference_outputs();
}

TEST(Task5_2_Forks, WhenTheFirstIsAbortedTheNextComputesThePrompt) {
  SchedulerConfig config = small_config();
  config.batch.max_num_batched_tokens = 16;
  config.enable_prefix_caching = false;
  Harness harness(config);
  SamplingParams sampling = greedy(3);
  sampling.n = 3;
  harness.add(iota_prompt(41), sampling);
  ASSERT_TRUE(harness.submit());
  harness.collect();
  harness.abort(0);
  harness.run();
  harness.expect_reference_outputs();
  EXPECT_EQ(harness.results[1].output.size(), 3u);
}

class CountingHasher final : public BlockHasher {
 public:
  explicit CountingHasher(int64_t& count) : count_(count) {}
  BlockHash root(std::string_view salt, std::string_view adapter) override {
    ++count_;
    return hasher_.root(salt, adapter);
  }
  BlockHash block(const BlockHash& parent, std::span<const int32_t> token_ids) override {
    ++count_;
    return hasher_.block(parent, token_ids);
  }

 private:
  int64_t& count_;
  Sha256BlockHasher hasher_{1};
};

// A sibling that hashed the prompt for itself cost 0.64 s for 256 completions of a prompt of 128k tokens.
TEST(Task5_2_Forks, ThePromptIsHashedOnceForAllCompletions) {
  for (const int64_t budget : {1000, 64}) {
    SchedulerConfig config = small_config();
    config.batch.max_num_seqs = 64;
    config.batch.max_num_batched_tokens = budget;
    config.batch.num_kv_blocks = 1000;
    int64_t num_hashes = 0;
    Harness harness(config, 0,
                    std::make_unique<HashPrefixIndex>(config.batch.num_kv_blocks, config.batch.block_size,
                                                      std::make_unique<CountingHasher>(num_hashes)));
    SamplingParams sampling = greedy(6);
    sampling.n = 64;
    harness.add(iota_prompt(202), sampling);  // 50 full blocks
    harness.run();
    harness.expect_reference_outputs();
    // The root and the prompt's blocks; the one that begins with its last two tokens is each completion's own,
    // and so is one more, of output.
    EXPECT_LE(num_hashes, 1 + 50 + 64 * 2);
    EXPECT_EQ(harness.scheduler.stats().num_prefix_hit_tokens, 63 * 200);
  }
}

class CountingIndex final : public PrefixIndex {
 public:
  CountingIndex(const BatchConfig& config, int64_t& num_matches)
      : num_matches_(num_matches),
        index_(config.num_kv_blocks, config.block_size, std::make_unique<Sha256BlockHasher>(1)) {}
  void match(PrefixKey& key, const TokenView& tokens, int64_t max_blocks,
             std::vector<int32_t>& block_ids) override {
    ++num_matches_;
    index_.match(key, tokens, max_blocks, block_ids);
  }
  void insert(PrefixKey& key, const TokenView& tokens, std::span<const int32_t> block_table,
              int64_t num_full_blocks) override {
    index_.insert(key, tokens, block_table, num_full_blocks);
  }
  void erase(int32_t block_id) override { index_.erase(block_id); }
  bool contains(int32_t block_id) const override { return index_.contains(block_id); }
  int64_t size() const override { return index_.size(); }

 private:
  int64_t& num_matches_;
  HashPrefixIndex index_;
};

// 256 completions of a prompt of 128k tokens that each looked for themselves took 30 ms in each step.
TEST(Task5_2_Forks, OneCompletionAsksForAllThatWaitForThePrompt) {
  SchedulerConfig config = small_config();
  config.batch.max_num_seqs = 16;
  config.long_prefill_token_threshold = 32;  // so that a walk comes to those that wait
  int64_t num_matches = 0;
  Harness harness(config, 0, std::make_unique<CountingIndex>(config.batch, num_matches));
  SamplingParams sampling = greedy(2);
  sampling.n = 16;
  harness.add(iota_prompt(202), sampling);
  while (harness.results[0].output.empty()) {
    num_matches = 0;
    ASSERT_TRUE(harness.submit());
    EXPECT_LE(num_matches, 2) << "look-ups of a prefix in step " << harness.output.step << ", in two walks";
    harness.collect();
  }
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_Forks, ThePromptIsSentOnceForAllCompletions) {
  SchedulerConfig config = small_config();
  config.batch.max_num_seqs = 2;
  Harness harness(config);
  SamplingParams sampling = greedy(3);
  sampling.n = 4;
  harness.add(iota_prompt(41), sampling);
  int64_t num_sent = 0;
  while (harness.submit()) {
    for (const NewSequence& added : harness.output.new_sequences) {
      num_sent += std::ssize(added.token_ids);
      EXPECT_EQ(added.prompt_of < 0, !added.token_ids.empty());
    }
    harness.collect();
  }
  // Two of the four run at a time; those that follow find the prompt no more.
  EXPECT_EQ(num_sent, 2 * 41);
  harness.expect_reference_outputs();
}

// Only the first of the running completions was looked at once: what if it is gone?
TEST(Task5_2_Forks, AnyRunningCompletionSharesThePrompt) {
  SchedulerConfig config = small_config();
  config.enable_prefix_caching = false;
  config.batch.max_num_seqs = 2;
  Harness harness(config);
  SamplingParams sampling = greedy(6);
  sampling.n = 4;
  harness.add(iota_prompt(41), sampling);
  ASSERT_TRUE(harness.submit());
  harness.collect();
  harness.abort(0);  // completion 1 runs on, and has the prompt
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{1, 1}, {2, 1}}));
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_ContinuousBatching, ASequenceShortOfBlocksDoesNotStopThoseThatNeedNone) {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 6;
  config.enable_prefix_caching = false;
  Harness harness(config, 1);
  harness.add(iota_prompt(5), greedy(9));
  harness.add(iota_prompt(8, 100), greedy(4));  // two full blocks: the next token needs a third
  harness.add(iota_prompt(6, 200), greedy(3));  // two blocks, with room for the next token
  ASSERT_TRUE(harness.submit());
  harness.abort(0);  // its blocks come back with the step in flight
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{2, 1}})) << "sequence 1 waits for the blocks alone";
  EXPECT_EQ(harness.scheduler.stats().num_preemptions, 0);
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_ContinuousBatching, ScoringAPromptBypassesTheCacheAndCountsEveryPosition) {
  Harness harness(small_config());
  harness.add(iota_prompt(20), greedy(1));
  harness.run();
  SamplingParams sampling = greedy(1);
  sampling.prompt_logprobs = 0;
  harness.add(iota_prompt(20), sampling);
  harness.run();
  EXPECT_EQ(harness.results[1].num_cached_tokens, 0);
  EXPECT_EQ(harness.results[1].prompt_logprobs.size(), 19u);
}

TEST(SchedulerChecks, RefusesWhatCanNeverRun) {
  SchedulerConfig config = small_config();  // 256 positions, 4 tokens a block
  expect_refused(config, {}, greedy(1), "empty");
  expect_refused(config, iota_prompt(256), greedy(1), "at most 255");
  expect_refused(config, {1, 2, 1000}, greedy(1), "1000 is not a token id");
  expect_refused(config, {-1}, greedy(1), "-1 is not a token id");
  SamplingParams sampling = greedy(1);
  sampling.n = 0;
  expect_refused(config, {1}, sampling, "n must");
  sampling.n = 1000000000;
  expect_refused(config, {1}, sampling, "n must");
  sampling = greedy(1);
  sampling.stop_token_ids = {1000};
  expect_refused(config, {1}, sampling, "stop_token_ids");

  config.batch.num_kv_blocks = 10;
  expect_refused(config, iota_prompt(41), greedy(1), "needs 11 KV blocks of 4 tokens; the cache has 10");
  expect_refused(config, iota_prompt(30), greedy(12), "needs 11 KV blocks");
  Harness harness(config);
  harness.add(iota_prompt(40), greedy(1));  // the last token is never computed
  harness.add(iota_prompt(30), greedy(11));
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_ContinuousBatching, APromptWaitsUntilAllOfItFits) {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 10;
  config.batch.max_num_batched_tokens = 20;
  Harness harness(config);
  harness.add(iota_prompt(16), greedy(3));
  harness.add(iota_prompt(28, 100), greedy(2));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(scheduled(harness.output), (Scheduled{{0, 16}})) << "6 blocks are free, 7 are needed";
  harness.collect();
  harness.run();
  EXPECT_EQ(harness.scheduler.stats().num_preemptions, 0);
  harness.expect_reference_outputs();
}

TEST(Task5_2_ContinuousBatching, AfterARefusedRequestTheNextOneRuns) {
  Harness harness(small_config());
  EXPECT_THROW(harness.scheduler.add({1, 5000}, greedy(3)), Error);
  harness.add({1, 5}, greedy(3));
  harness.run();
  harness.expect_reference_outputs();
}

TEST(SchedulerChecks, RefusesConfigurationsThatMakeNoSense) {
  const auto expect_error = [](void (*change)(SchedulerConfig&)) {
    SchedulerConfig config = small_config();
    change(config);
    EXPECT_THROW(Scheduler{config}, Error);
  };
  expect_error([](SchedulerConfig& c) { c.batch.max_num_seqs = 0; });
  expect_error([](SchedulerConfig& c) { c.batch.max_num_batched_tokens = 0; });
  expect_error([](SchedulerConfig& c) { c.batch.max_model_len = 0; });
  expect_error([](SchedulerConfig& c) { c.batch.block_size = 0; });
  expect_error([](SchedulerConfig& c) { c.batch.num_kv_blocks = 0; });
  expect_error([](SchedulerConfig& c) { c.eos_token_ids = {1000}; });
}

TEST(SchedulerChecks, ARequestWithoutASeedGetsOne) {
  OpenScheduler scheduler(small_config());
  SamplingParams sampling = greedy(1);
  sampling.seed.reset();
  scheduler.add({1}, sampling);
  scheduler.add({1}, sampling);
  ASSERT_TRUE(scheduler.sequence(0).sampling.seed.has_value());
  EXPECT_NE(scheduler.sequence(0).sampling.seed, scheduler.sequence(1).sampling.seed);
}

// The captured graph of nano-vllm (PR #258) had one block-table column too few for a full-length sequence.
TEST(Task5_2_ContinuousBatching, AFullLengthSequenceHasNoMoreBlocksThanItsLengthTakes) {
  SchedulerConfig config = small_config();
  config.batch.max_model_len = 64;
  config.batch.max_num_batched_tokens = 64;
  Harness harness(config);
  harness.add(iota_prompt(60), greedy(1000));
  size_t columns = 0;
  while (harness.submit()) {
    for (const BlockTable* table : harness.scheduler.block_tables())
      columns = std::max(columns, table->size());
    harness.collect();
  }
  EXPECT_EQ(columns, 16u);
  EXPECT_EQ(harness.results[0].output.size(), 4u);
  EXPECT_EQ(harness.results[0].reason, FinishReason::length);
}

}  // namespace
}  // namespace ladder
