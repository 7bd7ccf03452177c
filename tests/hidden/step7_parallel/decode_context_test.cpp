// Task 7.11: the formulas at random large sizes; attention of groups of random sizes, over random steps.
#include <gtest/gtest.h>

#include "step7_parallel/context/kv_interleave.h"
#include "tests/step7_parallel/growing_sequences.h"

namespace ladder {
namespace {

TEST(Hidden7_11_Slots, DealOutEveryPositionOnce) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 40; ++round) {
    KvInterleave kv{static_cast<int>(random.integer(1, 9)), random.integer(1, 20), 1};
    kv.block = kv.ranks * kv.run * random.integer(1, 5);
    const int64_t page = random.integer(0, 1 << 20), length = random.integer(0, 5 * kv.block);
    int64_t total = 0;
    for (int rank = 0; rank < kv.ranks; ++rank) {
      int64_t has = 0;
      for (int64_t p = 0; p < length; ++p) has += kv_owner(kv, p) == rank;
      ASSERT_EQ(local_kv_length(kv, length, rank), has) << "rank " << rank << " of " << kv.ranks;
      total += has;
      int64_t next = page * (kv.block / kv.ranks);
      for (int64_t offset = 0; offset < kv.block; ++offset) {
        const bool mine = offset / kv.run % kv.ranks == rank;
        ASSERT_EQ(local_kv_slot(kv, page * kv.block + offset, rank), mine ? next++ : -1)
            << "offset " << offset;
      }
      ASSERT_EQ(local_kv_slot(kv, -1, rank), -1);
    }
    ASSERT_EQ(total, length);
  }
}

TEST(Hidden7_11_Attention, IsThatOfOneRank) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 8; ++round) {
    const int shares = random.one_of<int>({2, 3, 4}), groups = static_cast<int>(random.integer(1, 2)),
              tp = shares * groups;
    const int64_t run = random.one_of<int64_t>({1, testing::GrowingSizes{}.block / shares});
    const testing::GrowingSequences growth(
        random, {.heads = tp * random.integer(1, 2), .kv_heads = random.one_of<int64_t>({1, groups})});
    ASSERT_EQ(testing::difference_from_one_rank(growth, tp, shares, run), "");
  }
}

}  // namespace
}  // namespace ladder
