// Task 7.7: which replica gets the next request.
#include "step7_parallel/data/balancer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using Loads = std::vector<ReplicaLoad>;

ReplicaLoad busy(int64_t waiting, int64_t running, double kv_usage = 0) {
  ReplicaLoad load;
  load.num_waiting = waiting;
  load.num_running = running;
  load.num_in_flight = waiting + running;
  load.kv_usage = kv_usage;
  return load;
}
std::vector<int32_t> tokens(int32_t first, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}
std::unique_ptr<Balancer> make(std::string_view name, int num_replicas, int64_t cache_tokens = 10'000) {
  return make_balancer(name, {.num_replicas = num_replicas, .cache_tokens = cache_tokens});
}

class Task7_7_Balancer : public ::testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(Rows, Task7_7_Balancer, ::testing::ValuesIn([] {
                           std::vector<std::string_view> names;
                           for (const BalancerRow& row : balancers()) names.push_back(row.name);
                           return names;
                         }()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Task7_7_Balancer, ChoosesOneThatTakesRequests) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const auto balancer = make(GetParam(), 5);
  for (int i = 0; i < 2000; ++i) {
    Loads loads(5);
    for (ReplicaLoad& load : loads) {
      load = busy(random.integer(0, 3), random.integer(0, 200),
                  static_cast<double>(random.integer(0, 100)) / 100);
      load.takes_requests = random.integer(0, 2) > 0;
    }
    loads[static_cast<size_t>(random.integer(0, 4))].takes_requests = true;
    const std::vector<int32_t> prompt =
        tokens(static_cast<int32_t>(random.integer(0, 9)), random.integer(1, 50));
    const int chosen = balancer->choose({prompt, 1}, loads);
    ASSERT_GE(chosen, 0);
    ASSERT_LT(chosen, 5);
    EXPECT_TRUE(loads[static_cast<size_t>(chosen)].takes_requests);
    if (random.integer(0, 50) == 0) balancer->forget(static_cast<int>(random.integer(0, 4)));
  }
}

TEST_P(Task7_7_Balancer, WhereNoneTakesRequestsThatIsAnError) {
  const auto balancer = make(GetParam(), 2);
  Loads loads(2);
  for (ReplicaLoad& load : loads) load.takes_requests = false;
  EXPECT_THROW(balancer->choose({tokens(0, 5), 1}, loads), Error);
}

// Replicas that serve at once whatever comes: none is left out, and none gets twice its share.
TEST_P(Task7_7_Balancer, IdleReplicasShareNewPrompts) {
  const auto balancer = make(GetParam(), 4);
  std::vector<int> counts(4);
  for (int32_t i = 0; i < 400; ++i)
    ++counts[static_cast<size_t>(balancer->choose({tokens(1000 * i, 20), 1}, Loads(4)))];
  for (const int count : counts) {
    EXPECT_GE(count, 80);
    EXPECT_LE(count, 120);
  }
}

TEST_P(Task7_7_Balancer, TheSameRequestsGoTheSameWay) {
  const auto once = make(GetParam(), 3), again = make(GetParam(), 3);
  Loads loads(3);
  for (int32_t i = 0; i < 300; ++i) {
    const std::vector<int32_t> prompt = tokens(i % 11, 1 + i % 40);
    const int chosen = once->choose({prompt, 1}, loads);
    ASSERT_EQ(again->choose({prompt, 1}, loads), chosen);
    ++loads[static_cast<size_t>(chosen)].num_in_flight;
    loads[static_cast<size_t>(i % 3)].num_in_flight = 0;
  }
}

TEST(Task7_7_RoundRobin, TakesTurnsAndPassesOverTheDead) {
  const auto balancer = make("round_robin", 3);
  Loads loads(3);
  std::vector<int> chosen;
  for (int i = 0; i < 4; ++i) chosen.push_back(balancer->choose({{}, 1}, loads));
  loads[1].takes_requests = false;
  for (int i = 0; i < 3; ++i) chosen.push_back(balancer->choose({{}, 1}, loads));
  EXPECT_EQ(chosen, std::vector<int>({0, 1, 2, 0, 2, 0, 2}));
}

TEST(Task7_7_QueueLength, OneThatWaitsWeighsFour) {
  const auto balancer = make("queue_length", 3);
  EXPECT_EQ(balancer->choose({{}, 1}, Loads{busy(1, 0), busy(0, 3), busy(0, 5)}), 1);
  EXPECT_EQ(balancer->choose({{}, 1}, Loads{busy(1, 0), busy(0, 5), busy(0, 5)}), 0);
  // Equal ones take turns.
  std::set<int> chosen;
  for (int i = 0; i < 3; ++i) chosen.insert(balancer->choose({{}, 1}, Loads(3)));
  EXPECT_EQ(chosen.size(), 3u);
}

TEST(Task7_7_LoadScore, WhatThisDoorHasSentCountsAtOnceAndForEachDoor) {
  const auto balancer = make_balancer("load_score", {.num_replicas = 2, .num_doors = 3});
  Loads loads(2);
  loads[0].num_in_flight = 2;  // not reported yet; the other two doors will have sent as many
  loads[1].num_running = 5;
  EXPECT_EQ(balancer->choose({{}, 1}, loads), 1);
  loads[1].num_running = 7;
  EXPECT_EQ(balancer->choose({{}, 1}, loads), 0);
}

TEST(Task7_7_LoadScore, WaitingForAFullCacheWeighsMore) {
  const auto balancer = make("load_score", 2);
  EXPECT_EQ(balancer->choose({{}, 1}, Loads{busy(2, 4, 0.4), busy(0, 7, 0.9)}), 0);  // 6 against 7
  EXPECT_EQ(balancer->choose({{}, 1}, Loads{busy(2, 4, 0.9), busy(0, 7, 0.9)}), 1);  // 6 + 6 * 2 * 0.4
}

TEST(Task7_7_LeastKv, TheEmptiestCacheAndThenTheFewestRequests) {
  const auto balancer = make("least_kv", 3);
  EXPECT_EQ(balancer->choose({{}, 1}, Loads{busy(0, 1, 0.5), busy(0, 9, 0.2), busy(0, 0, 0.3)}), 1);
  EXPECT_EQ(balancer->choose({{}, 1}, Loads{busy(0, 2, 0.201), busy(0, 1, 0.209), busy(0, 0, 0.3)}), 1);
}

TEST(Task7_7_PrefixAware, APromptGoesWhereItBegan) {
  const auto balancer = make("prefix_aware", 3);
  const Loads loads(3);
  std::vector<std::vector<int32_t>> sessions;
  std::vector<int> homes;
  for (int32_t i = 0; i < 30; ++i) {
    sessions.push_back(tokens(1000 * i, 100));
    homes.push_back(balancer->choose({sessions.back(), 1}, loads));
  }
  for (int turn = 0; turn < 5; ++turn)
    for (size_t i = 0; i < sessions.size(); ++i) {
      const std::vector<int32_t> more = tokens(static_cast<int32_t>(7 * i) + turn, 30);
      sessions[i].insert(sessions[i].end(), more.begin(), more.end());
      EXPECT_EQ(balancer->choose({sessions[i], 1}, loads), homes[i]);
    }
}

TEST(Task7_7_PrefixAware, ALittleInCommonIsNotWorthTheWay) {
  const auto balancer = make("prefix_aware", 2);
  const Loads loads(2);
  const int home = balancer->choose({tokens(0, 100), 1}, loads);
  std::vector<int32_t> prompt = tokens(0, 30);  // 30 of 100
  const std::vector<int32_t> rest = tokens(5000, 70);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  EXPECT_NE(balancer->choose({prompt, 1}, loads), home);
  const auto other = make("prefix_aware", 2);
  ASSERT_EQ(other->choose({tokens(0, 100), 1}, loads), home);
  prompt[30] = 30;  // 31 of 100
  EXPECT_EQ(other->choose({prompt, 1}, loads), home);
}

TEST(Task7_7_PrefixAware, BalanceCountsMoreThanTheCacheWhereTheLoadIsUneven) {
  const auto balancer = make("prefix_aware", 2);
  const int home = balancer->choose({tokens(0, 100), 1}, Loads(2));
  Loads loads(2);
  loads[static_cast<size_t>(home)] = busy(0, 64);
  EXPECT_EQ(balancer->choose({tokens(0, 100), 1}, loads), home) << "not by more than 64";
  loads[static_cast<size_t>(home)] = busy(0, 300);
  loads[static_cast<size_t>(1 - home)] = busy(0, 201);
  EXPECT_EQ(balancer->choose({tokens(0, 100), 1}, loads), home) << "not by half";
  loads[static_cast<size_t>(home)] = busy(0, 65);
  loads[static_cast<size_t>(1 - home)] = {};
  EXPECT_EQ(balancer->choose({tokens(0, 100), 1}, loads), 1 - home);
}

TEST(Task7_7_PrefixAware, WhatAReplicaHasForgottenIsNotLookedForThere) {
  const auto balancer = make("prefix_aware", 2);
  const int home = balancer->choose({tokens(0, 100), 1}, Loads(2));
  balancer->choose({tokens(5000, 10), 1}, Loads(2));
  balancer->forget(home);
  // Nothing is cached anywhere: the replica with the smaller tree, which is the one that has forgotten.
  EXPECT_EQ(balancer->choose({tokens(7000, 100), 1}, Loads(2)), home);
  EXPECT_EQ(balancer->choose({tokens(0, 100), 1}, Loads(2)), 1 - home);
}

TEST(Task7_7_Balancers, AnUnknownNameIsToldThoseThatThereAre) {
  try {
    make("best", 2);
    FAIL() << "made";
  } catch (const Error& error) {
    for (const BalancerRow& row : balancers())
      EXPECT_NE(std::string(error.what()).find(row.name), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ladder
