// Rows of whole sixteen-byte packs and more tokens than a few blocks hold: what the CUDA rungs that move
// packs are for. The other tests' shapes are odd, and leave those rungs out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/embedding/embedding.h"
#include "step1_layers/rotary/rope.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// Different slots in any order, and -1 for one token in eight.
Tensor some_slots(Random& random, int64_t tokens, int64_t num_slots) {
  std::vector<int64_t> slots(static_cast<size_t>(num_slots));
  std::iota(slots.begin(), slots.end(), int64_t{0});
  std::shuffle(slots.begin(), slots.end(), random.engine());
  slots.resize(static_cast<size_t>(tokens));
  for (int64_t& slot : slots)
    if (random.integer(0, 7) == 0) slot = -1;
  return Tensor::from<int64_t>(slots, {tokens});
}

// Every slot of a cache holds the row of the token that was sent there, or the NaN it held before.
void expect_stored(const Tensor& cache, const Tensor& rows, const Tensor& slots) {
  std::vector<int64_t> token_of(static_cast<size_t>(cache.dim(0) * cache.dim(1)), -1);
  for (int64_t token = 0; token < slots.dim(0); ++token)
    if (slots.at<int64_t>({token}) >= 0) token_of[static_cast<size_t>(slots.at<int64_t>({token}))] = token;
  const Tensor untouched = poisoned({cache.dim(2), cache.dim(3)}, cache.dtype());
  for (int64_t slot = 0; slot < static_cast<int64_t>(token_of.size()); ++slot) {
    const int64_t token = token_of[static_cast<size_t>(slot)];
    ASSERT_TRUE(bitwise_equal(cache.select(0, slot / cache.dim(1)).select(0, slot % cache.dim(1)),
                              token < 0 ? untouched : rows.select(0, token)))
        << "slot " << slot << ", token " << token;
  }
}

RUNG_TEST(Task1_7_StoreKv, WholePacksReachTheirSlots, "store_kv", store_kv_variants()) {
  struct Case {
    int64_t tokens, kv_heads, k_dim, v_dim;
  };
  for (DType dtype : kDTypes)
    for (const Case& c : {Case{1, 8, 128, 128}, {67, 3, 16, 8}, {67, 3, 8, 24}, {300, 8, 128, 128}})
      for (bool views : {false, true}) {
        Random random;
        SCOPED_TRACE(random.describe());
        const int64_t block_size = 5, blocks = c.tokens / block_size + 3, padding = 2;
        const Tensor rows =
            random.normal({c.tokens + padding, 3 * c.kv_heads, std::max(c.k_dim, c.v_dim)}, dtype);
        Tensor k = rows.narrow(1, c.kv_heads, c.kv_heads).narrow(2, 0, c.k_dim);
        Tensor v = rows.narrow(1, 2 * c.kv_heads, c.kv_heads).narrow(2, 0, c.v_dim);
        KvCacheView cache;
        if (views) {  // heads of K and V beside each other: no two heads of K are adjacent
          const Tensor both = poisoned({blocks, block_size, c.kv_heads, c.k_dim + c.v_dim}, dtype);
          cache = {both.narrow(3, 0, c.k_dim), both.narrow(3, c.k_dim, c.v_dim)};
        } else {
          k = k.clone(), v = v.clone();
          cache = {poisoned({blocks, block_size, c.kv_heads, c.k_dim}, dtype),
                   poisoned({blocks, block_size, c.kv_heads, c.v_dim}, dtype)};
        }
        const Tensor slots = some_slots(random, c.tokens, blocks * block_size);
        call(store_kv, ctx, k, v, slots, cache);
        expect_stored(cache.k, k, slots);
        expect_stored(cache.v, v, slots);
      }
}

// Of few tokens and of many, which may be split in another way; some rows are padding.
RUNG_TEST(Task1_7_QkNormRopeStore, FewAndManyTokensEqualDoublePrecision, "qk_norm_rope_store",
          rungs_where(qk_norm_rope_store_variants(), [](const auto& variant) {
            return variant.name != "sequence";
          })) {  // its parts have tests
  struct Case {
    DType dtype;
    int64_t tokens, heads, kv_heads, head_dim;
    bool norms;
  };
  for (const Case& c : {Case{DType::bf16, 3, 32, 8, 128, true},
                        {DType::bf16, 700, 32, 8, 128, true},
                        {DType::bf16, 701, 28, 4, 128, false},
                        {DType::f16, 1400, 16, 8, 64, true},
                        {DType::bf16, 300, 32, 8, 256, true},
                        {DType::f32, 700, 32, 8, 128, true},
                        {DType::bf16, 900, 24, 2, 128, true}}) {
    Random random;
    SCOPED_TRACE(random.describe() + " tokens " + std::to_string(c.tokens));
    const int64_t block_size = 16, blocks = c.tokens / block_size + 2, stored = c.tokens - 1;
    const Tensor qkv = random.normal({c.tokens, c.heads + 2 * c.kv_heads, c.head_dim}, c.dtype, 2.0);
    QkNormRopeStoreArgs args;
    args.q = qkv.narrow(1, 0, c.heads);
    args.k = qkv.narrow(1, c.heads, c.kv_heads);
    args.v = qkv.narrow(1, c.heads + c.kv_heads, c.kv_heads);
    if (c.norms) {
      args.q_norm_weight = random.normal({c.head_dim}, c.dtype);
      args.k_norm_weight = random.normal({c.head_dim}, c.dtype);
    }
    args.eps = 1e-5;
    args.positions = Tensor::empty({c.tokens}, DType::i32);
    for (int64_t i = 0; i < c.tokens; ++i)
      args.positions.at<int32_t>({i}) = static_cast<int32_t>(random.integer(0, 499));
    args.table = make_rope_table({.rotary_dim = c.head_dim}, 500);
    args.slot_mapping = some_slots(random, stored, blocks * block_size);
    args.cache = {poisoned({blocks, block_size, c.kv_heads, c.head_dim}, c.dtype),
                  poisoned({blocks, block_size, c.kv_heads, c.head_dim}, c.dtype)};
    const Tensor before = qkv.clone();
    call(qk_norm_rope_store, ctx, args);

    // A head after its norm and rotation, in double precision.
    const auto expected = [&](int64_t token, int64_t head, const Tensor& weight) {
      std::vector<double> x = to_double(before.select(0, token).select(0, head).clone());
      const size_t half = x.size() / 2;
      double scale = 1;
      if (weight.defined()) {
        const double sum = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
        scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + args.eps);
        const auto by = to_double(weight);
        for (size_t i = 0; i < x.size(); ++i) x[i] *= by[i] * scale;
      }
      const float* angles =
          args.table.data<float>() + args.positions.at<int32_t>({token}) * static_cast<int64_t>(x.size());
      for (size_t i = 0; i < half; ++i) {
        const double first = x[i], second = x[half + i];
        x[i] = first * angles[i] - second * angles[half + i];
        x[half + i] = second * angles[i] + first * angles[half + i];
      }
      return x;
    };
    int64_t written = 0;
    for (int64_t token = 0; token < c.tokens; ++token) {
      for (int64_t head = 0; head < c.heads; ++head)
        ASSERT_TRUE(close_to(args.q.select(0, token).select(0, head).clone(),
                             expected(token, head, args.q_norm_weight)))
            << "token " << token << ", head " << head;
      const int64_t slot = token < stored ? args.slot_mapping.at<int64_t>({token}) : -1;
      if (slot < 0) continue;
      ++written;
      for (int64_t head = 0; head < c.kv_heads; ++head)
        ASSERT_TRUE(
            close_to(args.cache.k.select(0, slot / block_size).select(0, slot % block_size).select(0, head),
                     expected(token, c.heads + head, args.k_norm_weight)))
            << "token " << token << ", key head " << head;
    }
    expect_stored(args.cache.v, before.narrow(1, c.heads + c.kv_heads, c.kv_heads), args.slot_mapping);
    const auto cached = to_double(args.cache.k);
    EXPECT_EQ(std::count_if(cached.begin(), cached.end(), [](double x) { return std::isnan(x); }),
              (blocks * block_size - written) * c.kv_heads * c.head_dim);
  }
}

TEST(Task1_5_Embedding, WholePacksAreCopiedOrZeroed) {
  Random random;
  SCOPED_TRACE(random.describe());
  const OpContext ctx;
  for (DType dtype : kDTypes)
    for (int64_t width : {8, 64, 1024, 1608, 5120})
      for (int64_t tokens : {1, 7, 400}) {
        const int64_t rows = 13, begin = 20, gap = 8;
        const Tensor weight = random.normal({rows, width}, dtype);
        const Tensor ids = Tensor::empty({tokens}, DType::i32);
        for (int64_t i = 0; i < tokens; ++i)
          ids.at<int32_t>({i}) = static_cast<int32_t>(random.integer(0, begin + rows + 10));
        const Tensor wide = poisoned({tokens, width + gap}, dtype);
        const EmbeddingArgs args{ids, weight, begin, wide.narrow(1, 0, width)};
        for (const auto& variant : embedding_variants()) {
          if (!can_run_rung(variant, ctx, args)) continue;
          wide.fill_bytes(0xff);
          run_rung(variant, ctx, args);
          for (int64_t i = 0; i < tokens; ++i) {
            const int64_t row = ids.at<int32_t>({i}) - begin;
            ASSERT_TRUE(bitwise_equal(args.out.narrow(0, i, 1), row >= 0 && row < rows
                                                                    ? weight.narrow(0, row, 1)
                                                                    : Tensor::zeros({1, width}, dtype)))
                << variant.name << " token " << i;
          }
        }
      }
}

}  // namespace
}  // namespace ladder
