// Task 8.7.planner: the formulas beside queues and batches that are played through.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <queue>

#include "step8_advanced/disaggregation/planner/formulas.h"
#include "step8_advanced/disaggregation/planner/predict.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace ladder::testing;

double uniform(Random& random, double low, double high) {
  return low + (high - low) * static_cast<double>(random.integer(0, 1 << 30)) / (1 << 30);
}

StepTimeModel random_model(Random& random) {
  return {.fixed = uniform(random, 1e-3, 1e-2),
          .per_sequence = uniform(random, 1e-6, 5e-5),
          .per_prompt_token = uniform(random, 1e-6, 5e-5),
          .per_kv_token = uniform(random, 1e-9, 1e-7),
          .per_prompt_pair = uniform(random, 0, 1e-9)};
}

// Waits of arrivals at servers that take them in their order.
struct Played {
  double mean = 0, share_within = 0;
};
Played play(Random& random, double rate, const std::vector<double>& services, int num_servers,
            double within) {
  constexpr int kArrivals = 60'000;
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int i = 0; i < num_servers; ++i) free.push(0);
  double now = 0, sum = 0, count = 0;
  for (int i = 0; i < kArrivals; ++i) {
    now += -std::log(1 - uniform(random, 0, 0.999999999)) / rate;
    const double wait = std::max(0.0, free.top() - now);
    free.pop();
    free.push(now + wait + services[static_cast<size_t>(random.integer(0, std::ssize(services) - 1))]);
    sum += wait;
    count += wait <= within;
  }
  return {sum / kArrivals, count / kArrivals};
}

TEST(Hidden8_7_Planner, QueuesWaitAsPlayedOnesDo) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (const int num_servers : {1, 1, 2, 4}) {
    std::vector<double> services(static_cast<size_t>(random.integer(1, 4)));
    for (double& seconds : services) seconds = uniform(random, 0.02, 0.4);
    double mean = 0, square = 0;
    for (const double seconds : services) mean += seconds, square += seconds * seconds;
    mean /= static_cast<double>(services.size());
    square /= static_cast<double>(services.size());
    const double rho = uniform(random, 0.4, 0.75), rate = rho * num_servers / mean;
    const Queue queue = make_queue(rate, mean, square, num_servers);
    ASSERT_TRUE(queue.stable);
    EXPECT_NEAR(queue.utilisation, rho, 1e-9);
    const double within = uniform(random, 0.3, 0.8) * queue.wait;
    const Played played = play(random, rate, services, num_servers, within);
    EXPECT_NEAR(queue.mean_wait(), played.mean, 0.15 * played.mean + 0.02 * mean)
        << num_servers << " servers, rho " << rho;
    EXPECT_NEAR(queue.share_within(within), played.share_within, 0.1)
        << num_servers << " servers, rho " << rho;
    EXPECT_FALSE(make_queue(uniform(random, 1, 2) * num_servers / mean, mean, square, num_servers).stable);
  }
}

TEST(Hidden8_7_Planner, BatchesAreWhereArrivalsAndStepsMeet) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    const StepTimeModel model = random_model(random);
    const DecodeLoad load{uniform(random, 10, 500), uniform(random, 10, 8000)};
    const double each = model.per_sequence + model.per_kv_token * load.context;
    const double rate = uniform(random, 0.01, 0.95) / (load.num_output * each);
    const double batch = decode_batch(model, load, rate);
    ASSERT_NEAR(batch, rate * load.num_output * decode_step(model, load, batch), 1e-6 * batch)
        << "Little's law";
    ASSERT_TRUE(std::isinf(decode_batch(model, load, uniform(random, 1.01, 5) / (load.num_output * each))));

    const PlannedEngine engine{1, model, random.integer(1000, 1'000'000), random.integer(1, 300)};
    const double tpot = uniform(random, 0.5, 4) * model.fixed;
    const double largest = largest_batch(engine, load, tpot);
    const auto fits = [&](double size) {
      return decode_step(model, load, size) <= tpot * (1 + 1e-12) &&
             size * load.context <= static_cast<double>(engine.num_kv_tokens) &&
             size <= static_cast<double>(engine.max_num_seqs);
    };
    ASSERT_EQ(largest, std::floor(largest));
    ASSERT_TRUE(largest == 0 || fits(largest)) << largest;
    ASSERT_FALSE(fits(largest + 1)) << largest;

    const double seconds = uniform(random, 0.01, 2), prompts = uniform(random, 0.1, 20);
    const int instances = prefill_instances(prompts, seconds);
    ASSERT_GE(instances, 1);
    ASSERT_LE(prompts * seconds / instances, 0.7 + 1e-9);
    ASSERT_TRUE(instances == 1 || prompts * seconds / (instances - 1) > 0.7 - 1e-9);
    const int answers = decode_instances(engine, load, rate, tpot);
    if (largest == 0) {
      ASSERT_EQ(answers, 0);
    } else {
      const double needed = rate * load.num_output * decode_step(model, load, largest) / largest;
      ASSERT_EQ(answers, std::max(1, static_cast<int>(std::ceil(needed - 1e-9)))) << needed;
    }
  }
}

// Layer after layer is computed, and sent when it is; the link sends one at a time.
TEST(Hidden8_7_Planner, WhatIsLeftOfATransferIsWhatALinkHasLeft) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    const int64_t num_layers = random.integer(1, 80);
    const double compute = uniform(random, 0.001, 1), transfer = uniform(random, 0.001, 1);
    double sent = 0;
    for (int64_t layer = 1; layer <= num_layers; ++layer)
      sent = std::max(sent, compute * static_cast<double>(layer) / static_cast<double>(num_layers)) +
             transfer / static_cast<double>(num_layers);
    ASSERT_NEAR(exposed_transfer(transfer, compute, num_layers), sent - compute, 1e-9);
  }
}

PlanProblem random_problem(Random& random) {
  PlanProblem problem;
  for (int i = 0; i < 50; ++i)
    problem.requests.push_back({.arrival = static_cast<double>(i),
                                .num_prompt = random.integer(100, 4000),
                                .num_output = random.integer(20, 300)});
  problem.rate = 1;
  problem.level = {10, 1, 0, 0.9};
  problem.num_gpus = 8;
  problem.engines = {{1, random_model(random), 10'000'000, 4096}};
  problem.kv_bytes_per_token = random.integer(10'000, 200'000);
  problem.num_layers = random.integer(4, 80);
  problem.link = {uniform(random, 1e9, 1e11), uniform(random, 0, 1e-3), random.integer(0, 1) == 0};
  return problem;
}

TEST(Hidden8_7_Planner, EveryInstanceAndLinkHasItsShareOfTheRate) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 50 && !HasFailure(); ++round) {
    const PlanProblem problem = random_problem(random);
    const StepTimeModel& model = problem.engines[0].model;
    Deployment split{.kind = DeploymentKind::disaggregated, .chunk = 1 << 20};
    split.prefill = {static_cast<int>(random.integer(1, 4)), 1};
    split.decode = {static_cast<int>(random.integer(1, 4)), 1};
    double transfer = 0, prompt = 0;
    for (const PlannedRequest& request : problem.requests) {
      transfer += transfer_seconds(problem, request) / 50;
      prompt += (model.fixed + prompt_cost(model, request, 1 << 20).seconds) / 50;
    }
    const DecodeLoad load = decode_load(problem);
    const double each = model.per_sequence + model.per_kv_token * load.context;
    const double rate =
        0.3 * std::min({split.prefill.count / prompt, split.decode.count / (load.num_output * each),
                        std::min(split.prefill.count, split.decode.count) / transfer});
    const Prediction predicted = predict(problem, split, rate);
    ASSERT_TRUE(predicted.stable);
    const double batch = decode_batch(model, load, rate / split.decode.count);
    EXPECT_NEAR(predicted.decode_batch, batch, 1e-6 * batch);
    const double links = rate * transfer / std::min(split.prefill.count, split.decode.count);
    EXPECT_NEAR(predicted.link_utilisation, links, 1e-6 * links);

    // Beside prompts, answers are slower than alone, and the more so the more prompts come.
    const Deployment both{.kind = DeploymentKind::chunked, .prefill = {2, 1}, .chunk = 512};
    const double little = 0.05 / (prompt + load.num_output * each), much = 8 * little;
    const Prediction at_little = predict(problem, both, little), at_much = predict(problem, both, much);
    ASSERT_TRUE(at_little.stable && at_much.stable);
    EXPECT_GT(at_much.tpot_mean, decode_step(model, load, decode_batch(model, load, much / 2)) * (1 + 1e-9));
    EXPECT_GT(at_much.tpot_mean, at_little.tpot_mean);
  }
}

}  // namespace
}  // namespace ladder
