// Task 7.7: every policy against its sentence, over random loads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "step7_parallel/data/balancer.h"
#include "step7_parallel/data/prefix_tree.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace ladder::testing;
using Loads = std::vector<ReplicaLoad>;
using Score = std::function<double(const ReplicaLoad&)>;

// Few different numbers, so that there are ties; what was reported is not what was sent.
Loads random_loads(Random& random, int64_t count, int64_t most) {
  Loads loads(static_cast<size_t>(count));
  for (ReplicaLoad& load : loads) {
    load.takes_requests = random.integer(0, 4) > 0;
    load.num_waiting = random.integer(0, most / 4);
    load.num_running = random.integer(0, most);
    load.num_in_flight = random.integer(0, most);
    load.kv_usage = static_cast<double>(random.integer(0, 5000)) / 5000;
  }
  random.one_of(std::vector<ReplicaLoad*>{&loads.front(), &loads.back()})->takes_requests = true;
  return loads;
}

// Those that take requests and have the lowest score.
std::vector<int> best_of(const Loads& loads, const std::function<double(size_t)>& score) {
  std::vector<int> best;
  double lowest = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    if (!loads[i].takes_requests) continue;
    if (best.empty() || score(i) < lowest) best.clear(), lowest = score(i);
    if (score(i) == lowest) best.push_back(static_cast<int>(i));
  }
  return best;
}

// The first of the best ones behind the one that was chosen last.
int behind(int last, const std::vector<int>& best) {
  const auto next = std::ranges::find_if(best, [&](int index) { return index > last; });
  return next != best.end() ? *next : best.front();
}

void expect_lowest(std::string_view name, int64_t num_doors, const Score& score) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 20; ++round) {
    const int64_t count = random.integer(1, 9), most = random.one_of<int64_t>({0, 3, 40, 400});
    BalancerOptions options{.num_replicas = static_cast<int>(count), .cache_tokens = 1000};
    options.num_doors = num_doors;
    const std::unique_ptr<Balancer> balancer = make_balancer(name, options);
    int last = -1;
    for (int turn = 0; turn < 100; ++turn) {
      const Loads loads = random_loads(random, count, most);
      const int chosen = balancer->choose({{}, 1}, loads);
      ASSERT_EQ(chosen, behind(last, best_of(loads, [&](size_t i) { return score(loads[i]); })))
          << "after " << last << ", of " << count << " replicas";
      last = chosen;
    }
  }
}

TEST(Hidden7_7_Balancers, InTurn) {
  expect_lowest("round_robin", 1, [](const ReplicaLoad&) { return 0; });
}

TEST(Hidden7_7_Balancers, TheShortestQueue) {
  expect_lowest("queue_length", 1,
                [](const ReplicaLoad& load) { return 4.0 * load.num_waiting + load.num_running; });
}

TEST(Hidden7_7_Balancers, WhatIsKnownAndWhatWaitsForAFullCache) {
  for (const int64_t doors : {1, 2, 5})
    expect_lowest("load_score", doors, [&](const ReplicaLoad& load) {
      const int64_t known = std::max(doors * load.num_in_flight, load.num_waiting + load.num_running);
      return static_cast<double>(known) +
             6.0 * static_cast<double>(load.num_waiting) * std::max(0.0, load.kv_usage - 0.5);
    });
}

TEST(Hidden7_7_Balancers, TheEmptiestCacheInHundredths) {
  expect_lowest("least_kv", 1, [](const ReplicaLoad& load) {
    return std::floor(100.0 * load.kv_usage) * 1e6 + static_cast<double>(load.num_in_flight);
  });
}

// Prompts that continue each other, or not; replicas that die and forget. What is cached where is told by a tree that gets
// what the balancer has decided.
TEST(Hidden7_7_Balancers, WhereThePromptLiesWhileTheLoadIsEven) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 20; ++round) {
    const int64_t count = random.integer(2, 6), most = random.one_of<int64_t>({2, 60, 150, 300});
    const int64_t cache = random.integer(200, 2000);
    const std::unique_ptr<Balancer> balancer =
        make_balancer("prefix_aware", {.num_replicas = static_cast<int>(count), .cache_tokens = cache});
    PrefixTree tree(static_cast<int>(count), cache);
    std::vector<std::vector<int32_t>> prompts;
    int last = -1;
    for (int turn = 0; turn < 200; ++turn) {
      std::vector<int32_t> prompt;
      if (!prompts.empty() && random.integer(0, 3) > 0) prompt = random.one_of(prompts);
      prompt.resize(static_cast<size_t>(random.integer(0, std::ssize(prompt))));
      for (int64_t more = random.integer(1, 100); more > 0; --more)
        prompt.push_back(static_cast<int32_t>(random.integer(0, 50'000)));
      prompts.push_back(prompt);
      const Loads loads = random_loads(random, count, most);
      int64_t fewest = most, longest = -1, busiest = 0;
      std::vector<int64_t> lengths(loads.size());
      tree.match(prompt, lengths);
      for (size_t i = 0; i < loads.size(); ++i) {
        if (!loads[i].takes_requests) continue;
        fewest = std::min(fewest, loads[i].num_in_flight);
        busiest = std::max(busiest, loads[i].num_in_flight);
        longest = std::max(longest, lengths[i]);
      }
      const auto in_flight = [&](size_t i) { return static_cast<double>(loads[i].num_in_flight); };
      std::vector<int> best;
      if (busiest - fewest > 64 && 2 * busiest > 3 * fewest)
        best = best_of(loads, in_flight);
      else if (static_cast<double>(longest) > 0.3 * static_cast<double>(prompt.size()))
        best = best_of(loads, [&](size_t i) { return in_flight(i) - 1e6 * static_cast<double>(lengths[i]); });
      else  // the smallest tree
        best = best_of(loads, [&](size_t i) {
          return static_cast<double>(tree.num_tokens(static_cast<int>(i))) + 1e-6 * in_flight(i);
        });
      const int chosen = balancer->choose({prompt, 1}, loads);
      ASSERT_EQ(chosen, behind(last, best))
          << "turn " << turn << ", matches " << ::testing::PrintToString(lengths) << " of " << prompt.size();
      last = chosen;
      tree.insert(chosen, prompt);
      if (random.integer(0, 30) == 0) {
        const auto lost = static_cast<int>(random.integer(0, count - 1));
        balancer->forget(lost);
        tree.forget(lost);
      }
    }
  }
}

}  // namespace
}  // namespace ladder
