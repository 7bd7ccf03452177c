#include "step3_sequence/sequence.h"

#include <gtest/gtest.h>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

SamplingParams seeded(int64_t max_tokens = 16) {
  SamplingParams sampling;
  sampling.seed = 40;
  sampling.max_tokens = max_tokens;
  return sampling;
}

TEST(Task3_1_Sequence, CompletionsSampleWithSeedsOfTheirOwn) {
  SamplingParams sampling = seeded();
  sampling.n = 3;
  sampling.prompt_logprobs = 2;
  const auto sequences = make_sequences({5, 6, 7}, sampling, 10);
  ASSERT_EQ(sequences.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sequences[i]->id, 10 + i);
    EXPECT_EQ(sequences[i]->first_sibling, 10);
    EXPECT_EQ(sequences[i]->completion_index, i);
    EXPECT_EQ(sequences[i]->sampling.seed, 40u + i);
    EXPECT_EQ(sequences[i]->sampling.prompt_logprobs.value_or(-1), i == 0 ? 2 : -1);
    EXPECT_EQ(*sequences[i]->prompt_token_ids, (std::vector<int32_t>{5, 6, 7}));
    EXPECT_EQ(sequences[i]->prompt_token_ids, sequences[0]->prompt_token_ids)
        << "one prompt, not a copy for each";
    EXPECT_EQ(sequences[i]->num_prompt_tokens, 3);
    EXPECT_EQ(sequences[i]->num_output_tokens(), 0);
  }
}

TEST(Task3_1_Sequence, WhatIsLeftToComputeCountsPlaceholders) {
  const auto sequences = make_sequences({5, 6, 7}, seeded(), 0);
  Sequence& sequence = *sequences[0];
  EXPECT_EQ(sequence.num_uncomputed_tokens(), 3);
  sequence.num_computed_tokens = 3;  // the step that samples the next token is submitted ...
  sequence.num_placeholders = 1;
  EXPECT_EQ(sequence.num_uncomputed_tokens(), 1);
  sequence.num_placeholders = 0;  // ... and collected
  append_token(sequence, 9, {});
  EXPECT_EQ(sequence.num_uncomputed_tokens(), 1);
}

TEST(Task3_1_Sequence, EndsAtAnEndTokenUnlessIgnored) {
  auto sequences = make_sequences({5}, seeded(), 0);
  EXPECT_EQ(append_token(*sequences[0], 8, {1, 2}), FinishReason::none);
  EXPECT_EQ(append_token(*sequences[0], 2, {1, 2}), FinishReason::stop);
  SamplingParams ignoring = seeded();
  ignoring.ignore_eos = true;
  sequences = make_sequences({5}, ignoring, 0);
  EXPECT_EQ(append_token(*sequences[0], 2, {1, 2}), FinishReason::none);
}

TEST(Task3_1_Sequence, EndsAtAStopIdEvenWhereEndTokensAreIgnored) {
  SamplingParams sampling = seeded();
  sampling.ignore_eos = true;
  sampling.stop_token_ids = {7, 2};
  const auto sequences = make_sequences({5}, sampling, 0);
  EXPECT_EQ(append_token(*sequences[0], 6, {2}), FinishReason::none);
  EXPECT_EQ(append_token(*sequences[0], 2, {2}), FinishReason::stop);
}

TEST(Task3_1_Sequence, EndsAtMaxTokensAndAStopOnTheLastTokenIsAStop) {
  auto sequences = make_sequences({5}, seeded(2), 0);
  EXPECT_EQ(append_token(*sequences[0], 6, {2}), FinishReason::none);
  EXPECT_EQ(append_token(*sequences[0], 6, {2}), FinishReason::length);
  sequences = make_sequences({5}, seeded(1), 0);
  EXPECT_EQ(append_token(*sequences[0], 2, {2}), FinishReason::stop);
}

TEST(Task3_1_Sequence, NothingButMaxTokensEndsItBeforeMinTokens) {
  SamplingParams sampling = seeded(4);
  sampling.min_tokens = 3;
  sampling.stop_token_ids = {7};
  auto sequences = make_sequences({5}, sampling, 0);
  EXPECT_EQ(append_token(*sequences[0], 2, {2}), FinishReason::none);
  EXPECT_EQ(append_token(*sequences[0], 7, {2}), FinishReason::none);
  EXPECT_EQ(sequences[0]->stop_token_id, std::nullopt);
  EXPECT_EQ(append_token(*sequences[0], 7, {2}), FinishReason::stop);
  EXPECT_EQ(sequences[0]->stop_token_id, 7);
  sequences = make_sequences({5}, sampling, 0);
  for (const int32_t token : {1, 1}) EXPECT_EQ(append_token(*sequences[0], token, {2}), FinishReason::none);
  EXPECT_EQ(append_token(*sequences[0], 2, {2}), FinishReason::stop) << "an end token as the third";
  EXPECT_EQ(sequences[0]->stop_token_id, std::nullopt);
}

TEST(Task3_1_Sequence, RefusesEmptyPromptsAndIdsOutsideTheVocabulary) {
  EXPECT_THROW(validate_prompt({}, 10), Error);
  EXPECT_THROW(validate_prompt({0, 10}, 10), Error);
  EXPECT_THROW(validate_prompt({-1}, 10), Error);
  EXPECT_NO_THROW(validate_prompt({0, 9}, 10));
}

TEST(Task3_1_Sequence, FinishReasonsHaveTheNamesOfTheOutputFormat) {
  EXPECT_EQ(finish_reason_name(FinishReason::stop), "stop");
  EXPECT_EQ(finish_reason_name(FinishReason::length), "length");
  EXPECT_EQ(finish_reason_name(FinishReason::abort), "abort");
  EXPECT_EQ(finish_reason_name(FinishReason::error), "error");
  EXPECT_EQ(finish_reason_name(FinishReason::none), "");
}

}  // namespace
}  // namespace ladder
