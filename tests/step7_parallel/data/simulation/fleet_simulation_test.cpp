// Replicas in virtual time: the books, the seed, what a model of step times makes of committed runs.
#include "step7_parallel/data/simulation/fleet_simulation.h"

#include <gtest/gtest.h>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

FleetConfig small_fleet(int num_replicas, const std::string& balancer) {
  FleetConfig config;
  config.scheduler.batch = {.max_num_seqs = 64,
                            .max_num_batched_tokens = 2048,
                            .max_model_len = 16384,
                            .block_size = 16,
                            .num_kv_blocks = 2048};
  config.scheduler.vocab_size = 100'000;
  config.scheduler.prefix_cache_seed = 1;
  config.model = kQwen3SmallOnH200;
  config.num_replicas = num_replicas;
  config.balancer = balancer;
  config.sessions_per_second = 1.0 * num_replicas;
  return config;
}

TEST(StepTimeModel, MakesTheTimesOfTheRunsThatItIsFrom) {
  const StepTimeModel& model = kQwen3SmallOnH200;
  EXPECT_NEAR(model.seconds({1, 0, 80}), 0.538e-3, 0.01e-3);
  EXPECT_NEAR(model.seconds({256, 0, 256 * 80}), 2.248e-3, 0.02e-3);
  EXPECT_NEAR(model.seconds({256, 8192 - 256, 0}), 17.7e-3, 0.2e-3);
  EXPECT_NEAR(1024 * model.fixed + model.seconds({140'841, 140'344, 125'000'000}), 5.08, 0.05);
}

TEST(SimulatedReplica, OneRequestTakesItsStepsAndItsPromptIsCached) {
  const FleetConfig config = small_fleet(1, "round_robin");
  SimulatedReplica replica(config.scheduler, {.fixed = 1, .per_prompt_token = 0.5, .per_kv_token = 0.25});
  EXPECT_FALSE(replica.begin_step());
  EXPECT_THROW(replica.end_step(), Error);
  std::vector<int32_t> prompt(33, 7);
  replica.add(5, prompt, 2);
  // 32 prompt tokens besides the one that samples; then one row that reads 33 tokens.
  EXPECT_DOUBLE_EQ(replica.begin_step().value(), 1 + 32 * 0.5);
  EXPECT_THROW(replica.begin_step(), Error);
  std::span<const SimulatedToken> tokens = replica.end_step();
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_EQ(tokens[0].request, 5);
  EXPECT_FALSE(tokens[0].is_last);
  const int32_t token_of_first = tokens[0].token_id;
  EXPECT_DOUBLE_EQ(replica.begin_step().value(), 1 + 33 * 0.25);
  tokens = replica.end_step();
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_TRUE(tokens[0].is_last);
  EXPECT_FALSE(replica.begin_step());
  // Two full blocks of the same prompt are there.
  replica.add(6, prompt, 1);
  EXPECT_DOUBLE_EQ(replica.begin_step().value(), 1 + 32 * 0.25);
  tokens = replica.end_step();
  EXPECT_TRUE(tokens[0].is_last);
  EXPECT_NE(tokens[0].token_id, token_of_first);
  EXPECT_EQ(replica.stats().num_used_blocks, 0);
}

// Steps of a second. The second turn is 33 + 16 + 15 tokens, of which all that was computed before, 48, is cached.
TEST(FleetSimulation, ASessionByHand) {
  FleetConfig config = small_fleet(1, "round_robin");
  config.model = {.fixed = 1};
  config.sessions_per_second = 0;
  const FleetResult result = simulate_fleet(config, {{{33, 16, 0}, {15, 16, 100}}});
  EXPECT_EQ(result.num_requests, 2);
  EXPECT_DOUBLE_EQ(result.seconds, 32);
  EXPECT_DOUBLE_EQ(result.ttft_p50, 1);
  EXPECT_DOUBLE_EQ(result.ttft_p99, 1);
  EXPECT_DOUBLE_EQ(result.inter_token_mean, 1);
  EXPECT_NEAR(result.inter_token_p99, 1, 0.01);
  EXPECT_DOUBLE_EQ(result.measured_seconds, 32);
  EXPECT_DOUBLE_EQ(result.hit_rate, 48.0 / (33 + 64));
  EXPECT_DOUBLE_EQ(result.output_tokens_per_second, 1);
}

// Of 32 tokens, one a second, those from the 9th to the 24th: the end of the first turn and the begin of the second.
TEST(FleetSimulation, MeasuresTheMiddle) {
  FleetConfig config = small_fleet(1, "round_robin");
  config.model = {.fixed = 1};
  config.sessions_per_second = 0;
  config.measure_from = 0.25;
  config.measure_to = 0.75;
  const FleetResult result = simulate_fleet(config, {{{33, 16, 0}, {15, 16, 100}}});
  EXPECT_EQ(result.num_requests, 2);
  EXPECT_DOUBLE_EQ(result.seconds, 32);
  EXPECT_DOUBLE_EQ(result.measured_seconds, 16);
  EXPECT_DOUBLE_EQ(result.output_tokens_per_second, 1);
  EXPECT_DOUBLE_EQ(result.ttft_p99, 1);          // of the second turn
  EXPECT_DOUBLE_EQ(result.hit_rate, 48.0 / 64);  // the first turn's prompt was asked for before
  EXPECT_DOUBLE_EQ(result.inter_token_mean, 1);
}

// The second session finds one request on the other replica, and so does the first one's second turn.
TEST(FleetSimulation, WhatHasEndedIsNotInFlight) {
  FleetConfig config = small_fleet(2, "round_robin");
  config.model = {.fixed = 1};
  config.sessions_per_second = 0;
  EXPECT_DOUBLE_EQ(simulate_fleet(config, {{{20, 1, 0}, {20, 1, 0}}, {{20, 4, 0}}}).imbalance, 2);
}

TEST(FleetSimulation, EachBalancerAnswersAll) {
  const std::vector<PlannedSession> sessions = make_growing_sessions(12, 3);
  int64_t num_output = 0;
  for (const PlannedSession& session : sessions)
    for (const PlannedTurn& turn : session) num_output += turn.num_output;
  for (const BalancerRow& row : balancers()) {
    SCOPED_TRACE(row.name);
    const FleetResult result = simulate_fleet(small_fleet(3, std::string(row.name)), sessions);
    EXPECT_EQ(result.num_requests, 12 * 8);
    EXPECT_NEAR(result.output_tokens_per_second * result.seconds, static_cast<double>(num_output), 0.5);
    EXPECT_GT(result.ttft_p50, 0);
    EXPECT_GE(result.ttft_p99, result.ttft_p50);
    EXPECT_GE(result.imbalance, 1);
    EXPECT_LE(result.imbalance, 3);
  }
}

TEST(FleetSimulation, TheSeedDecides) {
  const std::vector<PlannedSession> sessions = make_independent_requests(60, 1);
  FleetConfig config = small_fleet(2, "load_score");
  const FleetResult one = simulate_fleet(config, sessions);
  const FleetResult again = simulate_fleet(config, sessions);
  config.seed = 1;
  const FleetResult other = simulate_fleet(config, sessions);
  EXPECT_EQ(one.seconds, again.seconds);
  EXPECT_EQ(one.ttft_p99, again.ttft_p99);
  EXPECT_NE(one.seconds, other.seconds);
}

TEST(FleetSimulation, OfOneReplicaAllBalancersAreTheSame) {
  const std::vector<PlannedSession> sessions = make_growing_sessions(6, 2);
  const FleetResult expected = simulate_fleet(small_fleet(1, "round_robin"), sessions);
  for (const BalancerRow& row : balancers()) {
    const FleetResult result = simulate_fleet(small_fleet(1, std::string(row.name)), sessions);
    EXPECT_EQ(result.seconds, expected.seconds) << row.name;
    EXPECT_EQ(result.imbalance, 1) << row.name;
  }
}

TEST(FleetSimulation, ASessionFindsItsTurnsWhereTheyWereComputed) {
  const std::vector<PlannedSession> sessions = make_growing_sessions(16, 4);
  const FleetResult turns = simulate_fleet(small_fleet(2, "round_robin"), sessions);
  const FleetResult aware = simulate_fleet(small_fleet(2, "prefix_aware"), sessions);
  EXPECT_GT(aware.hit_rate, 1.5 * turns.hit_rate);
  EXPECT_LT(aware.ttft_p50, turns.ttft_p50);
}

}  // namespace
}  // namespace ladder
