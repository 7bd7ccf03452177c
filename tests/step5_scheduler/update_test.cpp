#include <gtest/gtest.h>

#include "step1_layers/sampling/invalid_token.h"
#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

// The simulator's answer to a prompt, to aim stops at.
std::vector<int32_t> answer_to(const std::vector<int32_t>& prompt, int64_t count) {
  return reference_output(prompt, greedy(count), *greedy(count).seed, small_config().vocab_size, 256, {});
}

TEST(Task5_5_Update, EndsAtAnEndToken) {
  const std::vector<int32_t> answer = answer_to(iota_prompt(6), 10);
  SchedulerConfig config = small_config();
  config.eos_token_ids = {answer[4]};
  SimpleHarness harness(config);
  harness.add(iota_prompt(6), greedy(10));
  harness.run();
  EXPECT_EQ(harness.results[0].reason, FinishReason::stop);
  EXPECT_EQ(harness.results[0].output, std::vector<int32_t>(answer.begin(), answer.begin() + 5));

  SamplingParams ignoring = greedy(10);
  ignoring.ignore_eos = true;
  harness.add(iota_prompt(6), ignoring);
  harness.run();
  EXPECT_EQ(harness.results[1].reason, FinishReason::length);
  EXPECT_EQ(harness.results[1].output, answer);
}

TEST(Task5_5_Update, EndsAtMaxModelLen) {
  SchedulerConfig config = small_config();
  config.batch.max_model_len = 20;
  SimpleHarness harness(config);
  harness.add(iota_prompt(15), greedy(1000));
  harness.run();
  EXPECT_EQ(harness.results[0].output.size(), 5u);
  EXPECT_EQ(harness.results[0].reason, FinishReason::length);
}

TEST(Task5_5_Update, FullBlocksOfTheOutputAreCachedToo) {
  SimpleHarness harness(small_config());
  harness.add(iota_prompt(6), greedy(8));
  harness.run();
  // 13 tokens are computed (the last sampled one is not): three full blocks.
  EXPECT_EQ(harness.scheduler.stats().num_cached_blocks, 3);
  std::vector<int32_t> next_turn = iota_prompt(6);
  next_turn.insert(next_turn.end(), harness.results[0].output.begin(), harness.results[0].output.end());
  next_turn.push_back(1);
  harness.add(next_turn, greedy(2));
  harness.run();
  EXPECT_EQ(harness.results[1].num_cached_tokens, 12);
  harness.expect_reference_outputs();
}

TEST(Task5_5_Update, ChunksAreCachedAsTheyAreComputedAndNotBefore) {
  SchedulerConfig config = small_config();
  config.batch.max_num_batched_tokens = 10;
  SimpleHarness harness(config);
  harness.add(iota_prompt(30), greedy(2));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.scheduler.stats().num_cached_blocks, 0) << "scheduled, but not computed";
  harness.collect();
  EXPECT_EQ(harness.scheduler.stats().num_cached_blocks, 2) << "10 tokens: two full blocks of 4";
  harness.run();
}

TEST(Task5_5_OneStepLate, OnlyWhatTheCollectedStepHasComputedIsCached) {
  SchedulerConfig config = small_config();
  config.batch.max_num_batched_tokens = 10;
  SimpleHarness harness(config, 1);
  harness.add(iota_prompt(30), greedy(2));
  ASSERT_TRUE(harness.submit());
  ASSERT_TRUE(harness.submit());
  ASSERT_EQ(harness.scheduler.find(0)->num_computed_tokens, 20) << "planned";
  harness.collect();
  EXPECT_EQ(harness.scheduler.stats().num_cached_blocks, 2) << "10 tokens are computed: two full blocks of 4";
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_5_OneStepLate, WhatASequenceComputedInBlocksThatItGaveUpIsNotCached) {
  SimpleHarness harness(small_config(), 1);
  harness.add(iota_prompt(9), greedy(4));
  ASSERT_TRUE(harness.submit());
  harness.scheduler.preempt_last();
  ASSERT_EQ(harness.scheduler.blocks().num_used_blocks(), 3) << "the step in flight writes them";
  harness.collect();
  EXPECT_EQ(harness.scheduler.blocks().num_used_blocks(), 0) << "and then they come back";
  EXPECT_EQ(harness.scheduler.stats().num_cached_blocks, 0);
  EXPECT_EQ(harness.scheduler.find(0)->num_output_tokens(), 1) << "its token is its own";
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_5_OneStepLate, APreemptedSequenceMayEndWithTheTokenThatWasInFlight) {
  SimpleHarness harness(small_config(), 1);
  harness.add(iota_prompt(9), greedy(1));
  ASSERT_TRUE(harness.submit());
  harness.scheduler.preempt_last();
  harness.collect();
  EXPECT_EQ(harness.results[0].reason, FinishReason::length);
  harness.expect_empty();
}

TEST(Task5_5_Update, PromptLogprobsAreToldOnceThoughComputedTwice) {
  SchedulerConfig config = small_config();
  config.batch.max_num_batched_tokens = 8;
  config.enable_prefix_caching = false;
  SimpleHarness harness(config);
  SamplingParams sampling = greedy(2);
  sampling.prompt_logprobs = 0;
  harness.add(iota_prompt(20, 100), sampling);
  ASSERT_TRUE(harness.submit());
  harness.collect();
  EXPECT_EQ(harness.results[0].prompt_logprobs.size(), 8u) << "of positions 0 to 7, before there is a token";
  ASSERT_TRUE(harness.submit());
  harness.collect();
  harness.scheduler.preempt_last();
  harness.run();
  ASSERT_EQ(harness.results[0].prompt_logprobs.size(), 19u);
  for (int i = 0; i < 19; ++i) EXPECT_EQ(harness.results[0].prompt_logprobs[i].chosen.token_id, 101 + i);
  harness.expect_reference_outputs();
}

TEST(Task5_5_Update, SequencesEndOneByOneAndTheCountsFollow) {
  SimpleHarness harness(small_config());
  for (int64_t i = 0; i < 8; ++i) harness.add(iota_prompt(3, static_cast<int32_t>(10 * i)), greedy(i + 1));
  for (int64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(harness.submit());
    EXPECT_EQ(harness.scheduler.stats().num_running, 8 - i);
    harness.collect();
    EXPECT_EQ(harness.scheduler.stats().num_running, 7 - i);
  }
  harness.expect_empty();
}

TEST(Task5_5_Abort, WorksInEveryState) {
  SchedulerConfig config = small_config();
  config.batch.max_num_seqs = 2;
  SimpleHarness harness(config);
  for (int i = 0; i < 4; ++i) harness.add(iota_prompt(20, 50 * i), greedy(10));
  harness.abort(3);  // waiting, never seen by the runner
  ASSERT_TRUE(harness.submit());
  harness.abort(0);  // in flight
  EXPECT_GT(harness.scheduler.blocks().num_used_blocks(), 5) << "a submitted step still writes its blocks";
  harness.collect();
  EXPECT_EQ(harness.scheduler.blocks().num_used_blocks(), 5);
  harness.abort(0);              // again
  harness.scheduler.abort(999);  // never heard of
  harness.abort(1);              // between two steps
  harness.run();
  EXPECT_EQ(harness.results[2].output.size(), 10u);
  harness.expect_reference_outputs();
  harness.abort(2);  // ended
}

TEST(Task5_5_Abort, TheRunnerIsToldOnceEvenIfAStepHadNothingElseToTell) {
  SimpleHarness harness(small_config());
  harness.add(iota_prompt(4), greedy(5));
  ASSERT_TRUE(harness.submit());
  harness.collect();
  harness.abort(0);
  EXPECT_FALSE(harness.submit()) << "nothing to compute: the message waits";
  EXPECT_FALSE(harness.submit());
  harness.add(iota_prompt(4), greedy(1));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.finished, (std::vector<SequenceId>{0}));
  EXPECT_EQ(harness.executor.num_sequences(), 1);
  harness.collect();
}

TEST(Task5_5_Abort, TheReasonIsWrittenIntoTheSequence) {
  SimpleHarness harness(small_config(), 1);
  harness.add(iota_prompt(5), greedy(4));
  ASSERT_TRUE(harness.submit());
  harness.abort(0);
  ASSERT_NE(harness.scheduler.find(0), nullptr) << "a step in flight computes it";
  EXPECT_EQ(harness.scheduler.find(0)->finish_reason, FinishReason::abort);
  harness.collect();
  harness.expect_empty();
}

// What waits for its blocks is in no order of steps.
TEST(Task5_5_OneStepLate, BlocksComeBackWithTheirStepThoughEarlierOnesWaitLonger) {
  SimpleHarness harness(small_config(), 1);
  harness.add(iota_prompt(5), greedy(4));
  harness.add(iota_prompt(9, 100), greedy(1));
  ASSERT_TRUE(harness.submit());  // both
  ASSERT_TRUE(harness.submit());  // sequence 0
  harness.abort(0);
  harness.abort(1);
  harness.collect();
  EXPECT_EQ(harness.scheduler.blocks().num_used_blocks(), 2)
      << "of sequence 0; step 0 was the last of sequence 1";
  harness.collect();
  harness.expect_empty();
}

TEST(Task5_5_OneStepLate, ASequenceGoesOnWithAPlaceholder) {
  SimpleHarness harness(small_config(), 1);
  harness.add(iota_prompt(6), greedy(5));
  ASSERT_TRUE(harness.submit());
  ASSERT_TRUE(harness.submit()) << "the first token is not known yet";
  EXPECT_EQ(harness.output.scheduled[0].num_tokens, 1);
  EXPECT_EQ(harness.output.continued[0].num_computed_tokens, 6);
  EXPECT_EQ(harness.scheduler.find(0)->num_placeholders, 2);
  EXPECT_EQ(harness.scheduler.find(0)->num_output_tokens(), 0);
  harness.collect();
  EXPECT_EQ(harness.scheduler.find(0)->num_placeholders, 1);
  harness.run();
  harness.expect_reference_outputs();
}

// mini-sglang: a request was finished and freed twice when the scheduler ran one step ahead.
TEST(Task5_5_OneStepLate, AStopFoundLateDropsTheExtraTokenAndFreesOnce) {
  const std::vector<int32_t> answer = answer_to(iota_prompt(6), 10);
  SchedulerConfig config = small_config();
  config.eos_token_ids = {answer[2]};
  SimpleHarness harness(config, 1);
  harness.add(iota_prompt(6), greedy(10));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(harness.submit());
    if (i > 0) harness.collect();
  }
  ASSERT_TRUE(harness.submit());
  harness.collect();  // the third token is an end token; a fourth is being sampled
  EXPECT_EQ(harness.results[0].reason, FinishReason::stop);
  EXPECT_FALSE(harness.scheduler.has_unfinished());
  EXPECT_EQ(harness.scheduler.num_steps_in_flight(), 1);
  EXPECT_GT(harness.scheduler.blocks().num_used_blocks(), 0) << "the step in flight still writes them";
  EXPECT_FALSE(harness.submit());
  harness.collect();
  harness.expect_empty();
  EXPECT_EQ(harness.results[0].output, std::vector<int32_t>(answer.begin(), answer.begin() + 3));
}

TEST(Task5_5_OneStepLate, NothingIsSampledBeyondMaxTokens) {
  SimpleHarness harness(small_config(), 3);
  harness.add(iota_prompt(6), greedy(2));
  ASSERT_TRUE(harness.submit());
  ASSERT_TRUE(harness.submit());
  EXPECT_FALSE(harness.submit()) << "both tokens are on their way";
  harness.run();
  EXPECT_EQ(harness.executor.num_rows(), 6 + 1);
  harness.expect_reference_outputs();
}

// Logits that are no numbers: the sampler answers with kInvalidToken.
TEST(Task5_5_Update, AnInvalidTokenEndsTheSequenceWithAnErrorAndIsNotAppended) {
  for (const int delay : {0, 1}) {
    SimpleHarness harness(small_config(), delay);
    harness.add(iota_prompt(9), greedy(10));
    harness.add(iota_prompt(9, 100), greedy(10));
    for (int i = 0; i <= delay; ++i) ASSERT_TRUE(harness.submit());
    StepOutput answer = harness.executor.collect(harness.tickets.front());
    harness.tickets.pop_front();
    answer.sequences[0].token_ids = {kInvalidToken};
    std::vector<SequenceUpdate>& updates = harness.scheduler.update(std::move(answer));
    ASSERT_EQ(updates.size(), 2u);
    EXPECT_EQ(updates[0].finish_reason, FinishReason::error);
    EXPECT_TRUE(updates[0].new_token_ids.empty());
    EXPECT_EQ(updates[1].finish_reason, FinishReason::none);
    EXPECT_EQ(harness.scheduler.stats().num_cached_blocks, 2) << "only the other one's prompt is shared";
    harness.results.erase(0);
    harness.results[1].output = updates[1].new_token_ids;
    harness.run();
    harness.expect_reference_outputs();
  }
}

TEST(Task5_5_Update, AnInvalidTokenBringsNoLogprobs) {
  SimpleHarness harness(small_config());
  SamplingParams sampling = greedy(10);
  sampling.logprobs = 1;
  harness.add(iota_prompt(9), sampling);
  ASSERT_TRUE(harness.submit());
  StepOutput answer = harness.executor.collect(harness.tickets.front());
  answer.sequences[0].token_ids = {kInvalidToken};
  answer.sequences[0].logprobs.resize(1);
  const std::vector<SequenceUpdate>& updates = harness.scheduler.update(std::move(answer));
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_TRUE(updates[0].logprobs.empty());
}

TEST(Task5_5_Update, SaysWhichStopTokenEndedASequence) {
  const std::vector<int32_t> answer = answer_to(iota_prompt(6), 10);
  SchedulerConfig config = small_config();
  config.eos_token_ids = {answer[4]};
  OpenScheduler scheduler(config);
  KvSimulator executor(config.batch.num_kv_blocks, config.batch.block_size, config.vocab_size);
  SamplingParams sampling = greedy(10);
  sampling.stop_token_ids = {answer[2]};
  scheduler.add(iota_prompt(6), sampling);
  sampling.min_tokens = 4;  // past the stop token, to the end token
  scheduler.add(iota_prompt(6), sampling);
  SchedulerOutput output;
  std::map<SequenceId, SequenceUpdate> last;
  std::map<SequenceId, size_t> num_tokens;
  for (scheduler.schedule_simply(output); !output.empty(); scheduler.schedule_simply(output))
    for (SequenceUpdate& update : scheduler.update(executor.collect(executor.submit(output)))) {
      num_tokens[update.id] += update.new_token_ids.size();
      last[update.id] = update;
    }
  EXPECT_EQ(last[0].finish_reason, FinishReason::stop);
  EXPECT_EQ(last[0].stop_token_id, answer[2]);
  EXPECT_EQ(num_tokens[0], 3u);
  EXPECT_EQ(last[1].finish_reason, FinishReason::stop);
  EXPECT_EQ(last[1].stop_token_id, std::nullopt) << "an end token is no stop token of the request";
  EXPECT_EQ(num_tokens[1], 5u);
}

TEST(Task5_5_Update, WithoutMaxTokensASequenceGoesOnToTheEndOfTheModelOrOfTheCache) {
  SchedulerConfig config = small_config();
  config.batch.max_model_len = 40;
  for (const int64_t num_blocks : {20, 6}) {
    config.batch.num_kv_blocks = num_blocks;
    SimpleHarness harness(config);
    SamplingParams sampling = greedy(1);
    sampling.max_tokens.reset();
    harness.add(iota_prompt(10), sampling);
    harness.run();
    EXPECT_EQ(harness.results[0].reason, FinishReason::length);
    EXPECT_EQ(std::ssize(harness.results[0].output), num_blocks == 20 ? 30 : 6 * 4 - 10 + 1);
  }
}

TEST(Task5_5_ResetPrefixCache, ForgetsEverythingUnlessBlocksAreHeld) {
  SimpleHarness harness(small_config(), 1);
  harness.add(iota_prompt(10), greedy(3));
  harness.run();
  harness.add(iota_prompt(10), greedy(3));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.new_sequences[0].num_computed_tokens, 8);
  EXPECT_FALSE(harness.scheduler.reset_prefix_cache());
  EXPECT_GT(harness.scheduler.stats().num_cached_blocks, 0);
  harness.abort(1);
  EXPECT_FALSE(harness.scheduler.reset_prefix_cache()) << "a step in flight still writes its blocks";
  harness.collect();
  EXPECT_TRUE(harness.scheduler.reset_prefix_cache());
  EXPECT_EQ(harness.scheduler.stats().num_cached_blocks, 0);
  harness.add(iota_prompt(10), greedy(3));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.new_sequences[0].num_computed_tokens, 0);
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_5_Update, RefusesAnAnswerThatDoesNotFit) {
  OpenScheduler scheduler(small_config());
  scheduler.add(iota_prompt(4), greedy(3));
  SchedulerOutput output;
  scheduler.schedule_simply(output);
  StepOutput step;
  step.step = output.step + 1;
  EXPECT_THROW(scheduler.update(step), Error) << "another step";
  step.step = output.step;
  EXPECT_THROW(scheduler.update(step), Error) << "no sequence";
  step.sequences.resize(1);
  step.sequences[0].id = 0;
  EXPECT_THROW(scheduler.update(step), Error) << "no token";
  step.sequences[0].token_ids = {5};
  EXPECT_EQ(scheduler.update(step).size(), 1u);
  EXPECT_THROW(scheduler.update(step), Error) << "nothing is in flight";
}

TEST(Task5_5_Update, RefusesTheAnswerForAnotherSequence) {
  SimpleHarness harness(small_config());
  harness.add(iota_prompt(5), greedy(4));
  harness.add(iota_prompt(5, 50), greedy(4));
  ASSERT_TRUE(harness.submit());
  StepOutput answer = harness.executor.collect(harness.tickets.front());
  std::swap(answer.sequences[0], answer.sequences[1]);
  EXPECT_THROW(harness.scheduler.update(std::move(answer)), Error);
}

TEST(Task5_5_Update, RefusesATokenForAChunkThatSamplesNone) {
  SimpleHarness harness(small_config());  // 64 tokens a step
  harness.add(iota_prompt(100), greedy(4));
  ASSERT_TRUE(harness.submit());
  StepOutput answer = harness.executor.collect(harness.tickets.front());
  answer.sequences[0].token_ids = {5};
  EXPECT_THROW(harness.scheduler.update(std::move(answer)), Error);
}

}  // namespace
}  // namespace ladder
