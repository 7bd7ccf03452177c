// Tasks 1.6 and 1.7: tables from the formulas of rope_frequencies.h, rotation of part of a head, slots that lie apart,
// and attention whose scores are large.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "step1_layers/attention/attention.h"
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/rotary/rope.h"
#include "step1_layers/rotary/rope_frequencies.h"
#include "tests/hidden/step1_layers/margins.h"
#include "tests/step1_layers/attention_scene.h"
#include "tests/step1_layers/norm_rotate_reference.h"

namespace ladder {
namespace {

using namespace ladder::testing;

TEST(Hidden1_6_StandardRopeTable, FarPositionsOfAnyBase) {
  repeated(20, [](Random& random) {
    const double base = std::exp(random.uniform(3, 16));
    const int64_t dim = 2 * random.integer(1, 100), begin = random.integer(0, 200'000);
    const auto wavelengths = rope_wavelengths(base, dim), inverse = standard_frequencies(base, dim);
    ASSERT_EQ(std::ssize(inverse), dim / 2);
    for (int64_t i = 0; i < dim / 2; ++i) {
      const double expected = std::pow(base, static_cast<double>(2 * i) / static_cast<double>(dim));
      EXPECT_NEAR(wavelengths[i] / expected, 1, 3e-6) << "pair " << i;
      EXPECT_EQ(inverse[i], 1.0f / wavelengths[i]) << "pair " << i;
    }
    // The angle is rounded to float: far out that is what one sees.
    const auto factor = static_cast<float>(random.uniform(0.5, 2));
    std::vector<float> table(static_cast<size_t>((begin + 3) * dim));
    fill_rope_table({inverse, factor}, table.data(), begin, begin + 3);
    for (int64_t position = begin; position < begin + 3; ++position)
      for (int64_t i = 0; i < dim / 2; ++i) {
        const float angle = static_cast<float>(position) * inverse[i];
        EXPECT_NEAR(table[position * dim + i], factor * std::cos(double{angle}), 1e-6)
            << position << " pair " << i;
        EXPECT_NEAR(table[position * dim + dim / 2 + i], factor * std::sin(double{angle}), 1e-6)
            << position << " pair " << i;
      }
  });
}

// The header's formulas in double precision, and the attention factor.
std::pair<std::vector<double>, double> scaled_frequencies(const RopeConfig& c, int64_t max_len) {
  const auto dim = static_cast<double>(c.rotary_dim),
             length = static_cast<double>(c.original_max_position_embeddings);
  double base = c.theta, attention_factor = 1;
  if (c.kind == RopeKind::dynamic_ntk)
    base *= std::pow(c.factor * std::max(static_cast<double>(max_len), length) / length - (c.factor - 1),
                     dim / (dim - 2));
  const auto pair_turning = [&](double times) {
    return dim * std::log(length / (2 * std::numbers::pi * times)) / (2 * std::log(c.theta));
  };
  double low = pair_turning(c.beta_fast), high = pair_turning(c.beta_slow);
  if (c.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  std::vector<double> result;
  for (int64_t i = 0; i < c.rotary_dim / 2; ++i) {
    double f = std::pow(base, -2.0 * static_cast<double>(i) / dim);
    if (c.kind == RopeKind::yarn) {
      const double kept = 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      f *= (1 - kept) / c.factor + kept;
    } else if (c.kind == RopeKind::llama3) {
      const double turns = length * f / (2 * std::numbers::pi);
      const double s =
          std::clamp((turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor), 0.0, 1.0);
      f *= (1 - s) / c.factor + s;
    }
    result.push_back(f);
  }
  const auto m = [&](double s) { return c.factor <= 1 ? 1 : 0.1 * s * std::log(c.factor) + 1; };
  if (c.kind == RopeKind::yarn)
    attention_factor = c.attention_factor             ? *c.attention_factor
                       : c.mscale && c.mscale_all_dim ? m(*c.mscale) / m(*c.mscale_all_dim)
                                                      : m(1);
  return {result, attention_factor};
}

TEST(Hidden1_6_ScaledRopeTable, FollowsItsFormulas) {
  repeated(150, [](Random& random) {
    RopeConfig config;
    config.kind = random.one_of<RopeKind>({RopeKind::dynamic_ntk, RopeKind::yarn, RopeKind::llama3});
    config.theta = random.one_of<double>({1e4, 5e5, 1e6});
    config.rotary_dim = 2 * random.integer(2, 90);
    config.factor = random.one_of<double>({1, random.uniform(1, 40)});
    config.original_max_position_embeddings = random.integer(100, 9000);
    config.beta_fast = random.uniform(8, 50);
    config.beta_slow = random.uniform(0.5, 4);
    config.truncate = random.integer(0, 1) == 0;
    if (random.integer(0, 1))
      config.mscale = random.uniform(0.5, 2), config.mscale_all_dim = random.uniform(0.5, 2);
    if (random.integer(0, 3) == 0) config.attention_factor = random.uniform(0.5, 2);
    config.low_freq_factor = random.uniform(0.5, 2);
    config.high_freq_factor = config.low_freq_factor + random.uniform(0.5, 6);
    const int64_t max_len = random.integer(1, 40000);
    const auto [expected, factor] = scaled_frequencies(config, max_len);
    const RopeFrequencies seen = rope_frequencies(config, max_len);
    EXPECT_NEAR(seen.attention_factor, factor, 1e-6);
    ASSERT_EQ(seen.inv_freq.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(seen.inv_freq[i] / expected[i], 1, 2e-4)
          << "kind " << static_cast<int>(config.kind) << " pair " << i << " of " << expected.size();
  });
}

// Both sides of the length that the model was trained with.
TEST(Hidden1_6_ScaledRopeTable, LongRopeChangesBeyondTheOriginalLength) {
  repeated(20, [](Random& random) {
    RopeConfig config;
    config.kind = RopeKind::longrope;
    config.theta = 1e4;
    config.rotary_dim = 2 * random.integer(1, 60);
    config.factor = random.uniform(1.5, 40);
    const int64_t original = config.original_max_position_embeddings = random.integer(100, 9000);
    for (int64_t i = 0; i < config.rotary_dim / 2; ++i) {
      config.short_factor.push_back(random.uniform(1, 2));
      config.long_factor.push_back(random.uniform(3, 60));
    }
    const double by_factor = std::sqrt(1 + std::log(config.factor) / std::log(static_cast<double>(original)));
    double short_scale = by_factor, long_scale = by_factor;
    if (random.integer(0, 1)) config.short_mscale = short_scale = random.uniform(0.5, 2);
    if (random.integer(0, 1)) config.long_mscale = long_scale = random.uniform(0.5, 2);
    for (const int64_t max_len :
         {random.integer(1, original), original, original + 1, random.integer(9001, 40000)}) {
      const bool is_long = max_len > original;
      const RopeFrequencies seen = rope_frequencies(config, max_len);
      EXPECT_NEAR(seen.attention_factor, is_long ? long_scale : short_scale, 1e-6)
          << max_len << " of " << original;
      ASSERT_EQ(std::ssize(seen.inv_freq), config.rotary_dim / 2);
      for (size_t i = 0; i < seen.inv_freq.size(); ++i) {
        const double f =
            std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim));
        EXPECT_NEAR(seen.inv_freq[i] / f * (is_long ? config.long_factor : config.short_factor)[i], 1, 2e-4)
            << max_len << " of " << original << ", pair " << i;
      }
    }
  });
}

// Queries and keys in rows with others between them, turned by a table of any angles.
struct Turned {
  Turned(Random& random, DType dtype) {
    const int64_t tokens = random.integer(1, 70), heads = random.integer(1, 9),
                  kv_heads = random.integer(1, 5), dim = random.integer(2, 150),
                  rotary_dim = 2 * random.integer(1, dim / 2);
    all = random.normal({tokens, heads + kv_heads + 2, dim}, dtype);
    before = all.clone();
    q = all.narrow(1, 1, heads), k = all.narrow(1, heads + 2, kv_heads);
    positions = Tensor::empty({tokens}, DType::i32);
    for (int64_t i = 0; i < tokens; ++i)
      positions.at<int32_t>({i}) = static_cast<int32_t>(random.integer(0, 49));
    table = Tensor::empty({50, rotary_dim}, DType::f32);
    for (int64_t row = 0; row < 50; ++row)
      for (int64_t i = 0; i < rotary_dim / 2; ++i) {
        const double angle = random.uniform(-3, 3);
        table.at<float>({row, i}) = static_cast<float>(std::cos(angle));
        table.at<float>({row, rotary_dim / 2 + i}) = static_cast<float>(std::sin(angle));
      }
  }
  void expect_others_untouched() const {
    for (const int64_t head : {int64_t{0}, q.dim(1) + 1})
      EXPECT_TRUE(bitwise_equal(all.narrow(1, head, 1), before.narrow(1, head, 1))) << "head " << head;
  }
  Tensor all, before, q, k, positions, table;
};

RUNG_TEST(Hidden1_6_RotaryEmbedding, PartsOfHeads, "rotary_embedding", rotary_embedding_variants()) {
  repeated(25, [&](Random& random) {
    const Turned rows(random, any_float(random));
    const auto q = rotated(rows.q, {}, 0, rows.positions, rows.table),
               k = rotated(rows.k, {}, 0, rows.positions, rows.table);
    call(rotary_embedding, ctx, rows.positions, rows.q, rows.k, rows.table);
    EXPECT_TRUE(close_to(rows.q, q)) << rows.q.str() << ", table " << rows.table.str();
    EXPECT_TRUE(close_to(rows.k, k)) << rows.k.str() << ", table " << rows.table.str();
    rows.expect_others_untouched();
  });
}

// Slots for `tokens` tokens in any order, some of them -1; the cache's heads lie apart.
struct Slots {
  Slots(Random& random, int64_t tokens, int64_t heads, int64_t k_dim, int64_t v_dim, DType dtype)
      : block_size(random.integer(1, 19)),
        k(random, {tokens / block_size + 2, block_size, heads, k_dim}, dtype),
        v(random, {tokens / block_size + 2, block_size, heads, v_dim}, dtype) {
    std::vector<int64_t> slots(static_cast<size_t>(k.inside.dim(0) * block_size));
    std::iota(slots.begin(), slots.end(), int64_t{0});
    std::ranges::shuffle(slots, random.engine());
    slots.resize(static_cast<size_t>(tokens));
    for (int64_t& slot : slots)
      if (random.integer(0, 5) == 0) slot = -1;
    mapping = Tensor::from<int64_t>(slots, {tokens});
  }
  // Token by token what stands in its slot is near `rows` (or equal to it); nothing is written elsewhere.
  void expect(const Margins& cache, const std::vector<double>& rows, bool exact) const {
    const int64_t width = cache.inside.dim(2) * cache.inside.dim(3);
    int64_t stored = 0;
    for (int64_t token = 0; token < mapping.dim(0); ++token) {
      const int64_t slot = mapping.at<int64_t>({token});
      if (slot < 0) continue;
      ++stored;
      const Tensor held = cache.inside.select(0, slot / block_size).select(0, slot % block_size);
      const auto row =
          std::span(rows).subspan(static_cast<size_t>(token * width), static_cast<size_t>(width));
      if (exact)
        ASSERT_EQ(to_double(held), std::vector<double>(row.begin(), row.end())) << "slot " << slot;
      else
        ASSERT_TRUE(close_to(held, row)) << "slot " << slot;
    }
    int64_t written = 0;
    for (const double value : to_double(cache.inside)) written += !std::isnan(value);
    EXPECT_EQ(written, stored * width) << "values in slots of nobody";
    cache.expect_untouched();
  }
  int64_t block_size;
  Margins k, v;
  Tensor mapping;
};

RUNG_TEST(Hidden1_6_QkNormRopeStore, PartsOfHeadsWithAndWithoutNorm, "qk_norm_rope_store",
          rungs_where(qk_norm_rope_store_variants(),
                      [](const auto& rung) { return rung.name != "sequence"; })) {
  repeated(25, [&](Random& random) {
    const DType dtype = any_float(random);
    const Turned rows(random, dtype);
    const int64_t tokens = rows.q.dim(0), dim = rows.q.dim(2);
    const Tensor v = random.normal({tokens, rows.k.dim(1), dim}, dtype),
                 q_weight = random.integer(0, 2) ? random.normal({dim}, dtype) : Tensor(),
                 k_weight = random.integer(0, 2) ? random.normal({dim}, dtype) : Tensor();
    const Slots slots(random, tokens, rows.k.dim(1), dim, dim, dtype);
    const double eps = random.uniform(0, 0.5);
    const auto q = rotated(rows.q, q_weight, eps, rows.positions, rows.table),
               k = rotated(rows.k, k_weight, eps, rows.positions, rows.table);
    const QkNormRopeStoreArgs args{
        rows.q, rows.k,         v,          q_weight,      k_weight,
        eps,    rows.positions, rows.table, slots.mapping, {slots.k.inside, slots.v.inside}};
    if (!can_run_rung(rung, ctx, args)) return;
    run_rung(rung, ctx, args);
    EXPECT_TRUE(close_to(rows.q, q)) << rows.q.str() << ", table " << rows.table.str();
    slots.expect(slots.k, k, false);
    slots.expect(slots.v, to_double(v), true);
    rows.expect_others_untouched();
  });
}

RUNG_TEST(Hidden1_7_StoreKv, RowsAndSlotsThatLieApart, "store_kv", store_kv_variants()) {
  repeated(25, [&](Random& random) {
    const DType dtype = any_float(random);
    const int64_t tokens = random.integer(1, 90), heads = random.integer(1, 7), k_dim = random.integer(1, 90),
                  v_dim = random.integer(1, 90);
    const Slots slots(random, tokens, heads, k_dim, v_dim, dtype);
    const Margins k(random, {tokens, heads, k_dim}, dtype), v(random, {tokens, heads, v_dim}, dtype);
    k.inside.copy_from(random.normal({tokens, heads, k_dim}, dtype));
    v.inside.copy_from(random.normal({tokens, heads, v_dim}, dtype));
    call(store_kv, ctx, k.inside, v.inside, slots.mapping, KvCacheView{slots.k.inside, slots.v.inside});
    slots.expect(slots.k, to_double(k.inside), true);
    slots.expect(slots.v, to_double(v.inside), true);
  });
}

DType mostly_f32(Random& random) {
  return random.integer(0, 1) ? DType::f32 : any_float(random);
}

// Head sizes and groups that no model has; scores of up to a hundred, whose powers no type holds.
HeadShape odd_heads(Random& random) {
  const int64_t kv_heads = random.integer(1, 3), dim = random.integer(5, 100);
  return {kv_heads * random.integer(1, 7), kv_heads, dim,
          random.integer(0, 1) ? dim : random.integer(5, 100)};
}

double any_scale(Random& random, const HeadShape& shape) {
  return random.one_of<double>({0.1, 1, 10}) / std::sqrt(static_cast<double>(shape.k_dim));
}

// Heads of a row are one row: a head's values may be the small rest of large ones.
void expect_rows(const Tensor& out, const std::vector<double>& expected) {
  EXPECT_TRUE(close_to(out.clone().view({out.dim(0), out.dim(1) * out.dim(2)}), expected)) << out.str();
}

RUNG_TEST(Hidden1_7_PagedAttention, LargeScoresInBlocksOfAnySize, "paged_attention",
          mixed_attention_variants()) {
  repeated(12, [&](Random& random) {
    const DType dtype = mostly_f32(random);
    const HeadShape shape = odd_heads(random);
    const double scale = any_scale(random, shape);
    std::vector<SequenceData> data;
    for (int64_t i = random.integer(1, 5); i > 0; --i)
      data.push_back(random_sequence(random, random.integer(1, 190), shape, dtype));
    std::vector<Part> parts;
    for (const SequenceData& of : data) {
      const int64_t begin = random.integer(0, of.length() - 1);
      parts.push_back(
          {&of, begin, random.integer(0, 1) ? begin + 1 : random.integer(begin + 1, of.length())});
    }
    const Attended got = attend(ctx, random, parts, random.integer(1, 37), scale);
    int64_t row = 0;
    for (const Part& part : parts) {
      const int64_t length = part.end - part.begin;
      const Reference expected = attention_reference(*part.data, part.begin, part.end, scale);
      expect_rows(got.out.narrow(0, row, length), expected.out);
      const auto lse = to_double(got.lse.narrow(0, row, length));
      for (size_t i = 0; i < lse.size(); ++i)
        EXPECT_NEAR(lse[i], expected.lse[i], 1e-4 + 1e-5 * std::abs(lse[i]));
      row += length;
    }
  });
}

RUNG_TEST(Hidden1_7_CausalAttention, TheLastRowsOfASequence, "causal_attention",
          causal_attention_variants()) {
  repeated(12, [&](Random& random) {
    const DType dtype = mostly_f32(random);
    const HeadShape shape = odd_heads(random);
    const double scale = any_scale(random, shape);
    const SequenceData data = random_sequence(random, random.integer(1, 190), shape, dtype);
    const int64_t length = data.length(), begin = random.integer(0, length - 1);
    const Margins out(random, {length - begin, shape.heads, shape.v_dim}, dtype);
    const CausalAttentionArgs args{data.q.narrow(0, begin, length - begin), data.k, data.v, scale,
                                   out.inside};
    if (!can_run_rung(rung, ctx, args)) return;
    run_rung(rung, ctx, args);
    expect_rows(out.inside, attention_reference(data, begin, length, scale).out);
    out.expect_untouched();
  });
}

}  // namespace
}  // namespace ladder
