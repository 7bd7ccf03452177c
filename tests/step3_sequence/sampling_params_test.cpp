#include "step3_sequence/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

constexpr int64_t kVocab = 100;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One field changed; the error must be one line that names it.
void expect_error(const std::string& name, const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  try {
    validate_sampling_params(params, kVocab);
    ADD_FAILURE() << name << ": accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(name));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
  }
}

void expect_fine(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  EXPECT_NO_THROW(validate_sampling_params(params, kVocab));
}

TEST(Task3_1_SamplingParams, DefaultsAreValid) {
  expect_fine([](SamplingParams&) {});
}

TEST(Task3_1_SamplingParams, RefusesNumbersThatAreNone) {
  expect_error("temperature", [](SamplingParams& p) { p.temperature = kNan; });
  expect_error("temperature", [](SamplingParams& p) { p.temperature = kInfinity; });
  expect_error("top_p", [](SamplingParams& p) { p.top_p = kNan; });
  expect_error("min_p", [](SamplingParams& p) { p.min_p = kNan; });
  expect_error("repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = kNan; });
  expect_error("repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = kInfinity; });
  expect_error("presence_penalty", [](SamplingParams& p) { p.presence_penalty = kNan; });
  expect_error("frequency_penalty", [](SamplingParams& p) { p.frequency_penalty = -kInfinity; });
}

TEST(Task3_1_SamplingParams, RefusesWhatLiesOutOfRangeAndTakesTheEnds) {
  expect_error("temperature", [](SamplingParams& p) { p.temperature = -0.1; });
  expect_fine([](SamplingParams& p) { p.temperature = 0; });
  expect_error("top_p", [](SamplingParams& p) { p.top_p = 0; });
  expect_error("top_p", [](SamplingParams& p) { p.top_p = 1.01; });
  expect_fine([](SamplingParams& p) { p.top_p = 0.01; });
  expect_error("min_p", [](SamplingParams& p) { p.min_p = -0.01; });
  expect_error("min_p", [](SamplingParams& p) { p.min_p = 1.01; });
  expect_fine([](SamplingParams& p) { p.min_p = 1; });
  expect_error("top_k", [](SamplingParams& p) { p.top_k = -2; });
  expect_error("repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = 0; });
  expect_error("presence_penalty", [](SamplingParams& p) { p.presence_penalty = 2.5; });
  expect_fine([](SamplingParams& p) { p.presence_penalty = -2; });
  expect_error("frequency_penalty", [](SamplingParams& p) { p.frequency_penalty = -2.5; });
  expect_error("max_tokens", [](SamplingParams& p) { p.max_tokens = 0; });
  expect_error("max_tokens", [](SamplingParams& p) { p.max_tokens = -5; });
  expect_fine([](SamplingParams& p) { p.max_tokens = std::numeric_limits<int64_t>::max(); });
  expect_error("min_tokens", [](SamplingParams& p) { p.min_tokens = -1; });
  expect_error("min_tokens", [](SamplingParams& p) { p.min_tokens = 5, p.max_tokens = 4; });
  expect_fine([](SamplingParams& p) { p.min_tokens = p.max_tokens.emplace(4); });
  expect_fine([](SamplingParams& p) { p.min_tokens = 1000; });  // max_tokens is absent: the end is far
  for (const int64_t off : {0, -1}) expect_fine([off](SamplingParams& p) { p.top_k = off; });
  expect_error("logprobs", [](SamplingParams& p) { p.logprobs = -2; });
  expect_error("logprobs", [](SamplingParams& p) { p.logprobs = kMaxLogprobs + 1; });
  expect_fine([](SamplingParams& p) { p.logprobs = kMaxLogprobs; });
  expect_error("prompt_logprobs", [](SamplingParams& p) { p.prompt_logprobs = kMaxLogprobs + 1; });
  expect_error("prompt_logprobs", [](SamplingParams& p) { p.prompt_logprobs = -2; });
  expect_fine([](SamplingParams& p) { p.logprobs = p.prompt_logprobs = -1; });  // the whole vocabulary
}

TEST(Task3_1_SamplingParams, NoMoreLogprobsOfATokenThanTheLimit) {
  const auto refused = [](auto SamplingParams::*field, int64_t wanted, int64_t limit) -> std::string {
    SamplingParams params;
    params.*field = wanted;
    try {
      check_max_logprobs(params, 50, limit);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  for (const auto& [field, name] : {std::pair(&SamplingParams::logprobs, "logprobs: "),
                                    std::pair(&SamplingParams::prompt_logprobs, "prompt_logprobs: ")}) {
    EXPECT_EQ(refused(field, 20, 20), "");
    EXPECT_EQ(refused(field, 21, 20).find(name), 0u) << "named";
    EXPECT_NE(refused(field, 21, 20).find("--max-logprobs"), std::string::npos);
    EXPECT_EQ(refused(field, 0, 0), "");
    EXPECT_NE(refused(field, 1, 0), "");
    EXPECT_NE(refused(field, -1, 49), "") << "the whole vocabulary counts as what it has";
    EXPECT_EQ(refused(field, -1, 50), "");
    EXPECT_EQ(refused(field, -1, -1), "") << "no limit";
    EXPECT_EQ(refused(field, 60, -1), "");
  }
  check_max_logprobs(SamplingParams{}, 50, 0);  // a request without any
}

// CVE-2026-34756: n was a way to ask for any amount of memory.
TEST(Task3_1_SamplingParams, RefusesNoneAndABillionCompletions) {
  for (const int64_t n :
       {int64_t{0}, int64_t{-1}, kMaxCompletions + 1, int64_t{1000000000}, int64_t{1} << 31})
    expect_error("n must", [n](SamplingParams& p) { p.n = n; });
  expect_fine([](SamplingParams& p) { p.n = kMaxCompletions; });
}

// vLLM #44968: such an id reached the GPU and took the engine down.
TEST(Task3_1_SamplingParams, RefusesIdsOutsideTheVocabularyInEveryFieldThatHoldsIds) {
  const std::vector<std::pair<const char*, std::function<void(SamplingParams&, int32_t)>>> fields = {
      {"stop_token_ids",
       [](SamplingParams& p, int32_t id) {
         p.stop_token_ids = {0, id};
       }},
      {"allowed_token_ids",
       [](SamplingParams& p, int32_t id) {
         p.allowed_token_ids = {0, id};
       }},
      {"logprob_token_ids",
       [](SamplingParams& p, int32_t id) {
         p.logprob_token_ids = {0, id};
       }},
      {"logit_bias",
       [](SamplingParams& p, int32_t id) {
         p.logit_bias = {{0, 1.0}, {id, 1.0}};
       }},
      {"bad_words_token_ids",
       [](SamplingParams& p, int32_t id) {
         p.bad_words_token_ids = {{1}, {0, id}};
       }},
  };
  for (const auto& [name, set] : fields) {
    for (const int32_t id : {-1, static_cast<int32_t>(kVocab), std::numeric_limits<int32_t>::max(),
                             std::numeric_limits<int32_t>::min()})
      expect_error(name, [&, id](SamplingParams& p) { set(p, id); });
    for (const int32_t id : {0, static_cast<int32_t>(kVocab - 1)})
      expect_fine([&, id](SamplingParams& p) { set(p, id); });
  }
}

TEST(Task3_1_SamplingParams, RefusesBiasesOutOfRange) {
  for (const double bias : {-100.5, 100.5, kNan, kInfinity, -kInfinity})
    expect_error("logit_bias", [bias](SamplingParams& p) { p.logit_bias[3] = bias; });
  for (const double bias : {-100.0, 0.0, 100.0})
    expect_fine([bias](SamplingParams& p) { p.logit_bias[3] = bias; });
}

TEST(Task3_1_SamplingParams, BoundsTheListsOfTokensAndWords) {
  const auto ids = [](int64_t count) { return std::vector<int32_t>(static_cast<size_t>(count), 1); };
  expect_error("allowed_token_ids", [&](SamplingParams& p) { p.allowed_token_ids = ids(kVocab + 1); });
  expect_error("logprob_token_ids",
               [&](SamplingParams& p) { p.logprob_token_ids = ids(kMaxLogprobTokenIds + 1); });
  expect_error("bad_words", [](SamplingParams& p) { p.bad_words.assign(kMaxBadWords + 1, "x"); });
  expect_error("bad_words", [](SamplingParams& p) { p.bad_words = {""}; });
  expect_error("bad_words",
               [](SamplingParams& p) { p.bad_words = {std::string(kMaxBadWordBytes + 1, 'x')}; });
  expect_error("bad_words_token_ids", [](SamplingParams& p) { p.bad_words_token_ids = {{1}, {}}; });
  expect_error("bad_words_token_ids",
               [](SamplingParams& p) { p.bad_words_token_ids.assign(2 * kMaxBadWords + 1, {1}); });
  // More entries than the limit need a vocabulary that has them.
  SamplingParams params;
  for (int32_t id = 0; id <= kMaxLogitBias; ++id) params.logit_bias[id] = 1.0;
  EXPECT_THROW(validate_sampling_params(params, 1 << 20), Error);
  params.logit_bias.erase(0);
  EXPECT_NO_THROW(validate_sampling_params(params, 1 << 20));
}

TEST(Task3_1_SamplingParams, LogprobTokenIdsAloneAskForLogProbabilities) {
  SamplingParams params;
  EXPECT_EQ(wanted_logprobs(params), std::nullopt);
  params.logprob_token_ids = {3};
  EXPECT_EQ(wanted_logprobs(params), 0);
  params.logprobs = 5;
  EXPECT_EQ(wanted_logprobs(params), 5);
}

TEST(Task3_1_SamplingParams, BoundsTheStopLists) {
  expect_error("stop", [](SamplingParams& p) { p.stop.assign(kMaxStopStrings + 1, "x"); });
  expect_error("stop", [](SamplingParams& p) { p.stop = {""}; });
  expect_error("stop", [](SamplingParams& p) { p.stop = {std::string(kMaxStopStringBytes + 1, 'x')}; });
  expect_fine(
      [](SamplingParams& p) { p.stop.assign(kMaxStopStrings, std::string(kMaxStopStringBytes, 'x')); });
  expect_error("stop_token_ids", [](SamplingParams& p) { p.stop_token_ids.assign(kMaxStopTokenIds + 1, 1); });
  expect_error("cache_salt", [](SamplingParams& p) { p.cache_salt.assign(kMaxCacheSaltBytes + 1, 'x'); });
}

}  // namespace
}  // namespace ladder
