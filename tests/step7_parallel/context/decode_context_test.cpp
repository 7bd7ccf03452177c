// Which rank keeps which key, and attention of a group of ranks that share out the keys of one head.
#include "step7_parallel/context/decode_context_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step7_parallel/context/kv_interleave.h"
#include "tests/step7_parallel/growing_sequences.h"

namespace ladder {
namespace {

using testing::difference_from_one_rank;
using testing::GrowingSequences;
using testing::GrowingSizes;

// Every size of group, run and block that is small, against dealing positions out one by one.
template <class Check>
void for_each_interleave(const Check& check) {
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int64_t run = 1; run <= 3; ++run)
      for (int64_t rounds = 1; rounds <= 3; ++rounds) check(KvInterleave{ranks, run, rounds * ranks * run});
}

std::string describe(const KvInterleave& kv) {
  return fmt::format("{} ranks, runs of {}, blocks of {}", kv.ranks, kv.run, kv.block);
}

TEST(Task7_11_Slots, RanksTakeRunsInTurns) {
  for_each_interleave([](const KvInterleave& kv) {
    int rank = 0;
    int64_t left = kv.run;
    for (int64_t position = 0; position < 3 * kv.block; ++position) {
      EXPECT_EQ(kv_owner(kv, position), rank) << describe(kv) << ", position " << position;
      if (--left > 0) continue;
      left = kv.run;
      rank = (rank + 1) % kv.ranks;
    }
  });
}

TEST(Task7_11_Slots, ARankFillsItsPartOfABlockInOrder) {
  for_each_interleave([](const KvInterleave& kv) {
    for (int rank = 0; rank < kv.ranks; ++rank)
      for (const int64_t page : {0, 1, 5}) {
        int64_t next = page * kv.block / kv.ranks;
        for (int64_t offset = 0; offset < kv.block; ++offset) {
          const bool has_it = kv_owner(kv, offset) == rank;
          EXPECT_EQ(local_kv_slot(kv, page * kv.block + offset, rank), has_it ? next++ : -1)
              << describe(kv) << ", rank " << rank << ", block " << page << ", offset " << offset;
        }
        EXPECT_EQ(next, (page + 1) * kv.block / kv.ranks) << describe(kv) << ", rank " << rank;
      }
  });
}

TEST(Task7_11_Slots, PaddingIsNobodys) {
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(local_kv_slot({2, 1, 4}, -1, rank), -1);
}

TEST(Task7_11_Slots, LengthsCountWhatARankHas) {
  for_each_interleave([](const KvInterleave& kv) {
    for (int rank = 0; rank < kv.ranks; ++rank) {
      int64_t count = 0;
      for (int64_t length = 0; length <= 3 * kv.block + 1; ++length) {
        EXPECT_EQ(local_kv_length(kv, length, rank), count)
            << describe(kv) << ", rank " << rank << ", " << length << " tokens";
        count += kv_owner(kv, length) == rank;
      }
    }
  });
}

TEST(Task7_11_Attention, IsThatOfOneRankInChunksAndSteps) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 4; ++round)
    for (const int shares : {2, 3, 4})
      for (const int64_t run : {int64_t{1}, GrowingSizes{}.block / shares})
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
          const GrowingSizes sizes{.heads = shares * random.integer(1, 2), .dim = 32, .dtype = dtype};
          EXPECT_EQ(difference_from_one_rank(GrowingSequences(random, sizes), shares, shares, run), "");
        }
}

TEST(Task7_11_Attention, GroupsOfRanksKeepToThemselves) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(difference_from_one_rank(GrowingSequences(random, {.heads = 4, .kv_heads = 2}), 4, 2, 2), "")
        << "two KV heads, each on two ranks";
    EXPECT_EQ(difference_from_one_rank(GrowingSequences(random, {.heads = 4}), 4, 2, 1), "")
        << "one on four, two of which share its keys";
  }
}

TEST(Task7_11_Attention, WhatIsNotThereIsRefused) {
  OpContext ctx;
  EXPECT_FALSE(decode_context_attention(1, 1)) << "one rank keeps all keys by the usual attention";
  EXPECT_THROW(decode_context_attention(2, 1)(ctx, 0, testing::kv_cache_of(1)), Error) << "one rank";
  run_ranks(2, [](int, const ParallelContext& parallel) {
    OpContext ctx;
    ctx.parallel = &parallel;
    KvCacheSpec codes = testing::kv_cache_of(1);
    codes.kept_as = KvCacheDType::int8;
    EXPECT_THROW(decode_context_attention(2, 1)(ctx, 0, codes), Error);
    EXPECT_THROW(decode_context_attention(2, 1)(ctx, 0, testing::kv_cache_of(2)), Error)
        << "two KV heads on a rank";
  });
}

}  // namespace
}  // namespace ladder
