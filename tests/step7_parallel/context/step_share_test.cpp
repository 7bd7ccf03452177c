// What the host plans of a rank's share of a step, and what is picked by it on either device.
#include "step7_parallel/context/step_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step7_parallel/context/share_inputs.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {

inline auto tensors_of(ShareInputsArgs& a) {
  return std::array{&a.input_ids,       &a.positions,      &a.slot_mapping, &a.query_start_loc,
                    &a.seq_lens,        &a.block_tables,   &a.rows,         &a.all_rows,
                    &a.sequences,       &a.ends,           &a.to_input_ids, &a.to_positions,
                    &a.to_slot_mapping, &a.to_local_slots, &a.to_seq_lens,  &a.to_block_tables};
}
namespace {

using ::testing::ElementsAre;

// The picture of step_share.h.
TEST(Task7_12_Share, ListsRowsSpansAndPlaces) {
  const std::vector<int32_t> starts{0, 8, 9};
  const StepShare first = share_of_step(starts, 2, 0), second = share_of_step(starts, 2, 1);
  EXPECT_THAT(first.lists.rows, ElementsAre(0, 1, 6, 7, 8));
  EXPECT_THAT(first.lists.sequences, ElementsAre(0, 0, 1));
  EXPECT_THAT(first.lists.ends, ElementsAre(2, 8, 1));
  EXPECT_THAT(first.lists.query_start_loc, ElementsAre(0, 2, 4, 5));
  EXPECT_THAT(second.lists.rows, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(second.lists.ends, ElementsAre(4, 6));
  for (const StepShare* share : {&first, &second}) {
    EXPECT_EQ(share->most, 5);
    EXPECT_EQ(share->max_query_len, 2);
    EXPECT_THAT(share->lists.all_rows, ElementsAre(0, 1, 6, 7, 8, 2, 3, 4, 5, -1));
    EXPECT_THAT(share->lists.places, ElementsAre(0, 1, 5, 6, 7, 8, 2, 3, 4));
  }
}

TEST(Task7_12_Share, ARankWithoutRowsComputesTheFirstForNobody) {
  const StepShare share = share_of_step(std::vector<int32_t>{0, 1}, 2, 1);
  EXPECT_THAT(share.lists.rows, ElementsAre(0));
  EXPECT_THAT(share.lists.all_rows, ElementsAre(0, -1)) << "its key is nobody's";
  EXPECT_THAT(share.lists.places, ElementsAre(0));
}

// Attention of single rows may read the keys before a row's own while this step's are stored.
TEST(Task7_12_Share, SpansOfOneRowOfAPromptAreNoBatchOfSingleRows) {
  EXPECT_EQ(share_of_step(std::vector<int32_t>{0, 4}, 2, 0).max_query_len, 2);
  EXPECT_EQ(share_of_step(std::vector<int32_t>{0, 1, 4}, 4, 3).max_query_len, 2);
  EXPECT_EQ(share_of_step(std::vector<int32_t>{0, 1, 2, 3}, 2, 0).max_query_len, 1);
}

Tensor ints(const std::vector<int32_t>& values) {
  return Tensor::from<int32_t>(values, {std::ssize(values)});
}

RUNG_TEST(Task7_12_ShareInputs, PicksWhatTheListsSay, "share_inputs", share_inputs_variants()) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 12; ++round) {
    const int ranks = static_cast<int>(random.integer(2, 4));
    std::vector<int32_t> starts{0}, lengths;
    for (int64_t count = random.integer(1, 20); count > 0; --count) {
      starts.push_back(starts.back() + static_cast<int32_t>(random.integer(1, round % 2 == 0 ? 2 : 90)));
      lengths.push_back(starts.back() - starts[starts.size() - 2] +
                        static_cast<int32_t>(random.integer(0, 50)));
    }
    const StepShare share = share_of_step(starts, ranks, static_cast<int>(random.integer(0, ranks - 1)));
    const int64_t rows = starts.back(), seqs = std::ssize(lengths), columns = random.integer(1, 300);
    const auto numbers = [&](const Shape& shape) {
      const Tensor tensor = Tensor::empty(shape, DType::i32);
      for (int64_t i = 0; i < tensor.numel(); ++i)
        tensor.data<int32_t>()[i] = static_cast<int32_t>(random.integer(0, 1 << 20));
      return tensor;
    };
    ShareInputsArgs args;
    if (round % 3 != 0) args.input_ids = numbers({rows});
    args.positions = numbers({rows});
    args.slot_mapping = Tensor::empty({rows}, DType::i64);
    for (int64_t i = 0; i < rows; ++i)
      args.slot_mapping.data<int64_t>()[i] = random.integer(-1, int64_t{1} << 33);
    args.query_start_loc = ints(starts);
    args.seq_lens = ints(lengths);
    args.block_tables = numbers({seqs, columns + random.integer(0, 3)});
    args.rows = ints(share.lists.rows);
    args.all_rows = ints(share.lists.all_rows);
    args.sequences = ints(share.lists.sequences);
    args.ends = ints(share.lists.ends);
    const int64_t mine = args.rows.dim(0), spans = args.sequences.dim(0);
    const auto unset = [](const Shape& shape, DType dtype) {
      const Tensor tensor = Tensor::empty(shape, dtype);
      tensor.fill_bytes(0xff);
      return tensor;
    };
    if (args.input_ids.defined()) args.to_input_ids = unset({mine}, DType::i32);
    args.to_positions = unset({mine}, DType::i32);
    args.to_slot_mapping = unset({args.all_rows.dim(0)}, DType::i64);
    args.to_local_slots = unset({share.most}, DType::i64);
    args.to_seq_lens = unset({spans}, DType::i32);
    args.to_block_tables = unset({spans, columns}, DType::i32);
    testing::call(share_inputs, ctx, args);

    for (int64_t i = 0; i < mine; ++i) {
      const int64_t row = share.lists.rows[static_cast<size_t>(i)];
      ASSERT_EQ(args.to_positions.at<int32_t>({i}), args.positions.at<int32_t>({row}));
      if (args.input_ids.defined()) {
        ASSERT_EQ(args.to_input_ids.at<int32_t>({i}), args.input_ids.at<int32_t>({row}));
      }
    }
    for (int64_t i = 0; i < args.all_rows.dim(0); ++i) {
      const int64_t row = share.lists.all_rows[static_cast<size_t>(i)];
      ASSERT_EQ(args.to_slot_mapping.at<int64_t>({i}), row < 0 ? -1 : args.slot_mapping.at<int64_t>({row}));
    }
    for (int64_t i = 0; i < share.most; ++i) ASSERT_EQ(args.to_local_slots.at<int64_t>({i}), i);
    for (int64_t span = 0; span < spans; ++span) {
      const int64_t seq = share.lists.sequences[static_cast<size_t>(span)];
      const auto s = static_cast<size_t>(seq);
      ASSERT_EQ(args.to_seq_lens.at<int32_t>({span}),
                lengths[s] - (starts[s + 1] - starts[s]) + share.lists.ends[static_cast<size_t>(span)]);
      for (int64_t c = 0; c < columns; ++c)
        ASSERT_EQ(args.to_block_tables.at<int32_t>({span, c}), args.block_tables.at<int32_t>({seq, c}));
    }
  }
}

}  // namespace
}  // namespace ladder
