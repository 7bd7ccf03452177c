// Random days in the life of a scheduler (random_day.h).
#include <gtest/gtest.h>

#include "tests/step5_scheduler/random_day.h"

namespace ladder {
namespace {

// `rare`: what must have happened on some day, else the property was never tried.
void random_days(uint64_t first_seed, int days, int delay) {
  int preempted = 0, hit = 0, forked = 0, stopped = 0, aborted = 0;
  for (int i = 0; i < days; ++i) {
    Day day;
    ASSERT_NO_THROW(day = random_day(first_seed + i, delay)) << "seed " << first_seed + i;
    if (testing::Test::HasFailure()) return;
    preempted += day.preempted;
    hit += day.hit;
    forked += day.forked;
    stopped += day.stopped;
    aborted += day.aborted;
  }
  EXPECT_GT(preempted, days / 10);
  EXPECT_GT(hit, days / 10);
  EXPECT_GT(forked, days / 2);
  EXPECT_GT(stopped, days / 2);
  EXPECT_GT(aborted, days / 2);
}

TEST(Task5_2_Properties, BooksBalanceAndAnswersAreThoseOfTheRequestAlone) {
  random_days(1000, 400, 0);
}

TEST(Task5_2_Properties, TheSameWithAnExecutorThatAnswersOneStepLate) {
  random_days(2000, 400, 1);
}

TEST(Task5_2_Properties, TheSameWithAnExecutorThatAnswersThreeStepsLate) {
  random_days(3000, 400, 3);
}

TEST(Task5_1_Properties, TheBaselinesGiveTheSameAnswers) {
  for (int i = 0; i < 100; ++i)
    for (const int delay : {0, 1})
      for (const bool recompute : {false, true}) {
        ASSERT_NO_THROW(random_day(4000 + i, delay, true, recompute)) << "seed " << 4000 + i;
        if (HasFailure()) return;
      }
}

}  // namespace
}  // namespace ladder
