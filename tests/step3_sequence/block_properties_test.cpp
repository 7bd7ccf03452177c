// Random use of the block manager (block_day.h).
#include <gtest/gtest.h>

#include "tests/step3_sequence/block_day.h"

namespace ladder {
namespace {

void random_days(uint64_t first_seed, bool poor_hash) {
  int64_t hits = 0, evictions = 0, forks = 0;
  for (uint64_t seed = first_seed; seed < first_seed + 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    BlockDay day(seed, poor_hash);
    day.run();
    if (testing::Test::HasFailure()) return;
    hits += day.num_hits;
    evictions += day.num_evictions;
    forks += day.num_forks;
  }
  EXPECT_GT(hits, 300);
  EXPECT_GT(evictions, 300);
  EXPECT_GT(forks, 300);
}

TEST(Task3_4_Properties, BooksBalanceAndNoCachedBlockIsLost) {
  random_days(1, false);
}

TEST(Task3_4_Properties, TheSameWhenNearlyAllHashesCollide) {
  random_days(5000, true);
}

}  // namespace
}  // namespace ladder
