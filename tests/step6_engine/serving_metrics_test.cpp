// Histograms, and what they are told of requests: times are made up.
#include "step6_engine/metrics/serving_metrics.h"

#include <gtest/gtest.h>

#include <limits>
#include <type_traits>

#include "step6_engine/request.h"

namespace ladder {
namespace {

constexpr std::array kBounds = {0.5, 1.0, 4.0};

// Copied every step, sent between processes as it is.
static_assert(std::is_trivially_copyable_v<EngineMetrics>);
static_assert(sizeof(EngineMetrics) < 4096);

TEST(Histogram, ABoundBelongsToTheBucketBelowIt) {
  Histogram<kBounds> histogram;
  for (const double value : {-1.0, 0.5, 0.75, 1.0, 1.5, 4.0, 4.5}) histogram.observe(value);
  EXPECT_EQ(histogram.counts, (std::array<int64_t, 4>{2, 2, 2, 1}));
  EXPECT_DOUBLE_EQ(histogram.sum, 11.25);
}

TEST(Histogram, AValueSeenSeveralTimesCountsThatOften) {
  Histogram<kBounds> histogram;
  histogram.observe(0.75, 3);
  EXPECT_EQ(histogram.counts, (std::array<int64_t, 4>{0, 3, 0, 0}));
  EXPECT_DOUBLE_EQ(histogram.sum, 2.25);
}

TEST(Histogram, ANanAndInfinityLieAboveAllBounds) {
  Histogram<kBounds> histogram;
  histogram.observe(std::numeric_limits<double>::quiet_NaN());
  histogram.observe(std::numeric_limits<double>::infinity());
  EXPECT_EQ(histogram.counts, (std::array<int64_t, 4>{0, 0, 0, 2}));
}

template <class H>
int64_t count_of(const H& histogram) {
  int64_t count = 0;
  for (const int64_t bucket : histogram.counts) count += bucket;
  return count;
}

// A request as the engine tells of it: each entry of `tokens` is {completion, count, now}.
struct Told {
  int64_t completion, count;
  double now;
};

void tell(ServingMetrics& serving, double arrival, double scheduled, const std::vector<Told>& tokens,
          int64_t n, FinishReason reason, int64_t num_prompt_tokens = 7) {
  RequestTimer timer(arrival);
  timer.on_scheduled(scheduled);
  RequestOutput output;
  output.metrics.num_prompt_tokens = num_prompt_tokens;
  output.completions.resize(static_cast<size_t>(n));
  for (const Told& told : tokens) {
    serving.on_tokens(timer, output.metrics, told.completion, told.count, told.now);
    timer.on_tokens(told.completion, told.count, told.now);
    auto& ids = output.completions[static_cast<size_t>(told.completion)].token_ids;
    ids.resize(ids.size() + static_cast<size_t>(told.count));
  }
  for (CompletionOutput& completion : output.completions) completion.finish_reason = reason;
  timer.fill(output.metrics);
  serving.on_ended(output);
}

TEST(ServingMetrics, SplitsTheLifeOfARequest) {
  ServingMetrics serving;
  tell(serving, 10.0, 10.5, {{0, 0, 11.0}, {0, 1, 12.0}, {0, 1, 12.25}, {0, 1, 13.25}}, 1,
       FinishReason::stop);
  EXPECT_DOUBLE_EQ(serving.queue.sum, 0.5);
  EXPECT_DOUBLE_EQ(serving.time_to_first_token.sum, 2.0);
  EXPECT_DOUBLE_EQ(serving.prefill.sum, 1.5);
  EXPECT_DOUBLE_EQ(serving.decode.sum, 1.25);
  EXPECT_DOUBLE_EQ(serving.inference.sum, 2.75);
  EXPECT_DOUBLE_EQ(serving.end_to_end.sum, 3.25);
  EXPECT_DOUBLE_EQ(serving.inter_token_latency.sum, 1.25);
  EXPECT_EQ(count_of(serving.inter_token_latency), 2);
  EXPECT_DOUBLE_EQ(serving.request_time_per_output_token.sum, 0.625);
  EXPECT_DOUBLE_EQ(serving.request_prompt_tokens.sum, 7);
  EXPECT_DOUBLE_EQ(serving.request_generation_tokens.sum, 3);
  EXPECT_EQ(serving.num_prompt_tokens, 7);
  EXPECT_EQ(serving.num_generation_tokens, 3);
}

TEST(ServingMetrics, GapsAreWithinACompletionAndTheFirstTokenIsTheRequests) {
  ServingMetrics serving;
  tell(serving, 0.0, 0.0, {{0, 1, 1.0}, {1, 1, 1.5}, {0, 1, 2.0}, {1, 2, 4.5}}, 2, FinishReason::length);
  EXPECT_EQ(count_of(serving.time_to_first_token), 1);
  EXPECT_DOUBLE_EQ(serving.time_to_first_token.sum, 1.0);
  EXPECT_EQ(count_of(serving.inter_token_latency), 3);
  EXPECT_DOUBLE_EQ(serving.inter_token_latency.sum, 4.0);
  EXPECT_EQ(serving.inter_token_latency.counts[11], 1) << "1.0 s, bound 1.0";
  EXPECT_EQ(serving.inter_token_latency.counts[12], 2) << "two tokens that came together: 1.5 s each";
  EXPECT_EQ(serving.num_prompt_tokens, 7) << "the prompt is one, whatever n is";
  EXPECT_EQ(count_of(serving.request_generation_tokens), 2);
  EXPECT_DOUBLE_EQ(serving.request_generation_tokens.sum, 5);
  EXPECT_DOUBLE_EQ(serving.request_max_generation_tokens.sum, 3);
  EXPECT_EQ(serving.num_completions_ended[static_cast<size_t>(FinishReason::length)], 2);
}

TEST(ServingMetrics, OneTokenHasNoTimePerToken) {
  ServingMetrics serving;
  tell(serving, 0.0, 0.0, {{0, 1, 1.0}}, 1, FinishReason::length);
  EXPECT_EQ(count_of(serving.request_time_per_output_token), 0);
  EXPECT_EQ(count_of(serving.decode), 1);
}

TEST(ServingMetrics, WhatWasAbortedOrFailedIsCountedAndItsTimesAreNot) {
  ServingMetrics serving;
  tell(serving, 0.0, 0.0, {{0, 1, 1.0}, {0, 1, 2.0}}, 1, FinishReason::abort);
  tell(serving, 0.0, 0.0, {}, 1, FinishReason::error);
  EXPECT_EQ(serving.num_completions_ended, (std::array<int64_t, 5>{0, 0, 0, 1, 1}));
  EXPECT_EQ(count_of(serving.end_to_end), 0);
  EXPECT_EQ(count_of(serving.request_prompt_tokens), 0);
  EXPECT_EQ(count_of(serving.time_to_first_token), 1) << "it did get a token";
  EXPECT_EQ(serving.num_generation_tokens, 2);
}

TEST(ServingMetrics, ParametersAreThoseOfTheRequest) {
  ServingMetrics serving;
  SamplingParams sampling;
  serving.on_request(sampling);
  sampling.n = 3;
  sampling.max_tokens = 100;
  serving.on_request(sampling);
  EXPECT_EQ(count_of(serving.request_n), 2);
  EXPECT_DOUBLE_EQ(serving.request_n.sum, 4);
  EXPECT_EQ(count_of(serving.request_max_tokens), 1);
  EXPECT_DOUBLE_EQ(serving.request_max_tokens.sum, 100);
}

}  // namespace
}  // namespace ladder
