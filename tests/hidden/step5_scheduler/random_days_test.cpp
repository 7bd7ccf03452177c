// Days of other sizes than the public tests', with seeds that nobody knows.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/random_day.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

void random_days(int days, int delay, bool static_batching, const DaySizes& sizes) {
  const uint64_t first = testing::fresh_seed();
  for (int i = 0; i < days; ++i) {
    ASSERT_NO_THROW(random_day(first + i, delay, static_batching, false, sizes)) << "seed " << first + i;
    if (::testing::Test::HasFailure()) return;
  }
}

const DaySizes kLarge{17, 90, 140, 9, 130, 6, 120};
const DaySizes kTight{3, 16, 40, 6, 30, 3, 150};

TEST(Hidden5_2_Days, LargeBlocksAndLongPrompts) {
  random_days(120, 0, false, kLarge);
}

TEST(Hidden5_2_Days, ASmallCacheAndAnExecutorThatAnswersTwoStepsLate) {
  random_days(150, 2, false, kTight);
}

TEST(Hidden5_1_Days, BatchesOfOtherSizes) {
  random_days(100, 0, true, kLarge);
}

TEST(Hidden5_1_Days, ASmallCacheAndAnExecutorThatAnswersTwoStepsLate) {
  random_days(100, 2, true, kTight);
}

TEST(Hidden5_3_Days, ACacheThatIsAlwaysFull) {
  random_days(150, 1, false, {2, 10, 24, 8, 40, 2, 150});
}

TEST(Hidden5_2_Admit_Days, ManyCompletionsOfOnePrompt) {
  random_days(120, 1, false, {5, 40, 70, 10, 60, 9, 120});
}

}  // namespace
}  // namespace ladder
