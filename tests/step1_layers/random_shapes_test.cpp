// Every rung of the operators on rows over shapes, strides and alignments drawn at random: windows into
// wider tensors of NaN, rows of whole packs and others, no rows at all.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "tests/step1_layers/norm_rotate_reference.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace ladder::testing;

constexpr int kCases = 24;

DType any_dtype(Random& random) {
  return random.one_of<DType>({DType::f32, DType::bf16, DType::f16});
}

// Mostly a multiple of sixteen bytes; small more often than large.
int64_t any_width(Random& random, int64_t most) {
  const auto width = static_cast<int64_t>(std::exp(random.uniform(0, std::log(static_cast<double>(most)))));
  return random.integer(0, 3) == 0 ? width : (width + 7) / 8 * 8;
}

// The tensors of one case, windows into larger tensors of NaN. Mostly all of their rows start at multiples of
// sixteen bytes; otherwise those of every second tensor.
struct Case {
  Random& random;
  bool packed = random.integer(0, 3) > 0;

  Tensor window(const Shape& shape, DType dtype) const;
  Tensor filled(const Shape& shape, DType dtype) const {
    const Tensor result = window(shape, dtype);
    result.copy_from(random.normal(shape, dtype));
    return result;
  }
};

Tensor Case::window(const Shape& shape, DType dtype) const {
  const int64_t step = packed || random.integer(0, 1) ? 8 : 1;
  Shape whole = shape, begin = shape;
  for (int i = 0; i < shape.ndim(); ++i) {
    const int64_t unit = i + 1 == shape.ndim() ? step : 1;
    begin[i] = random.integer(0, 2) * unit;
    whole[i] = begin[i] + shape[i] + random.integer(0, 2) * unit;
  }
  Tensor result = poisoned(whole, dtype);
  for (int i = 0; i < shape.ndim(); ++i) result = result.narrow(i, begin[i], shape[i]);
  return result;
}

double rounded(double value, DType dtype) {
  Tensor t = Tensor::empty({1}, DType::f32);
  t.at<float>({0}) = static_cast<float>(value);
  return to_double(t.to(dtype))[0];
}

// Runs a call on every rung that takes it; prepare() before each and check() after it.
template <class Args>
void on_rungs(std::span<const Variant<Args>> table, const Args& args, const std::function<void()>& prepare,
              const std::function<void()>& check) {
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  std::string sizes;
  Args copy = args;
  for (const Tensor* tensor : tensors_of(copy))
    if (tensor->defined()) sizes.append(" ").append(tensor->str());
  for (const auto& rung : table) {
    if (!can_run_rung(rung, ctx, args)) continue;
    SCOPED_TRACE(std::string(rung.name) + (rung.device == DeviceType::cuda ? " on the GPU:" : ":") + sizes);
    prepare();
    run_rung(rung, ctx, args);
    check();
    if (::testing::Test::HasFailure()) return;
  }
}

// Calls one_case(random, its tensors) many times, until one fails.
template <class Fn>
void many_cases(Fn&& one_case) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < kCases && !::testing::Test::HasFailure(); ++i) one_case(random, Case{random});
}

double gelu_of(double x, GeluKind kind) {
  if (kind == GeluKind::erf) return x / 2 * std::erfc(-x / std::sqrt(2.0));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(Task1_2_Activation, RandomShapes) {
  many_cases([](Random& random, const Case& of) {
    const DType dtype = any_dtype(random);
    const int64_t rows = random.integer(0, 40), width = 7 + any_width(random, 3000);
    const Tensor x = of.filled({rows, 2 * width}, dtype), out = of.window({rows, width}, dtype);
    const GeluKind kind = random.integer(0, 1) ? GeluKind::erf : GeluKind::tanh;
    const std::vector<double> values = to_double(x);
    const auto gated = [&](auto&& activation) {
      std::vector<double> result;
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < width; ++i) {
          const auto gate = static_cast<size_t>(row * 2 * width + i);
          result.push_back(activation(values[gate]) * values[gate + static_cast<size_t>(width)]);
        }
      return result;
    };
    const auto clear = [&] { out.copy_from(poisoned(out.shape(), dtype)); };
    const auto expect = [&](const std::vector<double>& expected) {
      return [&out, expected] { EXPECT_TRUE(close_to(out, expected)); };
    };
    on_rungs<SiluAndMulArgs>(silu_and_mul_variants(), {x, out}, clear,
                             expect(gated([](double v) { return v / (1 + std::exp(-v)); })));
    const auto gelu = [kind](double v) { return gelu_of(v, kind); };
    on_rungs<GeluAndMulArgs>(gelu_and_mul_variants(), {x, out, kind}, clear, expect(gated(gelu)));
    const Tensor plain = x.narrow(1, 0, width).clone();
    std::vector<double> expected = to_double(plain);
    for (double& value : expected) value = gelu(value);
    on_rungs<GeluArgs>(gelu_variants(), {plain, out, kind}, clear, expect(expected));
  });
}

TEST(Task1_3_RmsNorm, RandomShapes) {
  many_cases([](Random& random, const Case& of) {
    const DType dtype = any_dtype(random);
    const int64_t rows = random.integer(0, 30), width = any_width(random, 9000);
    const bool heads = random.integer(0, 2) == 0, in_place = random.integer(0, 1) == 0;
    const Shape shape = heads ? Shape{rows, random.integer(1, 9), width} : Shape{rows, width};
    const Tensor x = of.filled(shape, dtype), weight = of.filled({width}, dtype);
    const Tensor out = in_place ? x : of.window(shape, dtype), before = x.clone();
    const double eps = random.one_of<double>({1e-6, 0.1});  // the second is seen in every type
    const std::vector<double> expected = normed(x, weight, eps);
    const auto prepare = [&] {
      out.copy_from(poisoned(shape, dtype));
      x.copy_from(before);
    };
    on_rungs<RmsNormArgs>(rms_norm_variants(), {x, weight, eps, out}, prepare,
                          [&] { EXPECT_TRUE(close_to(out, expected)); });
    if (heads) return;

    const Tensor residual = of.filled(shape, dtype), residual_before = residual.clone();
    const auto more = to_double(residual);
    const Tensor sum = Tensor::empty(shape, DType::f32);
    const auto values = to_double(before);
    for (size_t i = 0; i < values.size(); ++i) sum.data<float>()[i] = static_cast<float>(values[i] + more[i]);
    const Tensor rounded_sum = sum.to(dtype);
    const std::vector<double> normed_sum = normed(rounded_sum, weight, eps);
    on_rungs<FusedAddRmsNormArgs>(
        fused_add_rms_norm_variants(), {x, residual, weight, eps, out},
        [&] {
          prepare();
          residual.copy_from(residual_before);
        },
        [&] {
          EXPECT_TRUE(bitwise_equal(residual, rounded_sum));
          EXPECT_TRUE(close_to(out, normed_sum));
        });
  });
}

TEST(Task1_5_Embedding, RandomShapes) {
  many_cases([](Random& random, const Case& of) {
    const DType dtype = any_dtype(random);
    const int64_t tokens = random.integer(0, 70), width = any_width(random, 5000),
                  rows = random.integer(1, 30), begin = random.integer(0, 20);
    const Tensor weight = of.filled({rows, width}, dtype), out = of.window({tokens, width}, dtype);
    const Tensor ids = Tensor::empty({tokens}, DType::i32), expected = Tensor::zeros({tokens, width}, dtype);
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t id = random.integer(0, 60);
      ids.at<int32_t>({i}) = static_cast<int32_t>(id);
      if (id >= begin && id < begin + rows) expected.select(0, i).copy_from(weight.select(0, id - begin));
    }
    on_rungs<EmbeddingArgs>(
        embedding_variants(), {ids, weight, begin, out}, [&] { out.copy_from(poisoned(out.shape(), dtype)); },
        [&] { EXPECT_TRUE(bitwise_equal(out, expected)); });
  });
}

TEST(Task1_4_Matmul, RandomShapes) {
  many_cases([](Random& random, const Case& of) {
    const DType dtype = any_dtype(random), out_dtype = random.integer(0, 2) ? dtype : DType::f32;
    const int64_t max_rows = random.one_of<int64_t>({1, 4, 16, 32, 150});
    const int64_t m = random.integer(1, max_rows), n = any_width(random, 1500),
                  k = any_width(random, 3000000 / (m * n + 400));
    const bool exact = n < 8 || random.integer(0, 1) == 0;
    const auto fill = [&](const Shape& shape) {
      const Tensor result = of.window(shape, dtype);
      result.copy_from(exact ? random.exact(shape, dtype) : random.normal(shape, dtype));
      return result;
    };
    const Tensor x = fill({m, k}), weight = fill({n, k}), bias = random.integer(0, 1) ? fill({n}) : Tensor(),
                 out = of.window({m, n}, out_dtype);
    const auto left = to_double(x), right = to_double(weight);
    const auto added = bias.defined() ? to_double(bias) : std::vector<double>(static_cast<size_t>(n), 0.0);
    std::vector<double> expected;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        expected.push_back(std::inner_product(left.begin() + i * k, left.begin() + (i + 1) * k,
                                              right.begin() + j * k, added[static_cast<size_t>(j)]));
    if (exact)
      for (double& value : expected) value = rounded(value, out_dtype);
    on_rungs<MatmulArgs>(
        matmul_variants(), {x, weight, bias, out}, [&] { out.copy_from(poisoned(out.shape(), out_dtype)); },
        [&] {
          if (exact)
            EXPECT_EQ(to_double(out), expected);
          else
            EXPECT_TRUE(close_to(out, expected, k));
        });
  });
}

// Every slot of a cache holds the row that was sent there, or the NaN of before.
void expect_slots(const Tensor& cache, const std::vector<double>& rows, const Tensor& slots, bool exact) {
  const int64_t width = cache.dim(2) * cache.dim(3), block_size = cache.dim(1);
  std::vector<int64_t> token_of(static_cast<size_t>(cache.dim(0) * block_size), -1);
  for (int64_t token = 0; token < slots.dim(0); ++token)
    if (slots.at<int64_t>({token}) >= 0) token_of[static_cast<size_t>(slots.at<int64_t>({token}))] = token;
  for (size_t slot = 0; slot < token_of.size(); ++slot) {
    const auto at = static_cast<int64_t>(slot);
    const Tensor held = cache.select(0, at / block_size).select(0, at % block_size);
    if (token_of[slot] < 0) {
      ASSERT_TRUE(bitwise_equal(held, poisoned(held.shape(), held.dtype()))) << "slot " << slot;
      continue;
    }
    const auto row =
        std::span(rows).subspan(static_cast<size_t>(token_of[slot] * width), static_cast<size_t>(width));
    if (exact)
      ASSERT_EQ(to_double(held), std::vector<double>(row.begin(), row.end())) << "slot " << slot;
    else
      ASSERT_TRUE(close_to(held, row)) << "slot " << slot;
  }
}

TEST(Task1_7_QkNormRopeStore, RandomShapes) {
  many_cases([](Random& random, const Case& of) {
    const DType dtype = any_dtype(random);
    const int64_t dim = random.one_of<int64_t>({64, 128, 256, 2 * random.integer(2, 90)});
    const int64_t rotary_dim = random.integer(0, 3) ? dim : 2 * random.integer(1, dim / 2);
    const int64_t tokens = random.integer(0, 1) ? random.integer(0, 8) : random.integer(0, 60),
                  stored = tokens - std::min<int64_t>(tokens, random.integer(0, 2)),
                  kv_heads = random.integer(1, 8), heads = kv_heads * random.integer(1, 5),
                  block_size = random.integer(1, 40), blocks = tokens / block_size + 2;
    // Together as a product makes them, or each by itself.
    QkNormRopeStoreArgs args;
    if (random.integer(0, 1)) {
      const Tensor qkv = of.filled({tokens, heads + 2 * kv_heads, dim}, dtype);
      args.q = qkv.narrow(1, 0, heads);
      args.k = qkv.narrow(1, heads, kv_heads);
      args.v = qkv.narrow(1, heads + kv_heads, kv_heads);
    } else {
      args.q = of.filled({tokens, heads, dim}, dtype);
      args.k = of.filled({tokens, kv_heads, dim}, dtype);
      args.v = of.filled({tokens, kv_heads, dim}, dtype);
    }
    if (random.integer(0, 1)) args.q_norm_weight = of.filled({dim}, dtype);
    if (random.integer(0, 1)) args.k_norm_weight = of.filled({dim}, dtype);
    args.eps = random.one_of<double>({1e-6, 0.1});
    args.positions = Tensor::empty({tokens}, DType::i32);
    for (int64_t i = 0; i < tokens; ++i)
      args.positions.at<int32_t>({i}) = static_cast<int32_t>(random.integer(0, 199));
    args.table = of.window({200, rotary_dim}, DType::f32);
    args.table.copy_from(make_rope_table({.rotary_dim = rotary_dim}, 200));
    std::vector<int64_t> slots(static_cast<size_t>(blocks * block_size));
    std::iota(slots.begin(), slots.end(), int64_t{0});
    std::shuffle(slots.begin(), slots.end(), random.engine());
    slots.resize(static_cast<size_t>(stored));
    for (int64_t& slot : slots)
      if (random.integer(0, 7) == 0) slot = -1;
    args.slot_mapping = Tensor::from<int64_t>(slots, {stored});
    args.cache = {of.window({blocks, block_size, kv_heads, dim}, dtype),
                  of.window({blocks, block_size, kv_heads, dim}, dtype)};
    const Tensor q = args.q.clone(), k = args.k.clone(), nothing = poisoned(args.cache.k.shape(), dtype);
    const auto v = to_double(args.v);
    const auto prepare = [&] {
      args.q.copy_from(q);
      args.k.copy_from(k);
      args.cache.k.copy_from(nothing);
      args.cache.v.copy_from(nothing);
    };

    on_rungs<StoreKvArgs>(store_kv_variants(), {args.k, args.v, args.slot_mapping, args.cache}, prepare, [&] {
      expect_slots(args.cache.k, to_double(k), args.slot_mapping, true);
      expect_slots(args.cache.v, v, args.slot_mapping, true);
    });
    const auto q_turned = rotated(q, {}, 0, args.positions, args.table),
               k_turned = rotated(k, {}, 0, args.positions, args.table);
    on_rungs<RotaryEmbeddingArgs>(rotary_embedding_variants(), {args.positions, args.q, args.k, args.table},
                                  prepare, [&] {
                                    EXPECT_TRUE(close_to(args.q, q_turned));
                                    EXPECT_TRUE(close_to(args.k, k_turned));
                                  });
    const auto q_expected = rotated(q, args.q_norm_weight, args.eps, args.positions, args.table),
               k_expected = rotated(k, args.k_norm_weight, args.eps, args.positions, args.table);
    for (const auto& rung : qk_norm_rope_store_variants()) {
      if (rung.name == "sequence") continue;  // rounds between its parts, which have had their turn
      on_rungs<QkNormRopeStoreArgs>({&rung, 1}, args, prepare, [&] {
        EXPECT_TRUE(close_to(args.q, q_expected));
        expect_slots(args.cache.k, k_expected, args.slot_mapping, false);
        expect_slots(args.cache.v, v, args.slot_mapping, true);
      });
    }
  });
}

}  // namespace
}  // namespace ladder
