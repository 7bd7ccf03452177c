// Paged attention without a mask: every row of a sequence sees all of its keys, of which there may be fewer than rows.
#include "tests/step1_layers/attention_scene.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// The rows of a sequence and the keys that they see.
struct Sizes {
  int64_t rows, keys;
};

// One call over sequences of these sizes, against double precision. Behind the keys the cache holds NaN.
void check_unmasked(const OpContext& ctx, Random& random, const std::vector<Sizes>& sizes,
                    const HeadShape& shape, DType dtype, int64_t block_size) {
  const double scale = 1 / std::sqrt(static_cast<double>(shape.k_dim));
  std::vector<SequenceData> data;
  std::vector<Part> parts;
  data.reserve(sizes.size());  // parts point into it
  for (const Sizes& one : sizes) {
    const int64_t longer = std::max(one.rows, one.keys);
    data.push_back(random_sequence(random, longer, shape, dtype));
    data.back().k.narrow(0, one.keys, longer - one.keys).fill_bytes(0xff);
    data.back().v.narrow(0, one.keys, longer - one.keys).fill_bytes(0xff);
    parts.push_back({&data.back(), longer - one.rows, longer});
  }
  AttentionInput input = lay_out(OpContext{}, random, parts, block_size);
  input.metadata.max_seq_len = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    input.metadata.seq_lens.data<int32_t>()[i] = static_cast<int32_t>(sizes[i].keys);
    input.metadata.max_seq_len = std::max(input.metadata.max_seq_len, sizes[i].keys);
  }
  const Attended result = poisoned_output(input);
  call(unmasked_paged_attention, ctx, input.q, input.cache, input.metadata, scale, result.out, result.lse);
  int64_t row = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto [rows, keys] = sizes[i];
    if (rows == 0) continue;
    SCOPED_TRACE(std::to_string(rows) + " rows and " + std::to_string(keys) + " keys");
    const Reference expected = attention_reference(data[i], parts[i].begin, parts[i].end, scale, keys);
    EXPECT_TRUE(close_to(result.out.narrow(0, row, rows), expected.out));
    const auto lse = to_double(result.lse.narrow(0, row, rows));
    for (size_t at = 0; at < lse.size(); ++at) EXPECT_NEAR(lse[at], expected.lse[at], 1e-4);
    row += rows;
  }
}

RUNG_TEST(Task1_7_PagedAttention, WithoutAMaskEveryRowSeesEveryKey, "paged_attention",
          mixed_attention_variants()) {
  struct Case {
    HeadShape shape;
    DType dtype;
    int64_t block_size;
  };
  for (const Case& one : {Case{{4, 2, 24, 24}, DType::f32, 7},
                          {{2, 1, 128, 128}, DType::f32, 16},
                          {{2, 1, 64, 64}, DType::f16, 16},
                          {{4, 1, 128, 128}, DType::bf16, 64},
                          {{3, 1, 128, 128}, DType::f16, 48},
                          {{2, 2, 256, 256}, DType::bf16, 32}}) {
    if (emulated() && one.shape.k_dim > 64 && one.dtype != DType::bf16) continue;
    Random random;
    SCOPED_TRACE(random.describe() + " heads of " + std::to_string(one.shape.k_dim) + ", pages of " +
                 std::to_string(one.block_size));
    // Tiles are of 64 or 128 keys, and of up to 128 rows of all the heads of a group.
    const std::vector<Sizes> sizes = emulated() ? std::vector<Sizes>{{33, 1}, {1, 70}, {0, 5}, {40, 65}}
                                                : std::vector<Sizes>{{150, 1},   {1, 150}, {0, 5},   {65, 63},
                                                                     {130, 128}, {2, 257}, {37, 129}};
    check_unmasked(ctx, random, sizes, one.shape, one.dtype, one.block_size);
  }
}

// Few rows and many keys: a rung may cut the keys into parts.
RUNG_TEST(Task1_7_PagedAttention, WithoutAMaskFewRowsSeeManyKeys, "paged_attention",
          mixed_attention_variants()) {
  for (int64_t dim : {64, 128}) {
    Random random;
    SCOPED_TRACE(random.describe() + " heads of " + std::to_string(dim));
    const int64_t keys = emulated() ? 600 : 2113;
    check_unmasked(ctx, random, {{33, keys}}, {4, 2, dim, dim}, DType::f16, 16);
  }
}

RUNG_TEST(Task1_7_PagedAttention, WithoutAMaskRowsWithoutKeysWeighNothing, "paged_attention",
          mixed_attention_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const HeadShape shape{2, 1, 128, 128};
  const SequenceData first = random_sequence(random, 5, shape, DType::bf16),
                     second = random_sequence(random, 3, shape, DType::bf16);
  AttentionInput input = lay_out(OpContext{}, random, {{&first, 0, 5}, {&second, 0, 3}}, 16);
  input.metadata.seq_lens.data<int32_t>()[0] = 0;
  const Attended result = poisoned_output(input);
  call(unmasked_paged_attention, ctx, input.q, input.cache, input.metadata, 0.125, result.out, result.lse);
  // -inf, or not written.
  for (const double lse : to_double(result.lse.rows(5)))
    EXPECT_TRUE(std::isnan(lse) || lse == -INFINITY) << lse;
  EXPECT_TRUE(close_to(result.out.narrow(0, 5, 3), attention_reference(second, 0, 3, 0.125, 3).out));
}

}  // namespace
}  // namespace ladder
