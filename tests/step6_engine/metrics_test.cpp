// Task 6.3: metrics.
#include "step6_engine/metrics/metrics.h"

#include <gtest/gtest.h>

namespace ladder {
namespace {

RequestMetrics metrics_of(const RequestTimer& timer) {
  RequestMetrics metrics;
  timer.fill(metrics);
  return metrics;
}

TEST(Task6_3_RequestTimer, SplitsTheLifeOfARequest) {
  RequestTimer timer(10.0);
  timer.on_scheduled(10.5);
  timer.on_scheduled(11.0);  // a second chunk of the prompt, or a resumption after preemption
  timer.on_tokens(0, 1, 12.0);
  timer.on_tokens(0, 1, 12.25);
  timer.on_tokens(0, 1, 13.25);
  const RequestMetrics metrics = metrics_of(timer);
  EXPECT_DOUBLE_EQ(metrics.queue_seconds, 0.5);
  EXPECT_DOUBLE_EQ(metrics.time_to_first_token, 2.0);
  EXPECT_DOUBLE_EQ(metrics.inter_token_latency_mean, 0.625);
  EXPECT_DOUBLE_EQ(metrics.inter_token_latency_max, 1.0);
  EXPECT_DOUBLE_EQ(metrics.end_to_end_seconds, 3.25);
  EXPECT_EQ(metrics.num_output_tokens, 3);
}

TEST(Task6_3_RequestTimer, GapsAreWithinACompletionNotBetweenThem) {
  RequestTimer timer(0.0);
  timer.on_scheduled(0.0);
  timer.on_tokens(0, 1, 1.0);
  timer.on_tokens(1, 1, 1.5);  // the other completion's first token: no gap
  timer.on_tokens(0, 1, 2.0);
  timer.on_tokens(1, 1, 4.5);
  const RequestMetrics metrics = metrics_of(timer);
  EXPECT_DOUBLE_EQ(metrics.time_to_first_token, 1.0);
  EXPECT_DOUBLE_EQ(metrics.inter_token_latency_mean, 2.0);
  EXPECT_DOUBLE_EQ(metrics.inter_token_latency_max, 3.0);
}

TEST(Task6_3_RequestTimer, OneTokenHasNoGap) {
  RequestTimer timer(0.0);
  timer.on_scheduled(0.25);
  timer.on_tokens(0, 0, 0.5);  // a chunk of the prompt: no token yet
  timer.on_tokens(0, 1, 1.0);
  const RequestMetrics metrics = metrics_of(timer);
  EXPECT_DOUBLE_EQ(metrics.time_to_first_token, 1.0);
  EXPECT_DOUBLE_EQ(metrics.inter_token_latency_mean, 0.0);
  EXPECT_DOUBLE_EQ(metrics.inter_token_latency_max, 0.0);
}

TEST(Task6_3_RequestTimer, TokensThatArriveTogetherShareTheWait) {
  RequestTimer timer(0.0);
  timer.on_scheduled(0.0);
  timer.on_tokens(0, 1, 1.0);
  timer.on_tokens(0, 3, 4.0);
  EXPECT_DOUBLE_EQ(metrics_of(timer).inter_token_latency_mean, 1.0);
  EXPECT_DOUBLE_EQ(metrics_of(timer).inter_token_latency_max, 1.0);
}

TEST(Task6_3_RequestTimer, ARequestThatNeverRanHasZeros) {
  const RequestMetrics metrics = metrics_of(RequestTimer(5.0));
  EXPECT_DOUBLE_EQ(metrics.queue_seconds, 0.0);
  EXPECT_DOUBLE_EQ(metrics.time_to_first_token, 0.0);
  EXPECT_DOUBLE_EQ(metrics.end_to_end_seconds, 0.0);
}

TEST(Task6_3_EngineMetrics, SumsStepsAndKeepsPeaks) {
  EngineMetrics metrics;
  metrics.add(StepMetrics{.step = 0,
                          .num_tokens = 40,
                          .num_running = 2,
                          .num_waiting = 1,
                          .num_kv_blocks_used = 4,
                          .num_kv_tokens = 40,
                          .seconds = 0.5,
                          .execute_seconds = 0.25},
              16);
  metrics.add(StepMetrics{.step = 1,
                          .num_tokens = 3,
                          .num_running = 3,
                          .num_waiting = 0,
                          .num_kv_blocks_used = 2,
                          .num_kv_tokens = 32,
                          .seconds = 0.5,
                          .execute_seconds = 0.25},
              16);
  metrics.add(StepMetrics{.step = 2}, 16);  // nothing in use: not a step with an empty cache
  EXPECT_EQ(metrics.num_steps, 3);
  EXPECT_EQ(metrics.num_tokens, 43);
  EXPECT_EQ(metrics.peak_running, 3);
  EXPECT_EQ(metrics.peak_kv_blocks, 4);
  EXPECT_DOUBLE_EQ(metrics.step_seconds, 1.0);
  EXPECT_DOUBLE_EQ(metrics.execute_seconds, 0.5);
  EXPECT_DOUBLE_EQ(metrics.kv_live_share(), (40.0 / 64.0 + 1.0) / 2.0);
}

TEST(Task6_3_EngineMetrics, HitRateIsCachedOverPromptTokens) {
  EngineMetrics metrics;
  EXPECT_DOUBLE_EQ(metrics.prefix_hit_rate(), 0.0);
  metrics.add(RequestMetrics{.num_prompt_tokens = 30, .num_output_tokens = 5, .num_cached_tokens = 16});
  metrics.add(RequestMetrics{.num_prompt_tokens = 34, .num_output_tokens = 7, .num_preemptions = 2});
  EXPECT_DOUBLE_EQ(metrics.prefix_hit_rate(), 0.25);
  EXPECT_EQ(metrics.num_output_tokens, 12);
  EXPECT_EQ(metrics.num_preemptions, 2);
}

TEST(Percentile, IsTheNearestRank) {
  EXPECT_DOUBLE_EQ(percentile({}, 0.5), 0.0);
  EXPECT_DOUBLE_EQ(percentile({3.0, 1.0, 2.0}, 0.5), 2.0);
  EXPECT_DOUBLE_EQ(percentile({4.0, 1.0, 3.0, 2.0}, 0.5), 2.0);
  EXPECT_DOUBLE_EQ(percentile({4.0, 1.0, 3.0, 2.0}, 0.99), 4.0);
  EXPECT_DOUBLE_EQ(percentile({4.0, 1.0}, 0.0), 1.0);
}

}  // namespace
}  // namespace ladder
