// Task 7.7.replica: lives, deaths and pauses of drawn lengths.
#include <gtest/gtest.h>

#include "tests/step7_parallel/data/becomes.h"
#include "tests/step7_parallel/data/replica_stage.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using namespace ladder::testing;

void die(Stage& stage, size_t life, Replica& replica) {
  stage.life(life)->set([&](EngineStats& stats) { stats.error = "the fuse of " + std::to_string(life); });
  replica.look_soon();
}

// Every second life cannot be started at first: these tries make the pause longer too.
TEST(Hidden7_7_Replica, EveryFailureDoublesThePause) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  Stage stage;
  ReplicaOptions options = stage.options();
  options.first_pause = std::chrono::milliseconds(random.integer(30, 50));
  options.max_pause = std::chrono::milliseconds(random.integer(280, 320));  // longer than any life here
  const auto first = options.first_pause, longest = options.max_pause;
  Replica replica(std::move(options));
  replica.wait_until_started();
  std::vector<std::chrono::milliseconds> pauses;
  for (size_t life = 0; life < 3; ++life) {
    const size_t num_tries = stage.num_starts(), num_failures = life == 1 ? 3 : 0;
    stage.can_start = num_failures == 0;
    die(stage, life, replica);
    ASSERT_TRUE(becomes([&] { return stage.num_starts() >= num_tries + num_failures; }));
    stage.can_start = true;
    ASSERT_TRUE(becomes([&] { return stage.life(life + 1) != nullptr && replica.client() != nullptr; }));
    EXPECT_EQ(stage.life(life)->count("end"), 1) << "engine " << life << " is still there";
  }
  std::lock_guard lock(stage.mutex);
  std::chrono::milliseconds pause = first;
  for (size_t start = 1; start < stage.starts.size(); ++start) {
    EXPECT_GE(stage.starts[start] - stage.starts[start - 1], pause) << "before start " << start;
    pause = std::min(2 * pause, longest);
  }
  EXPECT_EQ(stage.num_lost, static_cast<int>(stage.starts.size()) - 1);
}

// Failed starts have made it long; a life of the longest pause makes it short.
TEST(Hidden7_7_Replica, WhoHasLivedIsStartedAgainSoon) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  Stage stage;
  ReplicaOptions options = stage.options();
  options.first_pause = 100ms;
  options.max_pause = std::chrono::milliseconds(random.integer(3, 5) * 100);
  const auto longest = options.max_pause;
  Replica replica(std::move(options));
  replica.wait_until_started();
  stage.can_start = false;
  die(stage, 0, replica);
  ASSERT_TRUE(becomes([&] { return stage.num_starts() == 3; }));
  stage.can_start = true;
  ASSERT_TRUE(becomes([&] { return stage.life(1) != nullptr && replica.client() != nullptr; }));
  std::this_thread::sleep_for(longest + 20ms);
  die(stage, 1, replica);
  ASSERT_TRUE(becomes([&] { return stage.life(2) != nullptr && replica.client() != nullptr; }));
  const std::vector<std::string> said = stage.said();
  const auto pause_of = [](const std::string& line) { return line.substr(line.rfind("in ")); };
  ASSERT_EQ(said.size(), 6u);
  EXPECT_EQ(pause_of(said[0]), "in 0.1 s");
  EXPECT_EQ(pause_of(said[1]), "in 0.2 s");
  EXPECT_EQ(pause_of(said[2]), longest == 300ms ? "in 0.3 s" : "in 0.4 s");
  EXPECT_EQ(said[3], "replica 3: serves again");
  EXPECT_EQ(pause_of(said[4]), "in 0.1 s") << said[4];
  EXPECT_NE(said[4].find("the fuse of 1"), std::string::npos) << said[4];
}

// Long without a step, in short turns of work: no turn is as long as that.
TEST(Hidden7_7_Replica, OneThatWorksNowAndThenIsNotStuck) {
  Stage stage;
  ReplicaOptions options = stage.options();
  options.stuck_after = 400ms;
  Replica replica(std::move(options));
  replica.wait_until_started();
  const std::shared_ptr<FakeLife> life = stage.life(0);
  std::this_thread::sleep_for(500ms);  // and it has done nothing at all
  for (int turn = 0; turn < 6; ++turn) {
    life->set([](EngineStats& stats) { stats.num_requests = 1; });
    replica.look_soon();
    std::this_thread::sleep_for(20ms);
    life->set([](EngineStats& stats) { stats.num_requests = 0, ++stats.metrics.num_steps; });
    replica.look_soon();
    std::this_thread::sleep_for(60ms);
  }
  EXPECT_EQ(stage.num_starts(), 1u);
  EXPECT_EQ(stage.num_lost, 0);
  life->set([](EngineStats& stats) { stats.num_requests = 1; });
  EXPECT_TRUE(becomes([&] { return stage.num_starts() == 2; })) << "now it is";
  EXPECT_EQ(stage.num_lost, 1);
}

TEST(Hidden7_7_Replica, AStopEndsWhateverItDoes) {
  for (const bool in_pause : {true, false}) {
    Stage stage;
    ReplicaOptions options = stage.options();
    options.first_pause = options.max_pause = 1h;
    const auto replica = std::make_unique<Replica>(std::move(options));
    replica->wait_until_started();
    if (in_pause) {
      die(stage, 0, *replica);
      ASSERT_TRUE(becomes([&] { return stage.num_lost == 1 && !stage.said().empty(); }));
    }
    replica->stop(3ms);
    EXPECT_TRUE(becomes([&] { return replica->client() == nullptr; }));
    EXPECT_EQ(stage.life(0)->count("stop 3"), in_pause ? 0 : 1);
    EXPECT_EQ(replica->stats().num_live_replicas, 0);
    EXPECT_EQ(stage.num_starts(), 1u);
    EXPECT_EQ(stage.num_lost, in_pause ? 1 : 0) << "one that is stopped is not lost";
  }
}

TEST(Hidden7_7_Replica, WhatPreventsTheFirstStartIsThrownAsItIs) {
  struct OutOfLamps : std::runtime_error {
    using runtime_error::runtime_error;
  };
  Stage stage;
  ReplicaOptions options = stage.options();
  options.start = [&]() -> StartedEngine {
    stage.starts.push_back({});
    throw OutOfLamps("none");
  };
  Replica replica(std::move(options));
  EXPECT_THROW(replica.wait_until_started(), OutOfLamps);
  EXPECT_THROW(replica.wait_until_started(), OutOfLamps) << "once more";
  EXPECT_EQ(replica.client(), nullptr);
  EXPECT_EQ(stage.num_lost, 0);
  EXPECT_TRUE(stage.said().empty());
}

}  // namespace
}  // namespace ladder
