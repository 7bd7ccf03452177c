// Task 7.9.wave: replicas that step together: when a wave begins and ends, whatever way the messages take.
#include "step7_parallel/data/wave.h"

#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "tests/step7_parallel/data/wave_fleet.h"

namespace ladder {
namespace {

constexpr int32_t kNobody[] = {0, 0}, kOne[] = {0, 1};

TEST(Task7_9_Wave, SleepsUntilSomebodyHasWork) {
  Wave here, there;
  EXPECT_FALSE(here.running());
  EXPECT_THROW(here.on_votes(kOne), Error);
  ASSERT_TRUE(here.begin());
  EXPECT_TRUE(here.running());
  EXPECT_FALSE(there.running());
  there.on_start(here.number());
  EXPECT_TRUE(there.running());
}

TEST(Task7_9_Wave, OnlyTheFirstWorkOfAWaveIsTold) {
  Wave here;
  EXPECT_TRUE(here.begin());
  EXPECT_FALSE(here.begin());
  Wave there;
  there.on_start(0);
  EXPECT_FALSE(there.begin()) << "everybody steps already";
}

TEST(Task7_9_Wave, GoesOnWhileOneHasWorkAndEndsWhenNobodyHas) {
  Wave wave;
  wave.begin();
  EXPECT_TRUE(wave.on_votes(kOne));
  EXPECT_TRUE(wave.running());
  EXPECT_EQ(wave.number(), 0);
  EXPECT_FALSE(wave.on_votes(kNobody));
  EXPECT_FALSE(wave.running());
  EXPECT_EQ(wave.number(), 1);
  EXPECT_TRUE(wave.begin()) << "the next one is to be told too";
}

TEST(Task7_9_Wave, AStartOfAWaveThatHasEndedMeansNothing) {
  Wave wave;
  wave.begin();
  wave.on_votes(kNobody);
  wave.on_start(0);
  EXPECT_FALSE(wave.running());
}

TEST(Task7_9_Wave, AStartOfTheNextWaveMayComeBeforeTheEndOfThisOne) {
  Wave wave;
  wave.begin();
  wave.on_start(1);  // who sent it has counted the votes already
  wave.on_start(0);  // and this one was slow
  EXPECT_FALSE(wave.on_votes(kNobody));
  EXPECT_TRUE(wave.running());
  EXPECT_FALSE(wave.begin()) << "it has been told";
}

TEST(Task7_9_Wave, AllStepTogetherHoweverLateTheMessagesAre) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300; ++round) {
    testing::WaveFleet(static_cast<int>(random.integer(1, 5)), random).serve(random.integer(0, 12));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace ladder
