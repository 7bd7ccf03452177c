// Task 7.7.replica: started, watched, and started again.
#include "tests/step7_parallel/data/becomes.h"
#include "tests/step7_parallel/data/replica_stage.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::becomes;
using testing::FakeLife;
using testing::Stage;

TEST(Task7_7_Replica, IsStartedAndIsThere) {
  Stage stage;
  Replica replica(stage.options());
  EXPECT_EQ(replica.wait_until_started().vocab_size, 77);
  EXPECT_NE(replica.client(), nullptr);
  EXPECT_TRUE(replica.has_living(replica.client().get()));
  EXPECT_TRUE(replica.stats().error.empty());
  EXPECT_EQ(stage.num_starts(), 1u);
}

TEST(Task7_7_Replica, WhatPreventsTheFirstStartIsThrownAndNotTriedAgain) {
  Stage stage;
  stage.can_start = false;
  Replica replica(stage.options());
  EXPECT_THROW(replica.wait_until_started(), Error);
  std::this_thread::sleep_for(60ms);
  EXPECT_EQ(stage.num_starts(), 1u);
}

TEST(Task7_7_Replica, ADeadEngineIsEndedAndAnotherOneStarted) {
  Stage stage;
  Replica replica(stage.options());
  replica.wait_until_started();
  const EngineClient* first = replica.client().get();
  stage.life(0)->set([](EngineStats& stats) { stats.error = "the lamp went out"; });
  EXPECT_FALSE(replica.has_living(first));
  EXPECT_TRUE(becomes([&] { return stage.num_starts() == 2 && replica.client() != nullptr; }));
  EXPECT_EQ(stage.life(0)->count("end"), 1) << "the dead one is kept";
  EXPECT_EQ(stage.num_lost, 1);
  EXPECT_TRUE(becomes([&] { return stage.said().size() == 2; }));
  EXPECT_EQ(stage.said()[0], "replica 3: the lamp went out; it is started again in 0.0 s");
  EXPECT_EQ(stage.said()[1], "replica 3: serves again");
  EXPECT_TRUE(replica.stats().error.empty());
}

TEST(Task7_7_Replica, IsNotThereWhileNoneLives) {
  Stage stage;
  Replica replica(stage.options());
  replica.wait_until_started();
  stage.can_start = false;
  stage.life(0)->set([](EngineStats& stats) { stats.error = "the lamp went out"; });
  EXPECT_TRUE(becomes([&] { return replica.client() == nullptr; }));
  EXPECT_TRUE(becomes([&] { return replica.stats().error == "no lamp"; }));
  EXPECT_EQ(replica.stats().num_live_replicas, 0);
  stage.can_start = true;
  EXPECT_TRUE(becomes([&] { return replica.client() != nullptr; }));
  EXPECT_TRUE(replica.stats().error.empty());
}

TEST(Task7_7_Replica, PausesGrowUpToTheLongest) {
  Stage stage;
  Replica replica(stage.options());
  replica.wait_until_started();
  stage.can_start = false;
  stage.life(0)->set([](EngineStats& stats) { stats.error = "gone"; });
  ASSERT_TRUE(becomes([&] { return stage.num_starts() >= 7; }));
  const std::vector<std::string> said = stage.said();
  ASSERT_GE(said.size(), 5u);
  std::lock_guard lock(stage.mutex);
  const auto gap = [&](size_t i) { return stage.starts[i + 1] - stage.starts[i]; };
  EXPECT_GE(gap(1), 20ms);  // after the first pause of 10
  for (size_t i = 2; i < 6; ++i) EXPECT_GE(gap(i), 40ms);
}

TEST(Task7_7_Replica, ALifeLongEnoughMakesPausesShortAgain) {
  Stage stage;
  ReplicaOptions options = stage.options();
  options.first_pause = 400ms;
  options.max_pause = 800ms;
  Replica replica(std::move(options));
  replica.wait_until_started();
  for (size_t life = 0; life < 3; ++life) {
    if (life == 2) std::this_thread::sleep_for(900ms);
    stage.life(life)->set([](EngineStats& stats) { stats.error = "gone"; });
    replica.look_soon();
    ASSERT_TRUE(becomes([&] { return stage.life(life + 1) != nullptr && replica.client() != nullptr; }));
  }
  const std::vector<std::string> said = stage.said();
  ASSERT_GE(said.size(), 5u);
  EXPECT_NE(said[0].find("in 0.4 s"), std::string::npos) << said[0];
  EXPECT_NE(said[2].find("in 0.8 s"), std::string::npos) << said[2];
  EXPECT_NE(said[4].find("in 0.4 s"), std::string::npos) << said[4];
}

TEST(Task7_7_Replica, OneThatMakesNoStepWithRequestsIsLost) {
  Stage stage;
  ReplicaOptions options = stage.options();
  options.stuck_after = 1s;
  Replica replica(std::move(options));
  replica.wait_until_started();
  const std::shared_ptr<FakeLife> life = stage.life(0);
  std::this_thread::sleep_for(1200ms);  // idle: no step is expected
  EXPECT_EQ(stage.num_starts(), 1u);
  life->set([](EngineStats& stats) { stats.num_requests = 5; });
  for (int i = 0; i < 12; ++i) {  // steps end
    life->set([](EngineStats& stats) { ++stats.metrics.num_steps; });
    std::this_thread::sleep_for(100ms);
  }
  EXPECT_EQ(stage.num_starts(), 1u);
  life->set([](EngineStats& stats) { stats.paused = true; });
  std::this_thread::sleep_for(1200ms);
  EXPECT_EQ(stage.num_starts(), 1u) << "a paused engine makes no steps";
  life->set([](EngineStats& stats) { stats.paused = false; });
  EXPECT_TRUE(becomes([&] { return stage.num_starts() == 2; }));
  EXPECT_NE(stage.said()[0].find("no step has ended for 1.0 s"), std::string::npos) << stage.said()[0];
}

TEST(Task7_7_Replica, WhatIsCountedGoesOnAndWhatWaitsIsGone) {
  Stage stage;
  Replica replica(stage.options());
  replica.wait_until_started();
  stage.life(0)->set([](EngineStats& stats) {
    stats.metrics.num_output_tokens = 10;
    stats.scheduler.num_prefix_hit_tokens = 4;
    stats.scheduler.num_running = 3;
    stats.scheduler.num_used_blocks = 9;
    stats.num_requests = 3;
    stats.error = "gone";
  });
  ASSERT_TRUE(becomes([&] { return stage.life(1) != nullptr && replica.client() != nullptr; }));
  stage.life(1)->set([](EngineStats& stats) { stats.metrics.num_output_tokens = 5; });
  const EngineStats stats = replica.stats();
  EXPECT_EQ(stats.metrics.num_output_tokens, 15);
  EXPECT_EQ(stats.scheduler.num_prefix_hit_tokens, 4);
  EXPECT_EQ(stats.scheduler.num_running, 0);
  EXPECT_EQ(stats.scheduler.num_used_blocks, 0);
  EXPECT_EQ(stats.num_requests, 0);
}

TEST(Task7_7_Replica, AnEngineThatIsFoundAgainGoesOnFromWhatItHadCounted) {
  Stage stage;
  std::atomic<int> num_found = 0;
  ReplicaOptions options = stage.options();
  options.start = [start = options.start, &num_found] {
    StartedEngine engine = start();
    engine.name = std::to_string(std::max(1, num_found++));  // 1, 1, 2, 3
    return engine;
  };
  Replica replica(std::move(options));
  replica.wait_until_started();
  const auto counted_after = [&](size_t life, int64_t tokens) {
    stage.life(life)->set([&](EngineStats& stats) { stats.metrics.num_output_tokens = tokens; });
    stage.life(life)->set([](EngineStats& stats) { stats.error = "lost"; });
    EXPECT_TRUE(becomes([&] { return stage.life(life + 1) != nullptr && replica.client() != nullptr; }));
    return replica.stats().metrics.num_output_tokens;
  };
  EXPECT_EQ(counted_after(0, 10), 0) << "what the same engine says now, and nothing besides";
  EXPECT_EQ(counted_after(1, 12), 12) << "it is gone for good, and another one is there";
  EXPECT_EQ(counted_after(2, 3), 15);
}

TEST(Task7_7_Replica, AnEngineThatWasStoppedIsLostWhenItHasNoRequestLeft) {
  Stage stage;
  Replica replica(stage.options());
  replica.wait_until_started();
  const std::shared_ptr<EngineClient> client = replica.client();
  EXPECT_TRUE(replica.has_living(client.get()));
  stage.life(0)->set(
      [](EngineStats& stats) { stats.stopped = true, stats.num_requests = 1, stats.paused = true; });
  std::this_thread::sleep_for(40ms);
  EXPECT_EQ(replica.client(), client) << "it ends what it has";
  EXPECT_FALSE(replica.has_living(client.get())) << "and nothing else";
  stage.life(0)->set([](EngineStats& stats) { stats.num_requests = 0; });
  EXPECT_TRUE(becomes([&] { return replica.client() == nullptr; }));
}

TEST(Task7_7_Replica, WhoWaitsForOneThatIsStoppedWhileItStartsWaitsNoLonger) {
  Stage stage;
  ReplicaOptions options = stage.options();
  options.start = [start = options.start] {
    std::this_thread::sleep_for(30ms);
    return start();
  };
  Replica replica(std::move(options));
  replica.stop(0ms);
  replica.wait_until_started();
}

TEST(Task7_7_Replica, TheLastUserOfADeadEngineIsWaitedFor) {
  Stage stage;
  Replica replica(stage.options());
  replica.wait_until_started();
  std::shared_ptr<EngineClient> in_use = replica.client();
  stage.life(0)->set([](EngineStats& stats) { stats.error = "gone"; });
  replica.look_soon();
  EXPECT_TRUE(becomes([&] { return replica.client() == nullptr; }));
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(stage.life(0)->count("end"), 0);
  EXPECT_EQ(stage.num_starts(), 1u);
  in_use.reset();
  EXPECT_TRUE(becomes([&] { return stage.num_starts() == 2; }));
}

TEST(Task7_7_Replica, OneThatIsStoppedIsNotStartedAgain) {
  Stage stage;
  {
    Replica replica(stage.options());
    replica.wait_until_started();
    replica.stop(7ms);
    EXPECT_EQ(stage.life(0)->count("stop 7"), 1);
    EXPECT_TRUE(becomes([&] { return replica.client() == nullptr; }));
    std::this_thread::sleep_for(40ms);
    EXPECT_FALSE(replica.stats().error.empty());
  }
  EXPECT_EQ(stage.num_starts(), 1u);
  EXPECT_EQ(stage.num_lost, 0);
  // Also in the middle of a pause that would last for long.
  ReplicaOptions options = stage.options();
  options.first_pause = options.max_pause = 1h;
  {
    Replica replica(std::move(options));
    replica.wait_until_started();
    stage.life(1)->set([](EngineStats& stats) { stats.error = "gone"; });
    EXPECT_TRUE(becomes([&] { return stage.num_lost == 1; }));
  }
  EXPECT_EQ(stage.num_starts(), 2u);
}

}  // namespace
}  // namespace ladder
