// 7.9: copies in turns, tokens counted, rows that only fill up left out: on every rung.
#include "step7_parallel/expert/choose_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {

inline auto tensors_of(ChoosePlacesArgs& a) {  // for call()
  return std::array{&a.expert_ids, &a.slots, &a.places, &a.counts};
}

namespace {

using testing::call;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using testing::Random;

template <class T>
std::vector<T> values_of(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.data<T>() + tensor.numel()};
}

// A router's choice for rows of which some have no slot, and tables of experts with one to `copies` places.
struct Choice {
  Tensor ids, slots, places;
  int64_t experts;

  Choice(Random& random, int64_t rows, int64_t top_k, int64_t num_experts, int64_t copies)
      : ids(Tensor::empty({rows, top_k}, DType::i32)),
        slots(Tensor::empty({rows}, DType::i64)),
        places(Tensor::zeros({num_experts, 1 + copies}, DType::i32)),
        experts(num_experts) {
    for (int64_t i = 0; i < ids.numel(); ++i)
      ids.data<int32_t>()[i] = static_cast<int32_t>(random.integer(-1, experts - 1));
    for (int64_t i = 0; i < rows; ++i) slots.data<int64_t>()[i] = random.integer(0, 3) == 0 ? -1 : 7 * i;
    int32_t place = 0;
    for (int64_t expert = 0; expert < experts; ++expert) {
      int32_t* const row = places.data<int32_t>() + expert * places.dim(1);
      row[0] = static_cast<int32_t>(random.integer(1, copies));
      for (int32_t copy = 1; copy <= row[0]; ++copy) row[copy] = place++;
    }
  }
  int32_t place_of(int32_t expert, int64_t turn) const {
    const int32_t* const row = places.data<int32_t>() + expert * places.dim(1);
    return row[1 + turn % row[0]];
  }
};

RUNG_TEST(Task7_9_ChoosePlaces, TakesCopiesInTurnsAndCountsTokens, "choose_places",
          choose_places_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const auto& [rows, top_k, experts, copies] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1},
        {7, 2, 4, 3},
        {130, 8, 128, 2},
        {1000, 3, 5, 8}})
    for (const int64_t ranks : {1, 2, 3})
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Choice choice(random, rows, top_k, experts, copies);
        const Tensor ids = choice.ids.clone();
        const Tensor counts = Tensor::zeros({experts}, DType::i64);
        counts.data<int64_t>()[0] = 1'000'000'000'000;  // of steps before
        const int64_t first_copy = random.integer(0, 5);
        call(choose_places, ctx,
             ChoosePlacesArgs{ids, choice.slots, choice.places, first_copy, counts, rank, ranks});
        std::vector<int32_t> expected_ids;
        std::vector<int64_t> expected_counts(static_cast<size_t>(experts));
        expected_counts[0] = 1'000'000'000'000;
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t j = 0; j < top_k; ++j) {
            const int32_t id = choice.ids.at<int32_t>({row, j});
            const bool asks = id >= 0 && choice.slots.at<int64_t>({row}) >= 0;
            expected_ids.push_back(asks ? choice.place_of(id, first_copy + row) : -1);
            if (asks && row % ranks == rank) ++expected_counts[static_cast<size_t>(id)];
          }
        EXPECT_THAT(values_of<int32_t>(ids), ElementsAreArray(expected_ids)) << rows << " rows";
        EXPECT_THAT(values_of<int64_t>(counts), ElementsAreArray(expected_counts)) << rows << " rows";
      }
}

RUNG_TEST(Task7_9_ChoosePlaces, LeavesOutWhatIsNotGiven, "choose_places", choose_places_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Choice choice(random, 77, 3, 6, 2);
  Tensor ids = choice.ids.clone();
  call(choose_places, ctx, ChoosePlacesArgs{.expert_ids = ids, .slots = choice.slots});
  for (int64_t row = 0; row < 77; ++row)
    for (int64_t j = 0; j < 3; ++j)
      EXPECT_EQ(ids.at<int32_t>({row, j}),
                choice.slots.at<int64_t>({row}) < 0 ? -1 : choice.ids.at<int32_t>({row, j}));
  // Without slots all rows have their experts, and none is a token.
  ids = choice.ids.clone();
  const Tensor counts = Tensor::zeros({6}, DType::i64);
  call(choose_places, ctx, ChoosePlacesArgs{.expert_ids = ids, .places = choice.places, .counts = counts});
  for (int64_t row = 0; row < 77; ++row)
    for (int64_t j = 0; j < 3; ++j) {
      const int32_t id = choice.ids.at<int32_t>({row, j});
      EXPECT_EQ(ids.at<int32_t>({row, j}), id < 0 ? -1 : choice.place_of(id, row));
    }
  EXPECT_THAT(values_of<int64_t>(counts), ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(Task7_9_ChoosePlaces, NamesWhatDoesNotFit) {
  const Tensor ids = Tensor::zeros({2, 1}, DType::i32), slots = Tensor::zeros({2}, DType::i64),
               places = Tensor::from<int32_t>(std::vector<int32_t>{1, 0}, {1, 2});
  EXPECT_THROW(choose_places({}, {.expert_ids = ids, .slots = Tensor::zeros({3}, DType::i64)}), Error);
  EXPECT_THROW(choose_places({}, {.expert_ids = ids, .slots = Tensor::zeros({2}, DType::i32)}), Error);
  EXPECT_THROW(
      choose_places(
          {},
          {.expert_ids = ids, .slots = slots, .places = places, .counts = Tensor::zeros({2}, DType::i64)}),
      Error);
  ids.at<int32_t>({1, 0}) = 1;
  EXPECT_THROW(choose_places({}, {.expert_ids = ids, .slots = slots, .places = places}), Error)
      << "no expert 1";
}

}  // namespace
}  // namespace ladder
