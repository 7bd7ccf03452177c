// Task 4.3: what requests forbid and favour, what they may know of log probabilities, and rows from which no
// token can be drawn.
#include "step4_runner/logits_edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/invalid_token.h"
#include "tests/step4_runner/sampler_scene.h"

namespace ladder {
namespace {

using ladder::testing::Random;
using Row = ladder::testing::SampledRow;
using Answer = ladder::testing::SamplerAnswer;
using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Task4_3_LogitsEdits : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { ladder::testing::need_device(GetParam()); }
  static Answer run(const std::vector<Row>& rows) { return ladder::testing::run_sampler(GetParam(), rows); }
  static int32_t token_of(const Row& row) { return run({row}).token_ids[0]; }
};
INSTANTIATE_TEST_SUITE_P(Devices, Task4_3_LogitsEdits, ladder::testing::both_devices(),
                         [](const auto& info) { return ladder::testing::device_word(info.param); });

// Greedy; the best tokens are 4, 3, 2, 1, 0 in this order.
Row ascending_row(std::vector<int32_t> output = {}) {
  Row row;
  row.logits = {0, 1, 2, 3, 4};
  row.token_ids = {0};
  row.token_ids.insert(row.token_ids.end(), output.begin(), output.end());
  row.num_prompt_tokens = 1;
  row.sampling.temperature = 0;
  return row;
}

TEST_P(Task4_3_LogitsEdits, MinTokensForbidsWhatWouldEndTheOutput) {
  for (int64_t sampled = 0; sampled < 4; ++sampled) {
    Row row = ascending_row(std::vector<int32_t>(static_cast<size_t>(sampled), 2));
    row.sampling.min_tokens = 2;
    row.sampling.all_stop_token_ids = {4, 3, 4};
    EXPECT_EQ(token_of(row), sampled < 2 ? 2 : 4) << sampled;
  }
}

TEST_P(Task4_3_LogitsEdits, BadWordsAreNotCompleted) {
  Row row = ascending_row();
  row.sampling.bad_words_token_ids = {{4}};
  EXPECT_EQ(token_of(row), 3);  // a single token is never drawn
  const auto token_after = [](std::vector<int32_t> output) {
    Row row = ascending_row(std::move(output));
    row.sampling.bad_words_token_ids = {{1, 2, 4}, {2, 3}};
    return token_of(row);
  };
  EXPECT_EQ(token_after({}), 4);
  EXPECT_EQ(token_after({2}), 4);
  EXPECT_EQ(token_after({1, 2}), 2);  // 4 completes the first word, 3 the second
  EXPECT_EQ(token_after({0, 1, 2}), 2);
  EXPECT_EQ(token_after({1, 2, 0}), 4);
  EXPECT_EQ(token_after({1, 3}), 4);
  // The prompt's end is no part of the output.
  row = ascending_row({2});
  row.token_ids = {1, 2};
  row.num_prompt_tokens = 1;
  row.sampling.bad_words_token_ids = {{1, 2, 4}};
  EXPECT_EQ(token_of(row), 4);
}

TEST_P(Task4_3_LogitsEdits, AllowedTokensAndBiasesActTogether) {
  Row row = ascending_row();
  row.sampling.allowed_token_ids = {0, 2, 3};
  EXPECT_EQ(token_of(row), 3);
  row.sampling.logit_bias = {{0, 2.5}, {4, 100.0}};  // 4 stays forbidden, whatever its bias
  EXPECT_EQ(token_of(row), 3);
  row.sampling.logit_bias[0] = 3.5;
  EXPECT_EQ(token_of(row), 0);
  row.sampling.bad_words_token_ids = {{0}};
  EXPECT_EQ(token_of(row), 3);
  // A logit of +inf is forbidden like any other: +inf - inf would be no number.
  row.logits[0] = kInfinity;
  EXPECT_EQ(token_of(row), 3);
}

TEST_P(Task4_3_LogitsEdits, BiasesComeBeforePenalties) {
  Row row = ascending_row({4});
  row.sampling.logit_bias = {{4, 2.0}};
  row.sampling.repetition_penalty = 2.0;  // (4 + 2) / 2 = 3; 4 / 2 + 2 would be 4
  row.logits[3] = 3.5f;
  EXPECT_EQ(token_of(row), 3);
}

TEST_P(Task4_3_LogitsEdits, ARowWithoutEditsKeepsItsTokenBesideRowsWithSome) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Row> rows;
  for (int64_t r = 0; r < 2 * Sampler::kRows + 5; ++r) {
    Row row;
    for (int i = 0; i < 101; ++i) row.logits.push_back(static_cast<float>(random.uniform(-5, 5)));
    row.sampling.seed = static_cast<uint64_t>(r);
    rows.push_back(row);
  }
  const std::vector<int32_t> plain = run(rows).token_ids;
  for (size_t r = 0; r < rows.size(); r += 3) rows[r].sampling.allowed_token_ids = {7, 8};
  for (size_t r = 1; r < rows.size(); r += 3) rows[r].sampling.logit_bias = {{9, 100.0}};
  const std::vector<int32_t> edited = run(rows).token_ids;
  for (size_t r = 0; r < rows.size(); ++r) {
    const bool as_asked = r % 3 == 0   ? edited[r] == 7 || edited[r] == 8
                          : r % 3 == 1 ? edited[r] == 9
                                       : edited[r] == plain[r];
    EXPECT_TRUE(as_asked) << "row " << r << " gives " << edited[r];
  }
}

TEST_P(Task4_3_LogitsEdits, ARowOfWhichNothingIsLeftGivesNoToken) {
  std::vector<Row> rows(3, ascending_row());
  rows[1].sampling.allowed_token_ids = {4};
  rows[1].sampling.bad_words_token_ids = {{4}};
  EXPECT_THAT(run(rows).token_ids, ElementsAre(4, kInvalidToken, 4));
  for (Row& row : rows) row.sampling.temperature = 0.7;
  for (Row& row : rows) row.sampling.seed = 1;
  const Answer drawn = run(rows);
  EXPECT_EQ(drawn.token_ids[1], kInvalidToken);
  EXPECT_GE(drawn.token_ids[0], 0);
  EXPECT_GE(drawn.token_ids[2], 0);
}

TEST_P(Task4_3_LogitsEdits, ANaNInARowGivesNoTokenAndLeavesTheOthersAlone) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const bool greedy : {true, false}) {
    std::vector<Row> rows;
    for (uint64_t r = 0; r < 5; ++r) {
      Row row;
      for (int i = 0; i < 1031; ++i) row.logits.push_back(static_cast<float>(random.uniform(-5, 5)));
      row.sampling.temperature = greedy ? 0.0 : 0.8;
      row.sampling.seed = r;
      row.sampling.logprobs = 2;
      row.sampling.logprob_token_ids = {3};
      rows.push_back(row);
    }
    const Answer good = run(rows);
    for (const size_t column : {0, 500, 1030}) {
      std::vector<Row> bad = rows;
      bad[2].logits[column] = std::numeric_limits<float>::quiet_NaN();
      const Answer answer = run(bad);
      for (size_t r = 0; r < rows.size(); ++r) {
        EXPECT_EQ(answer.token_ids[r], r == 2 ? kInvalidToken : good.token_ids[r]) << r;
        EXPECT_EQ(std::isnan(answer.logprobs[r].chosen.logprob), r == 2) << r;
        EXPECT_EQ(std::isnan(answer.logprobs[r].selected[0].logprob), r == 2) << r;
      }
    }
  }
}

TEST_P(Task4_3_LogitsEdits, LogProbabilitiesOfChosenIdsAndOfTheWholeVocabulary) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t vocab = 333;
  std::vector<Row> rows;
  for (int64_t r = 0; r < 2 * Sampler::kRows + 7; ++r) {
    Row row;
    for (int64_t i = 0; i < vocab; ++i) row.logits.push_back(static_cast<float>(random.uniform(-5, 5)));
    row.sampling.seed = static_cast<uint64_t>(r);
    if (r % 4 == 0) row.sampling.logprobs = -1;
    if (r % 4 == 1) row.sampling.logprobs = 3;
    if (r % 5 < 2) row.sampling.logprob_token_ids = {5, 5, static_cast<int32_t>(r % vocab)};
    if (r % 5 == 3) row.sampling.logprob_token_ids = {static_cast<int32_t>(vocab - 1)};
    if (r % 3 == 0) row.sampling.allowed_token_ids = {1, 2};  // which they do not see
    rows.push_back(row);
  }
  const Answer answer = run(rows);
  for (size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE("row " + std::to_string(r));
    const SamplingParams& asked = rows[r].sampling;
    const PositionLogprobs& position = answer.logprobs[r];
    double sum = 0;
    for (float x : rows[r].logits) sum += std::exp(static_cast<double>(x));
    const auto expected = [&](int32_t id) { return rows[r].logits[static_cast<size_t>(id)] - std::log(sum); };
    if (!wanted_logprobs(asked)) {
      EXPECT_TRUE(position.top.empty() && position.selected.empty());
      continue;
    }
    EXPECT_EQ(position.chosen.token_id, answer.token_ids[r]);
    EXPECT_NEAR(position.chosen.logprob, expected(position.chosen.token_id), 1e-5);
    ASSERT_EQ(position.selected.size(), asked.logprob_token_ids.size());
    for (size_t i = 0; i < position.selected.size(); ++i) {
      EXPECT_EQ(position.selected[i].token_id, asked.logprob_token_ids[i]);
      EXPECT_NEAR(position.selected[i].logprob, expected(asked.logprob_token_ids[i]), 1e-5);
    }
    const int64_t top = *wanted_logprobs(asked);
    ASSERT_EQ(std::ssize(position.top), top < 0 ? vocab : top);
    std::vector<bool> seen(static_cast<size_t>(vocab));
    for (size_t i = 0; i < position.top.size(); ++i) {
      const auto [id, logprob] = position.top[i];
      EXPECT_FALSE(seen[static_cast<size_t>(id)]);
      seen[static_cast<size_t>(id)] = true;
      EXPECT_NEAR(logprob, expected(id), 1e-5);
      EXPECT_LE(logprob, position.top[i > 0 ? i - 1 : 0].logprob);
    }
  }
}

// The host's half alone.
std::vector<int32_t> vector_of(std::span<const int32_t> values) {
  return {values.begin(), values.end()};
}

TEST(Task4_3_LogitsEditsList, ARowNamesEachTokenOnceAndEqualNeighboursShareAMask) {
  LogitsEdits edits(40);
  edits.add_bias(7, 1.0f);
  edits.forbid(3);
  edits.add_bias(7, 0.5f);
  edits.add_bias(3, 9.0f);
  edits.next_row();
  edits.next_row();
  for (int row = 0; row < 2; ++row) {
    edits.allow_only_ids(std::vector<int32_t>{0, 33});
    edits.next_row();
  }
  edits.allow_only_ids(std::vector<int32_t>{0, 33});
  edits.allow_only_ids(std::vector<int32_t>{1, 33});
  edits.add_bias(39, 2.0f);
  edits.next_row();
  EXPECT_THAT(vector_of(edits.row_start()), ElementsAre(0, 2, 2, 2, 2, 3));
  EXPECT_THAT(vector_of(edits.token_ids()), ElementsAre(3, 7, 39));
  EXPECT_THAT(std::vector<float>(edits.biases().begin(), edits.biases().end()),
              ElementsAre(-kInfinity, 1.5f, 2.0f));
  EXPECT_THAT(vector_of(edits.mask_index()), ElementsAre(-1, -1, 0, 0, 1));
  EXPECT_THAT(std::vector<uint32_t>(edits.bitmask().begin(), edits.bitmask().end()),
              ElementsAre(1u, 2u, 0u, 2u));
  EXPECT_THROW(edits.allow_only(std::vector<uint32_t>(1)), Error);
}

// A row without parameters of its own uploads nothing for these stages, so no kernel runs for them.
TEST(Task4_3_Plan, OfAPlainStepStagesNothing) {
  BatchSequence sequence;
  sequence.token_ids = {1};
  sequence.num_prompt_tokens = 1;
  sequence.sampling.temperature = 0;
  const std::vector<BatchSequence*> batch{&sequence};
  EXPECT_EQ(Sampler(100).plan(batch).upload_bytes(), 0);
  sequence.sampling.logit_bias = {{3, 1.0}};
  EXPECT_GT(Sampler(100).plan(batch).upload_bytes(), 0);
}

// What a request adds to a row, and nothing of the sampler: token -> bias.
std::map<int32_t, float> edits_of(const SamplingParams& sampling, std::vector<int32_t> prompt,
                                  const std::vector<int32_t>& output) {
  BatchSequence sequence;
  sequence.sampling = sampling;
  sequence.num_prompt_tokens = std::ssize(prompt);
  sequence.token_ids = std::move(prompt);
  sequence.token_ids.insert(sequence.token_ids.end(), output.begin(), output.end());
  LogitsEdits edits(40);
  edit_as_requested(sequence, edits);
  edits.next_row();
  std::map<int32_t, float> result;
  for (size_t i = 0; i < edits.token_ids().size(); ++i) result[edits.token_ids()[i]] = edits.biases()[i];
  return result;
}
using Edits = std::map<int32_t, float>;

TEST(Task4_3_LogitsEditsList, MinTokensCountsTheOutputAlone) {
  SamplingParams sampling;
  sampling.min_tokens = 2;
  sampling.all_stop_token_ids = {4, 3, 4};
  sampling.logit_bias = {{4, 1.0}, {9, 0.5}};
  const Edits early{{3, -kInfinity}, {4, -kInfinity}, {9, 0.5f}}, late{{4, 1.0f}, {9, 0.5f}};
  EXPECT_EQ(edits_of(sampling, {1, 2, 3, 4}, {}), early) << "forbidden whatever its bias is";
  EXPECT_EQ(edits_of(sampling, {1, 2, 3, 4}, {5}), early);
  EXPECT_EQ(edits_of(sampling, {1, 2, 3, 4}, {5, 6}), late);
}

TEST(Task4_3_LogitsEditsList, ABadWordIsForbiddenWhereTheOutputEndsInItsBeginning) {
  SamplingParams sampling;
  sampling.bad_words_token_ids = {{8}, {1, 2, 4}, {2, 3}};
  const auto forbidden = [&](std::vector<int32_t> prompt, const std::vector<int32_t>& output) {
    std::vector<int32_t> ids;
    for (const auto& [id, bias] : edits_of(sampling, std::move(prompt), output)) ids.push_back(id);
    return ids;
  };
  EXPECT_THAT(forbidden({5}, {}), ElementsAre(8));
  EXPECT_THAT(forbidden({5}, {1, 2}), ElementsAre(3, 4, 8));
  EXPECT_THAT(forbidden({5}, {2}), ElementsAre(3, 8));
  EXPECT_THAT(forbidden({5}, {1, 2, 5}), ElementsAre(8));
  EXPECT_THAT(forbidden({1}, {2}), ElementsAre(3, 8)) << "a prompt is no beginning";
  EXPECT_THAT(forbidden({1, 2}, {}), ElementsAre(8));
}

TEST(Task4_3_Plan, AProcessorWithoutAWishStagesNothing) {
  struct Silent final : LogitsProcessor {
    bool needs_tokens(const SamplingParams&) const override { return false; }
    void edit(const BatchSequence&, LogitsEdits& edits) override {
      if (speaks) edits.forbid(3);
    }
    bool speaks = false;
  };
  BatchSequence sequence;
  sequence.token_ids = {1};
  sequence.num_prompt_tokens = 1;
  sequence.sampling.temperature = 0;
  const std::vector<BatchSequence*> batch{&sequence};
  const auto processor = std::make_shared<Silent>();
  Sampler sampler(100);
  sampler.add_processor(processor);
  EXPECT_EQ(sampler.plan(batch).upload_bytes(), 0);
  processor->speaks = true;
  EXPECT_GT(sampler.plan(batch).upload_bytes(), 0);
}

TEST(Task4_3_LogitsEditsList, OnlyBadWordsOfSeveralTokensNeedTheTokens) {
  SamplingParams params;
  params.min_tokens = 3;
  params.logit_bias = {{1, 1.0}};
  params.allowed_token_ids = {1, 2};
  params.bad_words_token_ids = {{1}};
  EXPECT_FALSE(Sampler(100).needs_tokens(params));
  params.bad_words_token_ids.push_back({1, 2});
  EXPECT_TRUE(Sampler(100).needs_tokens(params));
}

}  // namespace
}  // namespace ladder
