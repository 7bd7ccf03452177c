// A step as a rank sees it that keeps a part of the keys, on either device; and heads of several ranks in one tensor.
#include "step7_parallel/context/local_keys.h"

#include <gtest/gtest.h>

#include <array>

#include "step7_parallel/context/copy_runs.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {

inline auto tensors_of(LocalKeysArgs& a) {
  return std::array{&a.slot_mapping, &a.query_start_loc, &a.seq_lens,      &a.lengths,
                    &a.slots,        &a.fresh_slots,     &a.fresh_lengths, &a.fresh_tables};
}
inline auto tensors_of(CopyRunsArgs& a) {
  return std::array{&a.from.tensor, &a.to.tensor};
}
namespace {

using testing::Random;

// A step of sequences of random lengths; some of a graph's spare ones behind them, of a row or none, and rows of padding.
struct RandomStep {
  std::vector<int32_t> starts{0}, seq_lens;
  std::vector<int64_t> slots;
  int64_t most_rows = 1;

  RandomStep(Random& random, bool is_decode, int64_t block) {
    const int64_t known = random.integer(1, 9), spare = random.integer(0, 3);
    for (int64_t seq = 0; seq < known + spare; ++seq) {
      const int64_t rows = is_decode      ? 1
                           : seq >= known ? random.integer(0, 1)
                           : seq % 3 == 0 ? random.integer(60, 200)
                                          : random.integer(1, 5);
      most_rows = std::max(most_rows, rows);
      starts.push_back(starts.back() + static_cast<int32_t>(rows));
      seq_lens.push_back(seq < known ? static_cast<int32_t>(rows + random.integer(0, 100)) : 0);
      for (int64_t row = 0; row < rows; ++row)
        slots.push_back(seq < known ? random.integer(0, 1000 * block) : -1);
    }
    for (int64_t padding = random.integer(0, 3); padding > 0; --padding) slots.push_back(-1);
  }
  int64_t num_seqs() const { return std::ssize(seq_lens); }
};

RUNG_TEST(Task7_11_LocalKeys, AreThoseOfTheFormulas, "local_keys", local_keys_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 40; ++round) {
    const int ranks = static_cast<int>(random.integer(2, 4)),
              rank = static_cast<int>(random.integer(0, ranks - 1));
    const int64_t run = random.integer(1, 5), block = ranks * run * random.integer(1, 4);
    const KvInterleave kv{ranks, run, block};
    const LocalRound local(ranks, run, rank, ctx.device);
    const bool is_decode = round % 2 == 0;
    const RandomStep step(random, is_decode, block);
    const auto rows = std::ssize(step.slots), seqs = step.num_seqs();
    const auto unset = [](const Shape& shape, DType dtype) {
      const Tensor tensor = Tensor::empty(shape, dtype);
      tensor.fill_bytes(0x7f);
      return tensor;
    };
    LocalKeysArgs args;
    args.round = &local;
    args.slot_mapping = Tensor::from<int64_t>(step.slots, {rows});
    args.query_start_loc = Tensor::from<int32_t>(step.starts, {seqs + 1});
    args.seq_lens = Tensor::from<int32_t>(step.seq_lens, {seqs});
    args.lengths = unset({seqs}, DType::i32);
    const int64_t blocks = fresh_blocks(step.starts.back(), seqs);
    args.slots = unset({is_decode ? rows : blocks * kFreshSlots}, DType::i64);
    if (!is_decode) {
      args.fresh_slots = unset({rows}, DType::i64);
      args.fresh_lengths = unset({seqs}, DType::i32);
      args.fresh_tables = unset({seqs, (step.most_rows - 1) / kFreshSlots + 1}, DType::i32);
    }
    testing::call(find_local_keys, ctx, args);

    std::vector<bool> is_taken(static_cast<size_t>(args.slots.numel()), false);
    for (int64_t seq = 0; seq < seqs; ++seq) {
      const auto s = static_cast<size_t>(seq);
      const int64_t first = step.starts[s], count = step.starts[s + 1] - first;
      const int64_t known = std::max<int64_t>(step.seq_lens[s] - (is_decode ? 0 : count), 0);
      ASSERT_EQ(args.lengths.at<int32_t>({seq}), local_kv_length(kv, known, rank)) << "sequence " << seq;
      if (is_decode) continue;
      ASSERT_EQ(args.fresh_lengths.at<int32_t>({seq}), std::min<int64_t>(count, step.seq_lens[s]));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t fresh = args.fresh_slots.at<int64_t>({first + i});
        ASSERT_EQ(fresh,
                  args.fresh_tables.at<int32_t>({seq, i / kFreshSlots}) * kFreshSlots + i % kFreshSlots)
            << "sequence " << seq << ", row " << i << " is where its block table says";
        ASSERT_TRUE(fresh >= 0 && fresh < args.slots.numel() && !is_taken[static_cast<size_t>(fresh)])
            << "each has a slot of its own";
        is_taken[static_cast<size_t>(fresh)] = true;
        ASSERT_EQ(args.slots.at<int64_t>({fresh}),
                  local_kv_slot(kv, step.slots[static_cast<size_t>(first + i)], rank));
      }
    }
    for (int64_t row = is_decode ? 0 : step.starts.back(); row < rows; ++row) {
      const int64_t slot = (is_decode ? args.slots : args.fresh_slots).at<int64_t>({row});
      ASSERT_EQ(slot, is_decode ? local_kv_slot(kv, step.slots[static_cast<size_t>(row)], rank) : -1);
    }
    if (is_decode) continue;
    for (size_t i = 0; i < is_taken.size(); ++i)
      if (!is_taken[i]) {
        ASSERT_EQ(args.slots.at<int64_t>({static_cast<int64_t>(i)}), -1) << "no token's slot is stored";
      }
  }
}

RUNG_TEST(CopyRuns, PutHeadsInOrderAndBack, "copy_runs", copy_runs_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t run : {1, 2, 3, 8, 40, 2048})
      for (const int64_t rows : {1, 5, 130}) {
        const int64_t parts = random.integer(2, 5);
        const Tensor whole = random.normal({rows, parts, run}, dtype),
                     apart = testing::poisoned({parts, rows, run}, dtype),
                     back = testing::poisoned({rows, parts, run}, dtype),
                     same = testing::poisoned({parts, rows, run}, dtype);
        const RunPlaces by_row{whole, run, parts * run}, by_part{apart, rows * run, run};
        testing::call(copy_runs, ctx, CopyRunsArgs{by_row, by_part, parts, rows, run});
        testing::call(copy_runs, ctx, CopyRunsArgs{by_part, {back, run, parts * run}, parts, rows, run});
        testing::call(copy_runs, ctx,
                      CopyRunsArgs{{whole, 0, parts * run}, {same, rows * run, run}, parts, rows, run});
        ASSERT_TRUE(testing::bitwise_equal(back, whole)) << parts << " parts, " << rows << " rows of " << run;
        for (int64_t part = 0; part < parts; ++part) {
          ASSERT_TRUE(testing::bitwise_equal(apart.select(0, part), whole.select(1, part).clone()));
          ASSERT_TRUE(testing::bitwise_equal(same.select(0, part), whole.select(1, 0).clone()));
        }
      }
}

}  // namespace
}  // namespace ladder
