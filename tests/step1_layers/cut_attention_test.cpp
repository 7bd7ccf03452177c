// Attention of single rows whose keys a rung may cut among its blocks (GPU): what the blocks tell each other.
#include <gtest/gtest.h>

#include "tests/step1_layers/attention_scene.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// The rungs that cut, and those of the CPU.
std::vector<Variant<PagedAttentionArgs>> cutting_variants() {
  return rungs_where(paged_attention_variants(), [](const auto& rung) {
    return rung.device == DeviceType::cpu || rung.name == "split" || rung.name == "cluster";
  });
}

// Scores of zero, whose maximum is zero, and values of zero in half of the columns: a partial result must
// differ from one that has not arrived yet. Twice, since a call must leave nothing for the next.
RUNG_TEST(Task1_7_CutAttention, ZerosArriveToo, "paged_attention", cutting_variants()) {
  for (int64_t dim : {64, 128, 256}) {
    Random random;
    SCOPED_TRACE(random.describe() + " dim " + std::to_string(dim));
    const int64_t length = 2048;
    SequenceData data = random_sequence(random, length, {6, 2, dim, dim}, DType::bf16);
    data.q.fill_bytes(0);
    data.v.narrow(2, 0, dim / 2).copy_from(Tensor::zeros({length, 2, dim / 2}, DType::bf16));
    const Reference expected = attention_reference(data, length - 1, length, 1);
    for (int turn = 0; turn < 2; ++turn) {
      const Attended result = attend(ctx, random, {{&data, length - 1, length}}, 16, 1);
      EXPECT_TRUE(close_to(result.out, expected.out));
      EXPECT_TRUE(bitwise_equal(result.out.narrow(2, 0, dim / 2).clone(),
                                Tensor::zeros({1, 6, dim / 2}, DType::bf16)));
      for (double lse : to_double(result.lse)) EXPECT_NEAR(lse, std::log(static_cast<double>(length)), 1e-4);
    }
  }
}

// Sequences of very different lengths in one batch, in different orders: parts that hold the end of one, all
// of another and the begin of a third, and sequences of many parts.
RUNG_TEST(Task1_7_CutAttention, UnequalSequencesInAnyOrder, "paged_attention", cutting_variants()) {
  for (const HeadShape& shape : {HeadShape{8, 2, 128, 128}, {3, 3, 64, 64}, {12, 1, 256, 256}}) {
    Random random;
    SCOPED_TRACE(random.describe() + " dim " + std::to_string(shape.k_dim));
    const double scale = 1 / std::sqrt(static_cast<double>(shape.k_dim));
    std::vector<SequenceData> data;
    std::vector<Reference> expected;
    for (int64_t length : {2001, 1, 64, 65, 2, 500, 128, 129, 900, 16, 17, 15}) {
      data.push_back(random_sequence(random, length, shape, DType::bf16));
      expected.push_back(attention_reference(data.back(), length - 1, length, scale));
    }
    std::vector<size_t> order(data.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (int turn = 0; turn < 4; ++turn) {
      std::vector<Part> parts;
      for (size_t i : order) parts.push_back({&data[i], data[i].length() - 1, data[i].length()});
      const Attended result = attend(ctx, random, parts, 16, scale);
      for (size_t at = 0; at < order.size(); ++at) {
        const auto row = static_cast<int64_t>(at);
        const Reference& reference = expected[order[at]];
        EXPECT_TRUE(close_to(result.out.narrow(0, row, 1), reference.out))
            << data[order[at]].length() << " keys, turn " << turn;
        const auto lse = to_double(result.lse.narrow(0, row, 1));
        for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], reference.lse[i], 1e-4);
      }
      std::shuffle(order.begin(), order.end(), random.engine());
    }
  }
}

std::vector<Variant<PagedAttentionArgs>> variants_of_many_parts() {
  return rungs_where(paged_attention_variants(), [](const auto& rung) { return rung.name == "split"; });
}

// Sequences of so many parts that these are merged in groups, whole ones and some at either end; alone, between others, and
// twice, since a call must leave nothing for the next.
RUNG_TEST(Task1_7_CutAttention, SequencesOfManyParts, "paged_attention", variants_of_many_parts()) {
  for (const HeadShape& shape : {HeadShape{8, 1, 128, 128}, {4, 2, 64, 64}, {2, 1, 256, 256}}) {
    Random random;
    SCOPED_TRACE(random.describe() + " dim " + std::to_string(shape.k_dim));
    const double scale = 1 / std::sqrt(static_cast<double>(shape.k_dim));
    const std::vector<int64_t> numbers = {random.integer(17000, 40000), random.integer(9000, 20000), 3, 700,
                                          random.integer(4000, 9000)};
    std::vector<SequenceData> data;
    std::vector<Reference> expected;
    for (const int64_t length : numbers) {
      data.push_back(random_sequence(random, length, shape, DType::bf16));
      expected.push_back(attention_reference(data.back(), length - 1, length, scale));
    }
    const std::vector<std::vector<size_t>> batches = {{0}, {1}, {4}, {0, 1}, {2, 0, 3}, {3, 1, 2, 0, 4}};
    for (const std::vector<size_t>& batch : batches)
      for (int turn = 0; turn < 2; ++turn) {
        std::vector<Part> parts;
        for (const size_t i : batch) parts.push_back({&data[i], data[i].length() - 1, data[i].length()});
        const Attended result = attend(ctx, random, parts, 16, scale);
        for (size_t at = 0; at < batch.size(); ++at) {
          const auto row = static_cast<int64_t>(at);
          const Reference& reference = expected[batch[at]];
          EXPECT_TRUE(close_to(result.out.narrow(0, row, 1), reference.out))
              << numbers[batch[at]] << " keys, " << batch.size() << " sequences, turn " << turn;
          const auto lse = to_double(result.lse.narrow(0, row, 1));
          for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], reference.lse[i], 1e-4);
        }
      }
  }
}

}  // namespace
}  // namespace ladder
