#include "step1_layers/attention/attention.h"

#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/core/error.h"
#include "step1_layers/norm/rms_norm.h"
#include "step1_layers/rotary/rope.h"
#include "tests/step1_layers/attention_scene.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// Runs one call over the parts and compares every row, and the lse, with the reference.
void check_parts(const OpContext& ctx, Random& random, const std::vector<Part>& parts, int64_t block_size) {
  const int64_t k_dim = parts[0].data->k.dim(2);
  const double scale = 1 / std::sqrt(static_cast<double>(k_dim));
  const Attended result = attend(ctx, random, parts, block_size, scale);
  int64_t row = 0;
  for (const Part& part : parts) {
    const Reference expected = attention_reference(*part.data, part.begin, part.end, scale);
    const int64_t length = part.end - part.begin;
    EXPECT_TRUE(close_to(result.out.narrow(0, row, length), expected.out))
        << "rows " << part.begin << ".." << part.end;
    const auto lse = to_double(result.lse.narrow(0, row, length));
    for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], expected.lse[i], 1e-4);
    row += length;
  }
}

RUNG_TEST(Task1_7_PagedAttention, MixedQueryLengthsEqualDoublePrecision, "paged_attention",
          mixed_attention_variants()) {
  for (DType dtype : kDTypes)
    for (auto [block_size, dim] : {std::pair<int64_t, int64_t>{1, 24}, {7, 24}, {16, 24}, {16, 128}}) {
      if (emulated() && (dtype == DType::f16 || block_size == 16) && dim == 24) continue;
      Random random;
      SCOPED_TRACE(random.describe() + " dim " + std::to_string(dim));
      const HeadShape shape{4, 2, dim, dim};
      std::vector<SequenceData> data;
      for (int64_t length : {1, 64, 65, 130, 33})
        data.push_back(random_sequence(random, length, shape, dtype));
      // A first token, a whole prompt, one decoded token, a chunk in the middle, the end of a prompt.
      check_parts(
          ctx, random,
          {{&data[0], 0, 1}, {&data[1], 0, 64}, {&data[2], 64, 65}, {&data[3], 50, 117}, {&data[4], 31, 33}},
          block_size);
    }
}

// The largest number of rows of a sequence and how many rows there are: all that the host knows, and what a
// rung may decide by that no single row is among them.
RUNG_TEST(Task1_7_PagedAttention, ASingleRowAmongPromptsIsNotLeftOut, "paged_attention",
          mixed_attention_variants()) {
  const HeadShape shape{8, 2, 128, 128};
  for (const std::vector<int64_t>& query_lens :
       std::vector<std::vector<int64_t>>{{5}, {5, 1}, {1, 5}, {5, 5, 5}, {5, 1, 5}, {2, 1}, {5, 4, 2}}) {
    Random random;
    SCOPED_TRACE(random.describe());
    std::vector<SequenceData> data;
    for (size_t i = 0; i < query_lens.size(); ++i)
      data.push_back(random_sequence(random, random.integer(5, 80), shape, DType::bf16));
    std::vector<Part> parts;
    for (size_t i = 0; i < query_lens.size(); ++i)
      parts.push_back({&data[i], data[i].length() - query_lens[i], data[i].length()});
    check_parts(ctx, random, parts, 16);
  }
}

RUNG_TEST(Task1_7_PagedAttention, HeadDimensionsAndGroups, "paged_attention", mixed_attention_variants()) {
  for (const HeadShape& shape : {HeadShape{1, 1, 1, 1},
                                 {2, 2, 20, 20},
                                 {8, 1, 64, 64},
                                 {6, 2, 80, 80},
                                 {3, 3, 33, 33},
                                 {16, 8, 128, 128},
                                 {14, 2, 96, 96},
                                 {2, 1, 256, 256},
                                 {4, 2, 40, 24},
                                 {64, 1, 16, 72}}) {
    Random random;
    SCOPED_TRACE(random.describe() + " k_dim " + std::to_string(shape.k_dim));
    // The sizes that rungs are made for in the types that they are made for.
    const DType dtype = kDTypes[random.integer(shape.k_dim % 64 == 0 ? 1 : 0, 2)];
    SequenceData data = random_sequence(random, 70, shape, dtype);
    if (shape.v_dim == 1) take_magnitudes(data.v);
    check_parts(ctx, random, {{&data, 60, 70}, {&data, 0, 19}}, 16);
  }
}

RUNG_TEST(Task1_7_PagedAttention, MoreThanAThousandKeys, "paged_attention", paged_attention_variants()) {
  for (const auto& [dtype, dim] : {std::pair{DType::f32, 32}, {DType::f16, 128}}) {
    Random random;
    SCOPED_TRACE(random.describe() + " dim " + std::to_string(dim));
    const SequenceData data = random_sequence(random, 3001, {2, 1, dim, dim}, dtype);
    check_parts(ctx, random, {{&data, 3000, 3001}, {&data, 1020, 1030}}, 16);
    check_parts(ctx, random, {{&data, 2999, 3000}, {&data, 1024, 1025}}, 16);
  }
}

RUNG_TEST(Task1_7_PagedAttention, SomeSequencesShareTheirFirstBlocks, "paged_attention",
          paged_attention_variants()) {
  // Of three sequences the last begins with the blocks of the first; mixed rows, then single ones only.
  for (const auto& [dtype, dim] : {std::pair{DType::f32, 16}, {DType::bf16, 128}, {DType::f16, 64}})
    for (bool single : {false, true}) {
      Random random;
      SCOPED_TRACE(random.describe() + " dim " + std::to_string(dim) + (single ? ", single rows" : ""));
      const HeadShape shape{4, 2, dim, dim};
      const SequenceData first = random_sequence(random, 50, shape, dtype);
      const SequenceData other = random_sequence(random, 41, shape, dtype);
      SequenceData follower = random_sequence(random, 45, shape, dtype);
      follower.k.rows(32).copy_from(first.k.rows(32));
      follower.v.rows(32).copy_from(first.v.rows(32));
      check_parts(ctx, random,
                  {{&first, 49, 50}, {&other, single ? 40 : 0, 41}, {&follower, single ? 44 : 32, 45, 0, 2}},
                  16);
    }
}

RUNG_TEST(Task1_7_PagedAttention, EveryRowSeesItsOwnKeyAndNoLaterOne, "paged_attention",
          paged_attention_variants()) {
  // Score 1420 * position: all weight lies on the last key a row sees, so its output is that key's value, to
  // the last bit. A mask that is off by one, or made for as many queries as keys, gives another value.
  // 2048 in the powers of two that most kernels take, so that no score is rounded.
  const double scale = 2048 * std::log(2.0);
  struct Case {
    DType dtype;
    int64_t k_dim, v_dim;
  };
  for (const Case& c : {Case{DType::f32, 3, 37},
                        {DType::bf16, 3, 37},
                        {DType::f16, 3, 37},
                        {DType::bf16, 128, 128},
                        {DType::f16, 64, 64}}) {
    Random random;
    SCOPED_TRACE(random.describe() + " dim " + std::to_string(c.k_dim));
    SequenceData data = random_sequence(random, 200, {2, 1, c.k_dim, c.v_dim}, DType::f32);
    data.v = random.exact({200, 1, c.v_dim}, DType::f32);
    for (int64_t p = 0; p < 200; ++p)
      for (int64_t i = 0; i < c.k_dim; ++i) {
        data.k.at<float>({p, 0, i}) = i == 1 ? static_cast<float>(p) : 0.0f;
        for (int64_t head = 0; head < 2; ++head) data.q.at<float>({p, head, i}) = i == 1 ? 1.0f : 0.0f;
      }
    data = {data.q.to(c.dtype), data.k.to(c.dtype), data.v.to(c.dtype)};
    for (auto [begin, end] : {std::pair{0, 200}, {64, 128}, {199, 200}, {63, 66}, {100, 101}}) {
      if (emulated() && end - begin > 100) continue;
      const Attended result = attend(ctx, random, {{&data, begin, end}}, 16, scale);
      for (int64_t row = begin; row < end; ++row)
        for (int64_t head = 0; head < 2; ++head)
          ASSERT_TRUE(bitwise_equal(result.out.select(0, row - begin).select(0, head),
                                    data.v.select(0, row).select(0, 0)))
              << "position " << row;
    }
  }
}

RUNG_TEST(Task1_7_PagedAttention, ZeroQueriesAverageTheValuesExactly, "paged_attention",
          paged_attention_variants()) {
  for (const auto& [dtype, dim, block_size] : {std::tuple{DType::f32, 21, 5}, {DType::f16, 128, 16}}) {
    Random random;
    SCOPED_TRACE(random.describe() + " dim " + std::to_string(dim));
    SequenceData data = random_sequence(random, 128, {3, 1, dim, dim}, dtype);
    data.q.fill_bytes(0);
    data.v = random.exact({128, 1, dim}, dtype);
    const auto values = to_double(data.v);
    const auto check = [&, width = dim](const Attended& result, int64_t row, int64_t keys) {
      const auto out = to_double(result.out.select(0, row).select(0, 2));
      for (int64_t i = 0; i < width; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < keys; ++j) sum += values[static_cast<size_t>(j * width + i)];
        ASSERT_EQ(out[static_cast<size_t>(i)], sum / static_cast<double>(keys)) << keys;
      }
    };
    const Attended whole = attend(ctx, random, {{&data, 0, 128}}, block_size, 0.5);
    for (int64_t keys = 1; keys <= 128; keys *= 2) check(whole, keys - 1, keys);
    check(attend(ctx, random, {{&data, 127, 128}}, block_size, 0.5), 0, 128);
  }
}

RUNG_TEST(Task1_7_PagedAttention, ARowHasTheSameBitsAloneInAnyChunkAndInAnyBatch, "paged_attention",
          rungs_where(paged_attention_variants(), [](const auto& rung) { return rung.batch_invariant; })) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const HeadShape& shape : {HeadShape{4, 2, 32, 32}, {6, 1, 40, 24}, {2, 2, 128, 128}}) {
      Random random;
      SCOPED_TRACE(random.describe());
      const int64_t length = emulated() ? random.integer(40, 60) : random.integer(150, 220);
      const int64_t others = emulated() ? 17 : 77;
      const SequenceData data = random_sequence(random, length, shape, dtype);
      const SequenceData other = random_sequence(random, 90, shape, dtype);
      const double scale = 0.2;
      Attended whole;
      with_threads(1, [&] { whole = attend(ctx, random, {{&data, 0, length}}, 16, scale); });
      auto expect_same = [&](const Attended& part, int64_t at, int64_t begin, int64_t end) {
        EXPECT_TRUE(
            bitwise_equal(part.out.narrow(0, at, end - begin), whole.out.narrow(0, begin, end - begin)))
            << "rows " << begin << ".." << end << " of " << length;
        EXPECT_TRUE(
            bitwise_equal(part.lse.narrow(0, at, end - begin), whole.lse.narrow(0, begin, end - begin)));
      };
      with_threads(2, [&] {
        for (int64_t chunk : {1, 31, 64, 100})  // chunked prefill, one call per chunk
          for (int64_t begin = 0; begin < length; begin += chunk == 1 ? 37 : chunk) {
            const int64_t end = std::min(begin + chunk, length);
            const int64_t block_size = random.integer(1, 33);
            expect_same(attend(ctx, random, {{&data, begin, end}}, block_size, scale), 0, begin, end);
          }
        for (int i = 0; i < 5; ++i) {  // among others
          const int64_t end = random.integer(1, length), begin = random.integer(0, end - 1);
          const Attended mixed =
              attend(ctx, random, {{&other, 0, others}, {&data, begin, end}, {&other, 89, 90}}, 8, scale);
          expect_same(mixed, others, begin, end);
        }
      });
    }
}

RUNG_TEST(Task1_7_PagedAttention, RowsPastTheLastTokenAreNeitherReadNorWritten, "paged_attention",
          paged_attention_variants()) {
  for (const auto& [dtype, dim, block_size] : {std::tuple{DType::f32, 8, 4}, {DType::bf16, 128, 16}})
    for (const int64_t begin : {0, 8}) {
      Random random;
      SCOPED_TRACE(random.describe() + " dim " + std::to_string(dim));
      const int64_t rows = 9 - begin;
      const SequenceData data = random_sequence(random, 9, {2, 1, dim, dim}, dtype);
      const Attended result = attend(ctx, random, {{&data, begin, 9}}, block_size, 0.3, 5);
      EXPECT_TRUE(close_to(result.out.rows(rows), attention_reference(data, begin, 9, 0.3).out));
      EXPECT_TRUE(bitwise_equal(result.out.narrow(0, rows, 5), poisoned({5, 2, dim}, dtype)));
      EXPECT_TRUE(bitwise_equal(result.lse.narrow(0, rows, 5), poisoned({5, 2}, DType::f32)));
    }
}

// A whole prompt, then a row that decodes.
RUNG_TEST(Task1_7_PagedAttention, ReadsQueriesAndWritesOutputsThroughStrides, "paged_attention",
          paged_attention_variants()) {
  for (auto [dtype, dim, block_size, spare] :
       {std::tuple<DType, int64_t, int64_t, int64_t>{DType::f32, 8, 4, 3}, {DType::bf16, 128, 16, 8}})
    for (const int64_t begin : {0, 31}) {
      Random random;
      SCOPED_TRACE(random.describe() + " dim " + std::to_string(dim));
      const int64_t length = 32, rows = length - begin, num_blocks = length / block_size;
      const SequenceData data = random_sequence(random, length, {4, 2, dim, dim}, dtype);
      Tensor qkv = poisoned({rows, 8, dim}, dtype);  // q stands in rows of q, k and v
      qkv.narrow(1, 0, 4).copy_from(data.q.narrow(0, begin, rows));
      const KvCacheView cache{data.k.view({num_blocks, block_size, 2, dim}),
                              data.v.view({num_blocks, block_size, 2, dim})};
      std::vector<int32_t> table(static_cast<size_t>(num_blocks));
      std::iota(table.begin(), table.end(), 0);
      const AttentionMetadata metadata{.query_start_loc = i32_tensor({0, static_cast<int32_t>(rows)}, {2}),
                                       .seq_lens = i32_tensor({static_cast<int32_t>(length)}, {1}),
                                       .block_tables = i32_tensor(table, {1, num_blocks}),
                                       .slot_mapping = {},
                                       .num_seqs = 1,
                                       .num_tokens = rows,
                                       .max_query_len = rows,
                                       .max_seq_len = length};
      Tensor wide = poisoned({rows, 4, dim + spare}, dtype);
      call(paged_attention, ctx, qkv.narrow(1, 0, 4), cache, metadata, 0.3, wide.narrow(2, 0, dim), Tensor());
      EXPECT_TRUE(close_to(wide.narrow(2, 0, dim), attention_reference(data, begin, length, 0.3).out));
      EXPECT_TRUE(bitwise_equal(wide.narrow(2, dim, spare), poisoned({rows, 4, spare}, dtype)));
    }
}

TEST(Task1_7_PagedAttention, NamesWhatDoesNotFit) {
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  const Tensor q = Tensor::zeros({3, 4, 8}, DType::f32);
  const KvCacheView cache{Tensor::zeros({2, 4, 2, 8}, DType::f32), Tensor::zeros({2, 4, 2, 8}, DType::f32)};
  const AttentionMetadata good{.query_start_loc = i32_tensor({0, 3}, {2}),
                               .seq_lens = i32_tensor({5}, {1}),
                               .block_tables = i32_tensor({1, 0}, {1, 2}),
                               .slot_mapping = {},
                               .num_seqs = 1,
                               .num_tokens = 3,
                               .max_query_len = 3,
                               .max_seq_len = 5};
  EXPECT_NO_THROW(paged_attention(ctx, q, cache, good, 1.0, q.clone()));
  auto fails = [&](auto&& edit) {
    AttentionMetadata metadata = good;
    edit(metadata);
    EXPECT_THROW(paged_attention(ctx, q, cache, metadata, 1.0, q.clone()), Error);
  };
  fails([](AttentionMetadata& m) { m.block_tables = i32_tensor({1, 2}, {1, 2}); });
  fails([](AttentionMetadata& m) { m.block_tables = i32_tensor({1, -1}, {1, 2}); });
  fails([](AttentionMetadata& m) { m.seq_lens = i32_tensor({2}, {1}); });  // fewer keys than queries
  fails([](AttentionMetadata& m) { m.seq_lens = i32_tensor({9}, {1}), m.max_seq_len = 9; });
  fails([](AttentionMetadata& m) { m.query_start_loc = i32_tensor({0, 4}, {2}); });
  EXPECT_THROW(paged_attention(ctx, Tensor::zeros({3, 3, 8}, DType::f32), cache, good, 1.0, q.clone()),
               Error);
  EXPECT_THROW(paged_attention(ctx, q.to(DType::bf16), cache, good, 1.0, q.to(DType::bf16)), Error);
}

RUNG_TEST(Task1_7_CausalAttention, EqualsDoublePrecisionWithFewerQueriesThanKeys, "causal_attention",
          causal_attention_variants()) {
  for (DType dtype : kDTypes)
    for (auto [keys, queries] : {std::pair{1, 1}, {37, 37}, {100, 1}, {129, 65}}) {
      Random random;
      SCOPED_TRACE(random.describe());
      const SequenceData data = random_sequence(random, keys, {6, 2, 20, 28}, dtype);
      Tensor out = poisoned({queries, 6, 28}, dtype);
      call(causal_attention, ctx, data.q.narrow(0, keys - queries, queries), data.k, data.v, 0.25, out);
      EXPECT_TRUE(close_to(out, attention_reference(data, keys - queries, keys, 0.25).out));
    }
}

TEST(Task1_7_CausalAttention, MoreQueriesThanKeysAreAnError) {
  OpContext ctx;
  const Tensor two = Tensor::zeros({2, 1, 4}, DType::f32), one = two.rows(1);
  EXPECT_THROW(causal_attention(ctx, two, one, one, 1.0, two.clone()), Error);
}

RUNG_TEST(Task1_7_StoreKv, WritesEachRowToItsSlotAndNothingElse, "store_kv", store_kv_variants()) {
  for (DType dtype : kDTypes)
    for (bool views : {false, true})
      for (auto [k_dim, v_dim] : {std::pair<int64_t, int64_t>{10, 6}, {16, 8}}) {
        Random random;
        SCOPED_TRACE(random.describe());
        const int64_t tokens = 11, kv_heads = 3, block_size = 4;
        Tensor rows = random.normal({tokens, 5 * kv_heads, k_dim}, dtype);
        Tensor k = rows.narrow(1, kv_heads, kv_heads),
               v = rows.narrow(1, 2 * kv_heads, kv_heads).narrow(2, 0, v_dim);
        Tensor both = poisoned({6, block_size, kv_heads, k_dim + v_dim}, dtype);
        KvCacheView cache{poisoned({6, block_size, kv_heads, k_dim}, dtype),
                          poisoned({6, block_size, kv_heads, v_dim}, dtype)};
        if (views) cache = {both.narrow(3, 0, k_dim), both.narrow(3, k_dim, v_dim)};
        Tensor slots =
            Tensor::from<int64_t>(std::vector<int64_t>{3, -1, 20, 0, 23, 9, -1, 4, 12, 13, 1}, {tokens});
        call(store_kv, ctx, k, v, slots, cache);
        for (int64_t slot = 0; slot < 6 * block_size; ++slot) {
          Tensor k_slot = cache.k.select(0, slot / block_size).select(0, slot % block_size);
          Tensor v_slot = cache.v.select(0, slot / block_size).select(0, slot % block_size);
          Tensor k_expected = poisoned({kv_heads, k_dim}, dtype),
                 v_expected = poisoned({kv_heads, v_dim}, dtype);
          for (int64_t token = 0; token < tokens; ++token)
            if (slots.at<int64_t>({token}) == slot) {
              k_expected = k.select(0, token);
              v_expected = v.select(0, token);
            }
          EXPECT_TRUE(bitwise_equal(k_slot, k_expected)) << "slot " << slot;
          EXPECT_TRUE(bitwise_equal(v_slot, v_expected)) << "slot " << slot;
        }
      }
  const Tensor k = Tensor::zeros({1, 1, 2}, DType::f32);
  const KvCacheView cache{Tensor::zeros({2, 4, 1, 2}, DType::f32), Tensor::zeros({2, 4, 1, 2}, DType::f32)};
  for (int64_t slot : {-2, 8})
    EXPECT_THROW(store_kv(ctx, k, k, Tensor::from<int64_t>(std::vector{slot}, {1}), cache), Error);
}

RUNG_TEST(Task1_7_StoreKv, NothingToStoreLeavesTheCacheAsItIs, "store_kv", store_kv_variants()) {
  struct Case {
    int64_t tokens, slots, kv_heads, k_dim, v_dim;
  };
  for (const Case& c : {Case{0, 0, 2, 8, 8}, {3, 0, 2, 8, 8}, {3, 3, 0, 8, 8}, {3, 3, 2, 0, 0}}) {
    SCOPED_TRACE(std::to_string(c.slots) + " slots, heads " + std::to_string(c.kv_heads) + " of " +
                 std::to_string(c.k_dim));
    auto rows = [&](int64_t dim) { return Tensor::zeros({c.tokens, c.kv_heads, dim}, DType::f32); };
    const KvCacheView cache{poisoned({2, 4, c.kv_heads, c.k_dim}, DType::f32),
                            poisoned({2, 4, c.kv_heads, c.v_dim}, DType::f32)};
    call(store_kv, ctx, rows(c.k_dim), rows(c.v_dim), Tensor::zeros({c.slots}, DType::i64), cache);
    for (const Tensor& side : {cache.k, cache.v})
      EXPECT_TRUE(bitwise_equal(side, poisoned(side.shape(), DType::f32)));
  }
  // Values alone: the keys have no elements.
  const Tensor v = Tensor::zeros({1, 1, 8}, DType::f32);
  const KvCacheView cache{poisoned({1, 2, 1, 0}, DType::f32), poisoned({1, 2, 1, 8}, DType::f32)};
  call(store_kv, ctx, Tensor::zeros({1, 1, 0}, DType::f32), v,
       Tensor::from<int64_t>(std::vector<int64_t>{1}, {1}), cache);
  EXPECT_TRUE(bitwise_equal(cache.v.select(0, 0).narrow(0, 1, 1).select(0, 0), v.select(0, 0)));
}

// RMSNorm and the half-split rotation of every head, in double precision.
std::vector<double> norm_rope_reference(const Tensor& x, const Tensor& weight, double eps,
                                        const Tensor& positions, const Tensor& table) {
  std::vector<double> values = to_double(x);
  const int64_t head_dim = x.dim(2), half = table.dim(1) / 2;
  for (int64_t row = 0; row < x.dim(0) * x.dim(1); ++row) {
    double* head = values.data() + row * head_dim;
    if (weight.defined()) {
      double sum = 0;
      for (int64_t i = 0; i < head_dim; ++i) sum += head[i] * head[i];
      const auto scale = to_double(weight);
      for (int64_t i = 0; i < head_dim; ++i)
        head[i] *= scale[i] / std::sqrt(sum / static_cast<double>(head_dim) + eps);
    }
    const float* angles = table.data<float>() + positions.at<int32_t>({row / x.dim(1)}) * table.dim(1);
    for (int64_t i = 0; i < half; ++i) {
      const double first = head[i], second = head[half + i];
      head[i] = first * angles[i] - second * angles[half + i];
      head[half + i] = second * angles[i] + first * angles[half + i];
    }
  }
  return values;
}

RUNG_TEST(Task1_7_QkNormRopeStore, EqualsItsPartsInDoublePrecision, "qk_norm_rope_store",
          qk_norm_rope_store_variants()) {
  for (DType dtype : kDTypes)
    for (bool norms : {false, true})
      for (auto [head_dim, rotary_dim] : {std::pair{20, 20}, {64, 64}, {128, 128}, {80, 40}, {33, 10}}) {
        Random random;
        SCOPED_TRACE(random.describe() + " head_dim " + std::to_string(head_dim));
        const int64_t tokens = 10, heads = 5, kv_heads = 2;
        Tensor qkv = random.normal({tokens, heads + 2 * kv_heads, head_dim}, dtype, 2.0);
        QkNormRopeStoreArgs args;
        args.q = qkv.narrow(1, 0, heads);
        args.k = qkv.narrow(1, heads, kv_heads);
        args.v = qkv.narrow(1, heads + kv_heads, kv_heads);
        if (norms) {
          args.q_norm_weight = random.normal({head_dim}, dtype);
          args.k_norm_weight = random.normal({head_dim}, dtype);
        }
        args.eps = 1e-5;
        args.positions = Tensor::empty({tokens}, DType::i32);
        for (int64_t i = 0; i < tokens; ++i)
          args.positions.at<int32_t>({i}) = static_cast<int32_t>(random.integer(0, 99));
        args.table = make_rope_table({.rotary_dim = rotary_dim}, 100);
        args.slot_mapping =
            Tensor::from<int64_t>(std::vector<int64_t>{5, 0, 11, -1, 3, 8, 1, -1, 2, 9}, {tokens});
        args.cache = {poisoned({3, 4, kv_heads, head_dim}, dtype),
                      poisoned({3, 4, kv_heads, head_dim}, dtype)};
        auto q_expected = norm_rope_reference(args.q, args.q_norm_weight, 1e-5, args.positions, args.table);
        auto k_expected = norm_rope_reference(args.k, args.k_norm_weight, 1e-5, args.positions, args.table);
        // Where a rung does not take a shape, call() lets the sequence serve.
        bool is_sequence = false;
        for (const auto& variant : qk_norm_rope_store_variants())
          if (variant.device == ctx.device.type && variant.name == ctx.forced_kernel("qk_norm_rope_store"))
            is_sequence = variant.name == "sequence" || !can_run(variant, ctx, args);
        if (is_sequence && dtype != DType::f32) {
          // It rounds after the norm and again after the rotation, so a bound for one rounding does not
          // hold; it must be what the two operators, each tested by itself, give one after the other.
          const Tensor q = args.q.clone(), k = args.k.clone();
          if (norms) {
            call(rms_norm, ctx, q, args.q_norm_weight, args.eps, q);
            call(rms_norm, ctx, k, args.k_norm_weight, args.eps, k);
          }
          call(rotary_embedding, ctx, args.positions, q, k, args.table);
          q_expected = to_double(q);
          k_expected = to_double(k);
        }
        const Tensor v = args.v.clone();
        call(qk_norm_rope_store, ctx, args);
        EXPECT_TRUE(close_to(args.q, q_expected));
        int64_t stored = 0;
        for (int64_t token = 0; token < tokens; ++token) {
          const int64_t slot = args.slot_mapping.at<int64_t>({token});
          if (slot < 0) continue;
          ++stored;
          const auto width = static_cast<size_t>(kv_heads * head_dim);
          EXPECT_TRUE(close_to(args.cache.k.select(0, slot / 4).select(0, slot % 4),
                               std::span(k_expected).subspan(static_cast<size_t>(token) * width, width)));
          EXPECT_TRUE(
              bitwise_equal(args.cache.v.select(0, slot / 4).select(0, slot % 4), v.select(0, token)));
        }
        // The other slots are as they were.
        const auto cached = to_double(args.cache.k);
        EXPECT_EQ(std::count_if(cached.begin(), cached.end(), [](double x) { return std::isnan(x); }),
                  (12 - stored) * kv_heads * head_dim);
      }
}

}  // namespace
}  // namespace ladder
