// The planner: formulas against closed forms and against counting, its simulation by hand, its choice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/planner/cluster_simulation.h"
#include "step8_advanced/disaggregation/planner/measure_steps.h"
#include "step8_advanced/disaggregation/planner/plan.h"
#include "step8_advanced/disaggregation/planner/planned_requests.h"
#include "step8_advanced/disaggregation/planner/prompts_beside.h"
#include "step8_advanced/disaggregation/planner/step_times.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/support/error_of.h"
#include "tests/support/numerics.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::Random;

// About Llama-3.1-8B on an H100.
constexpr StepTimeModel kModel{.fixed = 5.2e-3,
                               .per_sequence = 20e-6,
                               .per_prompt_token = 24e-6,
                               .per_kv_token = 45e-9,
                               .per_prompt_pair = 0.5e-9};

PlanProblem problem_of(const RequestShape& shape, double rate, ServiceLevel level, int num_gpus = 2) {
  PlanProblem problem;
  problem.requests = draw_requests(300, rate, shape, 3);
  problem.rate = rate;
  problem.level = level;
  problem.num_gpus = num_gpus;
  problem.engines = {{1, kModel, 400'000, 256}};
  problem.kv_bytes_per_token = 131'072;
  problem.num_layers = 32;
  problem.link = {50e9, 1e-4, true};
  return problem;
}

TEST(Task8_7_Planner, OneServerWithEqualPromptsIsMD1) {
  const double rate = 4, seconds = 0.2;
  const Queue queue = make_queue(rate, seconds, seconds * seconds, 1);
  EXPECT_TRUE(queue.stable);
  EXPECT_NEAR(queue.utilisation, 0.8, 1e-12);
  EXPECT_NEAR(queue.mean_wait(), rate * seconds * seconds / (2 * (1 - rate * seconds)), 1e-12);
  EXPECT_NEAR(queue.share_within(0), 1 - 0.8, 1e-12);
  EXPECT_EQ(queue.share_within(-0.1), 0);
}

TEST(Task8_7_Planner, PromptsOfSeveralLengthsWaitLonger) {
  // Half of the prompts take nothing, half twice as long: E[S^2] is twice that of equal ones.
  const Queue equal = make_queue(4, 0.2, 0.04, 1), mixed = make_queue(4, 0.2, 0.08, 1);
  EXPECT_NEAR(mixed.mean_wait(), 2 * equal.mean_wait(), 1e-12);
}

TEST(Task8_7_Planner, TwoServersWaitAsErlangSays) {
  // M/M/2 (E[S^2] = 2 E[S]^2): C = 2 rho^2 / (1 + rho), mean wait C / (2 (1 - rho)) of service.
  const double rho = 0.6;
  const Queue queue = make_queue(2 * rho, 1, 2, 2);
  EXPECT_NEAR(queue.waits, 2 * rho * rho / (1 + rho), 1e-12);
  EXPECT_NEAR(queue.wait, 1 / (2 * (1 - rho)), 1e-12);
}

TEST(Task8_7_Planner, AQueueThatGrowsForEverSaysSo) {
  EXPECT_FALSE(make_queue(5, 0.2, 0.04, 1).stable);
  EXPECT_EQ(make_queue(6, 0.2, 0.04, 1).share_within(1e9), 0);
  EXPECT_TRUE(make_queue(6, 0.2, 0.04, 2).stable);
  EXPECT_EQ(make_queue(0, 0.2, 0.04, 1).share_within(0), 1);
}

TEST(Task8_7_Planner, TheBatchIsWhatArrivesWhileItLasts) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 50; ++i) {
    const DecodeLoad load{random.uniform(1, 500), random.uniform(10, 8000)};
    const double rate = random.uniform(0.01, 0.9) /
                        (load.num_output * (kModel.per_sequence + load.context * kModel.per_kv_token));
    const double batch = decode_batch(kModel, load, rate);
    EXPECT_NEAR(batch, rate * load.num_output * decode_step(kModel, load, batch), 1e-6 * batch);
  }
  EXPECT_TRUE(std::isinf(decode_batch(kModel, {100, 0}, 1 / (100 * kModel.per_sequence))));
}

TEST(Task8_7_Planner, TheLargestBatchKeepsTimeCacheAndLimit) {
  const DecodeLoad load{100, 1000};
  const PlannedEngine engine{1, kModel, 400'000, 256};
  const double by_time = largest_batch(engine, load, 10e-3);
  EXPECT_LE(decode_step(kModel, load, by_time), 10e-3);
  EXPECT_GT(decode_step(kModel, load, by_time + 1), 10e-3);
  EXPECT_EQ(largest_batch({1, kModel, 20'500, 256}, load, 1), 20);  // whole ones
  EXPECT_EQ(largest_batch(engine, load, 1), 256);
  EXPECT_EQ(largest_batch(engine, load, 5.2e-3), 0);
}

TEST(Task8_7_Planner, InstancesForARate) {
  EXPECT_EQ(prefill_instances(10, 0.13), 2);  // 1.3 busy, 0.65 each
  EXPECT_EQ(prefill_instances(10, 0.15), 3);
  EXPECT_EQ(prefill_instances(0.1, 0.1), 1);
  const PlannedEngine engine{1, {.fixed = 10e-3}, 1'000'000, 100};
  // 100 in a step of 10 ms: 10,000 tokens a second, of which 250 requests of 100 tokens need 25,000.
  EXPECT_EQ(decode_instances(engine, {100, 1000}, 250, 0.02), 3);
  EXPECT_EQ(decode_instances(engine, {100, 1000}, 250, 0.005), 0);
}

TEST(Task8_7_Planner, ATransferHidesBehindLaterLayers) {
  EXPECT_DOUBLE_EQ(exposed_transfer(0.032, 1, 32), 0.001);    // the last layer alone
  EXPECT_DOUBLE_EQ(exposed_transfer(1, 0.32, 32), 1 - 0.31);  // what did not fit
  EXPECT_DOUBLE_EQ(exposed_transfer(0.5, 3, 1), 0.5);
}

TEST(Task8_7_Planner, PredictsWhatTheSimulationShows) {
  const ServiceLevel level{.ttft = 2, .tpot = 0.02, .share = 0.9};
  for (const int64_t prompt : {1024, 4096}) {
    PlanProblem problem = problem_of({.prompt = prompt, .output = 100}, 1, level);
    problem.requests.resize(150);
    for (const Deployment& deployment : possible_deployments(problem)) {
      const double predicted = predicted_goodput(problem, deployment);
      const double simulated = simulated_goodput(problem, deployment, predicted);
      EXPECT_NEAR(predicted / simulated, 1, 0.25) << prompt << " tokens, " << describe(deployment);
    }
  }
}

// An answer of 31 steps lasts as long as one prompt: most of them fall in with the prompts behind theirs. On a CPU (tinyworld).
TEST(Task8_7_Planner, ShortAnswersBehindLongPromptsMeetMoreOfThem) {
  PlanProblem problem =
      problem_of({.prompt = 1536, .output = 32}, 1, {.ttft = 4.271, .tpot = 0.02875, .share = 0.9});
  problem.engines = {{1,
                      {.fixed = 0.784e-3,
                       .per_sequence = 0.333e-3,
                       .per_prompt_token = 0.272e-3,
                       .per_kv_token = 4.06e-6,
                       .per_prompt_pair = 0.306e-6},
                      131'072,
                      64}};
  const Deployment deployment{DeploymentKind::chunked, {2, 1}, {}, 512};
  const double predicted = predicted_goodput(problem, deployment);
  EXPECT_NEAR(predicted / simulated_goodput(problem, deployment, predicted), 1, 0.5);
}

TEST(Task8_7_Planner, EveryPriceOfAStepCounts) {
  const PlanProblem problem = problem_of({.prompt = 4096, .output = 200}, 2, {.ttft = 2, .tpot = 0.02});
  const Deployment split{DeploymentKind::disaggregated, {1, 1}, {1, 1}, 8192};
  const Deployment chunked{DeploymentKind::chunked, {2, 1}, {}, 2048};
  const Prediction before = predict(problem, split, 2);
  PlanProblem slower = problem;
  slower.link.layer_by_layer = false;
  EXPECT_GT(predict(slower, split, 2).ttft_mean, before.ttft_mean + 0.005);
  slower.link.bytes_per_second = 0.5e9;
  EXPECT_FALSE(predict(slower, split, 2).stable);
  EXPECT_LT(before.tpot_mean, predict(problem, chunked, 2).tpot_mean);  // no prompt beside the answers
  const Prediction shared_out = predict(problem, {DeploymentKind::disaggregated, {1, 1}, {2, 1}, 8192}, 2);
  const DecodeLoad load = decode_load(problem);
  EXPECT_DOUBLE_EQ(shared_out.decode_batch,
                   decode_batch(kModel, load, 1));  // a request a second for each of two
  EXPECT_NEAR(before.pinned_tokens, 2 * 4096 * (4096 * 131072 / 50e9), 2 * 4096 * 0.005);
}

// A slow link: half a second a prompt, before which prompts wait for a second.
TEST(Planner, BlocksThatWaitForTheLinkTakeTheRoomOfPrompts) {
  PlanProblem problem = problem_of({.prompt = 4096, .output = 100}, 1.5, {.ttft = 20, .tpot = 0.02}, 3);
  problem.link = {1e9, 0, false};
  const Deployment split{DeploymentKind::disaggregated, {1, 1}, {1, 2}, 8192};
  const auto of_cache = [&](int64_t tokens) {
    problem.engines = {{1, kModel, tokens, 256}, {2, kModel, 400'000, 256}};
    return predict(problem, split, 1.5);
  };
  const Prediction large = of_cache(400'000);
  EXPECT_TRUE(large.stable);
  EXPECT_GT(large.pinned_tokens, 6000);
  EXPECT_FALSE(of_cache(8000).stable);
}

TEST(PromptsBeside, LeftBehindAreThoseOfMD1) {
  const double rho = 0.7;
  // The answer is over at once, and so no more prompts come.
  const std::vector<double> shares =
      prompts_beside({.queue = make_queue(rho, 1, 1, 1), .rate = 0, .answer = 0, .prompt = 1, .most = 1e9});
  ASSERT_GT(shares.size(), 3u);
  EXPECT_NEAR(shares[0], 1 - rho, 1e-12);
  EXPECT_NEAR(shares[1], (1 - rho) * (std::exp(rho) - 1), 1e-4);
  EXPECT_NEAR(shares[2], (1 - rho) * (std::exp(2 * rho) - std::exp(rho) * (1 + rho)), 1e-4);
}

TEST(PromptsBeside, SharesHaveTheMeanOfABusyTime) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 20; ++i) {
    const double rho = random.uniform(0.05, 0.8);
    AnswerAmongPrompts among{.queue = make_queue(rho, 1, 1, 1),
                             .rate = rho,
                             .answer = random.uniform(0.01, 20),
                             .prompt = random.uniform(0.1, 0.9),
                             .most = 1e9};
    const std::vector<double> shares = prompts_beside(among);
    double sum = 0, mean = 0;
    for (size_t n = 0; n < shares.size(); ++n) {
      EXPECT_GE(shares[n], 0);
      sum += shares[n];
      mean += static_cast<double>(n) * shares[n];
    }
    EXPECT_NEAR(sum, 1, 1e-9);
    EXPECT_NEAR(mean, mean_prompts_beside(among), 0.01 + 0.01 * mean);
    EXPECT_NEAR(shares[0], (1 - rho) * std::exp(-rho * among.answer), 1e-9);
    among.most = 2.5;  // the rest sees no more than its steps have room for
    EXPECT_EQ(prompts_beside(among).size(), 4u);
    EXPECT_LE(mean_prompts_beside(among), 2.5);
  }
}

TEST(Planner, SeparatesWhereGapsArePromisedAndSaysNoWhereItDoesNotPay) {
  const ServiceLevel smooth{.ttft = 3, .tpot = 0.02, .gap = 0.012, .share = 0.9};
  const Plan yes = make_plan(problem_of({.prompt = 8192, .output = 128}, 1, smooth, 4));
  EXPECT_EQ(yes.chosen.kind, DeploymentKind::disaggregated) << yes.reason;
  PlanProblem thin = problem_of({.prompt = 8192, .output = 128}, 1, smooth, 4);
  thin.link.bytes_per_second = 0.01e9;
  thin.level.gap = 0.1;
  EXPECT_NE(make_plan(thin).chosen.kind, DeploymentKind::disaggregated);
  const Plan small = make_plan(problem_of({.prompt = 128, .output = 400}, 5, {.ttft = 0.5, .tpot = 0.03}));
  EXPECT_NE(small.chosen.kind, DeploymentKind::disaggregated);
  EXPECT_NE(small.reason.find("prompts are short"), std::string::npos) << small.reason;
  EXPECT_NE(make_plan(problem_of({}, 1, {.ttft = 1, .tpot = 0.03}, 1)).reason.find("one GPU"),
            std::string::npos);
}

TEST(Planner, RefusesWhatNobodyCouldKeep) {
  PlanProblem problem = problem_of({}, 1, {.ttft = 1, .tpot = 0.001});
  EXPECT_THROW(make_plan(problem), Error);
  problem = problem_of({}, 1, {.ttft = 0, .tpot = 1});
  EXPECT_THROW(make_plan(problem), Error);
  problem = problem_of({}, 1, {.ttft = 1, .tpot = 1});
  problem.engines[0].num_kv_tokens = 1000;
  EXPECT_THROW(make_plan(problem), Error);
}

// One request of 100 prompt tokens and 3 of answer, steps of a second, a transfer of 10.
TEST(ClusterSimulation, OneRequestByHand) {
  PlanProblem problem = problem_of({}, 1, {.ttft = 20, .tpot = 2});
  problem.requests = {{0, 100, 3, 0}};
  problem.engines = {{1, {.fixed = 1}, 10'000, 8}};
  problem.link = {100.0 * 131'072 / 10, 0, false};
  const ClusterOptions options{.leave_out = 0};
  const Deployment split{DeploymentKind::disaggregated, {1, 1}, {1, 1}, 512};
  ClusterResult result = simulate_cluster(problem, split, options);
  EXPECT_EQ(result.num_transfers, 1);
  EXPECT_EQ(result.peak_pinned_tokens, 100);
  EXPECT_DOUBLE_EQ(result.ttft_p50, 1 + 10 + 1);
  EXPECT_DOUBLE_EQ(result.tpot_p50, 1);
  EXPECT_DOUBLE_EQ(result.seconds, 14);
  EXPECT_EQ(result.attained, 1);
  result = simulate_cluster(problem, {DeploymentKind::chunked, {2, 1}, {}, 50}, options);
  EXPECT_EQ(result.num_transfers, 0);
  EXPECT_DOUBLE_EQ(result.ttft_p50, 2);  // two chunks
  EXPECT_DOUBLE_EQ(result.seconds, 4);
}

// Steps of a second, transfers of 10, two prompts of 7 blocks at once. The engine of one GPU computes them, that of two goes on.
TEST(ClusterSimulation, BlocksAreHeldUntilTheyAreFetchedAndTakenBeforeTheyAreFilled) {
  PlanProblem problem = problem_of({}, 1, {.ttft = 100, .tpot = 2}, 3);
  problem.requests = {{0, 100, 3, 0}, {0, 100, 3, 0}};
  problem.link = {100.0 * 131'072 / 10, 0, false};
  const auto simulate = [&](int64_t blocks_of_p, int64_t blocks_of_d) {
    problem.engines = {{1, {.fixed = 1}, 16 * blocks_of_p, 8}, {2, {.fixed = 1}, 16 * blocks_of_d, 8}};
    const Deployment split{DeploymentKind::disaggregated, {1, 1}, {1, 2}, 512};
    return simulate_cluster(problem, split, {.leave_out = 0});
  };
  // Both in one step; one link, so the second one goes from 11 to 21.
  ClusterResult result = simulate(100, 100);
  EXPECT_EQ(result.peak_pinned_tokens, 200);
  EXPECT_DOUBLE_EQ(result.seconds, 24);
  // P computes the second one when the first has been fetched, 11 to 12; D hears of it in a step that lasts until 13, and it
  // goes until 23.
  result = simulate(10, 100);
  EXPECT_EQ(result.peak_pinned_tokens, 100);
  EXPECT_DOUBLE_EQ(result.seconds, 26);
  // D has room for the second one when the first is answered: it goes from 14 to 24.
  result = simulate(100, 10);
  EXPECT_EQ(result.peak_pinned_tokens, 200);
  EXPECT_DOUBLE_EQ(result.seconds, 27);
}

// What the cache of D has of a prompt is not fetched; where that is all of it, P has its blocks back at once.
TEST(ClusterSimulation, WhatDHasIsNotFetched) {
  PlanProblem problem = problem_of({}, 1, {.ttft = 100, .tpot = 2});
  problem.requests = {{0, 33, 2, 32}, {100, 33, 2, 32}};
  problem.engines = {{1, {.fixed = 1}, 10'000, 8}};
  problem.link = {131'072, 0, false};  // a token a second
  const ClusterResult result =
      simulate_cluster(problem, {DeploymentKind::disaggregated, {1, 1}, {1, 1}, 512}, {.leave_out = 0});
  EXPECT_EQ(result.num_transfers, 1);
  EXPECT_DOUBLE_EQ(result.answers.at(1).ttft, 2);
}

// An answer goes on while a long prompt comes: whole, it makes one gap of all its seconds; in chunks several smaller ones;
// elsewhere none.
TEST(ClusterSimulation, ALongPromptsScar) {
  PlanProblem problem = problem_of({}, 1, {.ttft = 1e3, .tpot = 1e3});
  problem.requests = {{0, 1, 100, 0}, {10.5, 400, 1, 0}};
  problem.engines = {{1, {.fixed = 1, .per_prompt_token = 0.1}, 10'000, 8}};
  problem.link = {1e15, 0, false};
  const ClusterOptions options{.leave_out = 0};
  EXPECT_NEAR(simulate_cluster(problem, {DeploymentKind::unchunked, {1, 1}, {}, 500}, options).gap_max, 41,
              0.2);
  EXPECT_NEAR(simulate_cluster(problem, {DeploymentKind::chunked, {1, 1}, {}, 101}, options).gap_max, 11,
              0.2);
  EXPECT_NEAR(
      simulate_cluster(problem, {DeploymentKind::disaggregated, {1, 1}, {1, 1}, 500}, options).gap_max, 1,
      1e-9);
}

TEST(StepTimes, AFitGivesBackWhatMadeTheTable) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<MeasuredSteps> rows;
  for (int i = 0; i < 40; ++i) {
    const int64_t prompt = random.integer(0, 1) * random.integer(1, 8000), before = random.integer(0, 4000);
    const StepWork work{random.integer(1, 256), prompt, before * random.integer(1, 100),
                        prompt_pairs(prompt, before)};
    rows.push_back({1, work, kModel.seconds(work), ""});
  }
  const FittedSteps fitted = fit_step_times(rows);
  EXPECT_LT(fitted.worst_error, 1e-6);
  EXPECT_NEAR(fitted.model.fixed, kModel.fixed, 1e-4 * kModel.fixed);
  EXPECT_NEAR(fitted.model.per_prompt_pair, kModel.per_prompt_pair, 1e-3 * kModel.per_prompt_pair);
  rows[0].seconds *= 2;  // and says how wrong it is
  EXPECT_GT(fit_step_times(rows).worst_error, 0.2);
  EXPECT_THROW(fit_step_times({}), Error);
}

TEST(StepTimes, NoPriceIsBelowZero) {
  // The second row has more work and less time.
  const FittedSteps fitted = fit_step_times({{1, {1, 0, 0, 0}, 2, ""}, {1, {2, 0, 0, 0}, 1, ""}});
  EXPECT_GE(fitted.model.fixed, 0);
  EXPECT_GE(fitted.model.per_sequence, 0);
}

TEST(StepTimes, AFileComesBack) {
  const testing::TemporaryFolder folder;
  const auto file = folder.path() / "times.json";
  const StepTimes times{"m", "d", "c", 100, 3, {{2, 1000, 8, {{5, {1, 2, 3, 4}, 0.5, "s"}}}}};
  save_step_times(file, times);
  const StepTimes back = load_step_times(file);
  ASSERT_EQ(back.engines.size(), 1u);
  EXPECT_EQ(back.engines[0].tensor_parallel_size, 2);
  EXPECT_EQ(back.engines[0].steps.at(0).work.num_prompt_pairs, 4);
  EXPECT_EQ(back.engines[0].steps.at(0).num_steps, 5);
  EXPECT_EQ(back.engines[0].steps.at(0).source, "s");
}

TEST(PlannedRequests, AFileIsReadSortedAndABadOneNamed) {
  const testing::TemporaryFolder folder;
  const auto file = folder.path() / "requests.jsonl";
  std::ofstream(file) << R"({"arrival": 2, "prompt_tokens": 10, "output_tokens": 3, "cached_share": 1})"
                      << "\n\n"
                      << R"({"arrival": 1, "prompt_tokens": 20, "output_tokens": 4})"
                      << "\n";
  const auto requests = load_requests(file);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].num_prompt, 20);
  EXPECT_EQ(requests[1].num_cached, 9);  // the last token is always computed
  EXPECT_DOUBLE_EQ(rate_of(requests), 1);
  EXPECT_DOUBLE_EQ(at_rate(requests, 4).back().arrival, 0.25);
  const auto error_of_line = [&](const char* line) {
    std::ofstream(file) << line;
    return testing::error_of([&] { load_requests(file); });
  };
  EXPECT_THAT(error_of_line(R"({"arrival": 2, "prompt_tokens": 0, "output_tokens": 3})"),
              HasSubstr("line 1: prompt_tokens"));
  EXPECT_THAT(
      error_of_line(R"({"arrival": 2, "prompt_tokens": 9, "output_tokens": 3, "cached_shares": 0.5})"),
      HasSubstr("line 1: unknown field \"cached_shares\"; expected arrival, prompt_tokens,"));
}

// What a row computes, by hand; an engine one step late computes the same.
TEST(MeasuredSteps, AreThoseOfTheScheduler) {
  for (const int max_in_flight : {1, 2}) {
    SchedulerConfig config = testing::fake_config();  // 32 tokens a step, 64 blocks of 4, 8 sequences
    config.batch.max_model_len = 128;
    config.enable_prefix_caching = false;
    Engine engine = testing::make_engine(max_in_flight, config);
    const MeasuredEngine measured = measure_steps(engine, 2, {.num_runs = 2});
    EXPECT_EQ(measured.tensor_parallel_size, 2);
    EXPECT_EQ(measured.num_kv_tokens, 256);
    EXPECT_EQ(measured.max_num_seqs, 8);
    const auto row = [&](const std::string& source) {
      const auto found = std::ranges::find(measured.steps, source, &MeasuredSteps::source);
      return found != measured.steps.end() ? *found : MeasuredSteps{};
    };
    const auto expect = [](const MeasuredSteps& steps, int64_t num_steps, const StepWork& work) {
      EXPECT_EQ(steps.num_steps, num_steps) << steps.source;
      EXPECT_EQ(steps.work.num_sequences, work.num_sequences) << steps.source;
      EXPECT_EQ(steps.work.num_prompt_tokens, work.num_prompt_tokens) << steps.source;
      EXPECT_EQ(steps.work.num_kv_tokens, work.num_kv_tokens) << steps.source;
      EXPECT_EQ(steps.work.num_prompt_pairs, work.num_prompt_pairs) << steps.source;
      EXPECT_GT(steps.seconds, 0) << steps.source;
    };
    expect(row("a prompt of 16"), 1, {1, 15, 0, 16 * 15 / 2});
    expect(row("a prompt of 64"), 2, {2, 63, 32, 64 * 63 / 2});
    // 15 steps: the first token comes with the prompt.
    expect(row("1 answers behind prompts of 16"), 15, {15, 0, 15 * 16 + 15 * 14 / 2, 0});
    expect(row("1 answers behind prompts of 28"), 15, {15, 0, 15 * 28 + 15 * 14 / 2, 0});
    EXPECT_EQ(row("4 answers behind prompts of 16").work.num_prompt_tokens, 0);
    EXPECT_FALSE(row("4 answers behind prompts of 28").source.empty());
    EXPECT_FALSE(engine.has_unfinished());
    const MeasuredEngine less = measure_steps(engine, 2, {.most_prompt_tokens = 111, .num_runs = 1});
    EXPECT_EQ(less.steps.size(), measured.steps.size() - 1) << "4 behind prompts of 28";
  }
}

}  // namespace
}  // namespace ladder
