// The operators on rows over shapes, strides and alignments drawn at random: windows into
// wider tensors of NaN, rows of whole packs and others, no rows at all.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "tests/step1_layers/norm_rotate_reference.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

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

// Runs a call on the rung, if it takes it, and check() after it.
template <class Args>
void on(const OpContext& ctx, const Variant<Args>& rung, const std::type_identity_t<Args>& args,
        const std::function<void()>& check) {
  if (!can_run_rung(rung, ctx, args)) return;
  std::string sizes;
  Args copy = args;
  for (const Tensor* tensor : tensors_of(copy))
    if (tensor->defined()) sizes.append(" ").append(tensor->str());
  SCOPED_TRACE("sizes" + sizes);
  run_rung(rung, ctx, args);
  check();
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

// What the gated activations and gelu share: x holds gates and values side by side.
struct Activations {
  Activations(Random& random, const Case& of) : dtype(any_dtype(random)) {
    const int64_t rows = random.integer(0, 40), width = 7 + any_width(random, 3000);
    x = of.filled({rows, 2 * width}, dtype);
    out = of.window({rows, width}, dtype);
    gelu = random.integer(0, 1) ? GeluKind::erf : GeluKind::tanh;
  }

  // What is expected of `activation`, times the values if `gated`.
  std::vector<double> of_gates(const std::function<double(double)>& activation, bool gated = true) const {
    const std::vector<double> all = to_double(x);
    const auto width = static_cast<size_t>(out.dim(1));
    std::vector<double> result;
    for (size_t row = 0; row < all.size(); row += 2 * width)
      for (size_t i = row; i < row + width; ++i)
        result.push_back(activation(all[i]) * (gated ? all[i + width] : 1));
    return result;
  }

  DType dtype;
  Tensor x, out;
  GeluKind gelu{};
};

RUNG_TEST(Task1_2_SiluAndMul, RandomShapes, "silu_and_mul", silu_and_mul_variants()) {
  many_cases([&](Random& random, const Case& of) {
    const Activations a(random, of);
    on(ctx, rung, {a.x, a.out},
       [&] { EXPECT_TRUE(close_to(a.out, a.of_gates([](double v) { return v / (1 + std::exp(-v)); }))); });
  });
}

RUNG_TEST(Task1_2_GeluAndMul, RandomShapes, "gelu_and_mul", gelu_and_mul_variants()) {
  many_cases([&](Random& random, const Case& of) {
    const Activations a(random, of);
    on(ctx, rung, {a.x, a.out, a.gelu},
       [&] { EXPECT_TRUE(close_to(a.out, a.of_gates([&](double v) { return gelu_of(v, a.gelu); }))); });
  });
}

RUNG_TEST(Task1_2_Gelu, RandomShapes, "gelu", gelu_variants()) {
  many_cases([&](Random& random, const Case& of) {
    const Activations a(random, of);
    const auto gelu = [&](double v) { return gelu_of(v, a.gelu); };
    on(ctx, rung, {a.x.narrow(1, 0, a.out.dim(1)).clone(), a.out, a.gelu},
       [&] { EXPECT_TRUE(close_to(a.out, a.of_gates(gelu, false))); });
  });
}

RUNG_TEST(Task1_3_RmsNorm, RandomShapes, "rms_norm", rms_norm_variants()) {
  many_cases([&](Random& random, const Case& of) {
    const DType dtype = any_dtype(random);
    const int64_t rows = random.integer(0, 30), width = any_width(random, 9000);
    const bool heads = random.integer(0, 2) == 0, in_place = random.integer(0, 1) == 0;
    const Shape shape = heads ? Shape{rows, random.integer(1, 9), width} : Shape{rows, width};
    const Tensor x = of.filled(shape, dtype), weight = of.filled({width}, dtype);
    const Tensor out = in_place ? x : of.window(shape, dtype), before = x.clone();
    const double eps = random.one_of<double>({1e-6, 0.1});  // the second is seen in every type
    on(ctx, rung, {x, weight, eps, out}, [&] { EXPECT_TRUE(close_to(out, normed(before, weight, eps))); });
  });
}

RUNG_TEST(Task1_3_FusedAddRmsNorm, RandomShapes, "fused_add_rms_norm", fused_add_rms_norm_variants()) {
  many_cases([&](Random& random, const Case& of) {
    const DType dtype = any_dtype(random);
    const Shape shape = {random.integer(0, 30), any_width(random, 9000)};
    const Tensor x = of.filled(shape, dtype), weight = of.filled({shape[1]}, dtype),
                 residual = of.filled(shape, dtype), out = random.integer(0, 1) ? x : of.window(shape, dtype);
    const double eps = random.one_of<double>({1e-6, 0.1});
    const auto values = to_double(x), more = to_double(residual);
    const Tensor sum = Tensor::empty(shape, DType::f32);
    for (size_t i = 0; i < values.size(); ++i) sum.data<float>()[i] = static_cast<float>(values[i] + more[i]);
    const Tensor rounded_sum = sum.to(dtype);
    on(ctx, rung, {x, residual, weight, eps, out}, [&] {
      EXPECT_TRUE(bitwise_equal(residual, rounded_sum));
      EXPECT_TRUE(close_to(out, normed(rounded_sum, weight, eps)));
    });
  });
}

RUNG_TEST(Task1_5_Embedding, RandomShapes, "embedding", embedding_variants()) {
  many_cases([&](Random& random, const Case& of) {
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
    on(ctx, rung, {ids, weight, begin, out}, [&] { EXPECT_TRUE(bitwise_equal(out, expected)); });
  });
}

RUNG_TEST(Task1_4_Matmul, RandomShapes, "matmul", matmul_variants()) {
  many_cases([&](Random& random, const Case& of) {
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
    on(ctx, rung, {x, weight, bias, out}, [&] {
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

// Queries, keys and values of some tokens, and the cache that they go to.
struct Heads {
  Heads(Random& random, const Case& of) : dtype(any_dtype(random)) {
    const int64_t dim = random.one_of<int64_t>({64, 128, 256, 2 * random.integer(2, 90)});
    const int64_t rotary_dim = random.integer(0, 3) ? dim : 2 * random.integer(1, dim / 2);
    const int64_t tokens = random.integer(0, 1) ? random.integer(0, 8) : random.integer(0, 60),
                  stored = tokens - std::min<int64_t>(tokens, random.integer(0, 2)),
                  kv_heads = random.integer(1, 8), heads = kv_heads * random.integer(1, 5),
                  block_size = random.integer(1, 40), blocks = tokens / block_size + 2;
    // Together as a product makes them, or each by itself.
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
    args.table = of.window({200, rotary_dim}, DType::f32);  // of any angles: its making is another task
    for (int64_t row = 0; row < 200; ++row) {
      for (int64_t i = 0; i < rotary_dim / 2; ++i) {
        const double angle = 0.01 * static_cast<double>(random.integer(0, 628));
        args.table.at<float>({row, i}) = static_cast<float>(std::cos(angle));
        args.table.at<float>({row, rotary_dim / 2 + i}) = static_cast<float>(std::sin(angle));
      }
    }
    std::vector<int64_t> slots(static_cast<size_t>(blocks * block_size));
    std::iota(slots.begin(), slots.end(), int64_t{0});
    std::shuffle(slots.begin(), slots.end(), random.engine());
    slots.resize(static_cast<size_t>(stored));
    for (int64_t& slot : slots)
      if (random.integer(0, 7) == 0) slot = -1;
    args.slot_mapping = Tensor::from<int64_t>(slots, {stored});
    args.cache = {of.window({blocks, block_size, kv_heads, dim}, dtype),
                  of.window({blocks, block_size, kv_heads, dim}, dtype)};
    q = args.q.clone(), k = args.k.clone();
  }

  // Queries or keys of before, each row normed by `weight` where there is one, turned to its position.
  std::vector<double> turned(const Tensor& rows, const Tensor& weight) const {
    return rotated(rows, weight, args.eps, args.positions, args.table);
  }

  DType dtype;
  QkNormRopeStoreArgs args;
  Tensor q, k;  // as they were
};

RUNG_TEST(Task1_7_StoreKv, RandomShapes, "store_kv", store_kv_variants()) {
  many_cases([&](Random& random, const Case& of) {
    const Heads heads(random, of);
    const QkNormRopeStoreArgs& args = heads.args;
    on(ctx, rung, {args.k, args.v, args.slot_mapping, args.cache}, [&] {
      expect_slots(args.cache.k, to_double(heads.k), args.slot_mapping, true);
      expect_slots(args.cache.v, to_double(args.v), args.slot_mapping, true);
    });
  });
}

RUNG_TEST(Task1_6_RotaryEmbedding, RandomShapes, "rotary_embedding", rotary_embedding_variants()) {
  many_cases([&](Random& random, const Case& of) {
    const Heads heads(random, of);
    const QkNormRopeStoreArgs& args = heads.args;
    on(ctx, rung, {args.positions, args.q, args.k, args.table}, [&] {
      EXPECT_TRUE(close_to(args.q, heads.turned(heads.q, {})));
      EXPECT_TRUE(close_to(args.k, heads.turned(heads.k, {})));
    });
  });
}

// The rung `sequence` rounds between its parts, which have had their turn.
RUNG_TEST(Task1_7_QkNormRopeStore, RandomShapes, "qk_norm_rope_store",
          rungs_where(qk_norm_rope_store_variants(),
                      [](const auto& rung) { return rung.name != "sequence"; })) {
  many_cases([&](Random& random, const Case& of) {
    const Heads heads(random, of);
    const QkNormRopeStoreArgs& args = heads.args;
    on(ctx, rung, args, [&] {
      EXPECT_TRUE(close_to(args.q, heads.turned(heads.q, args.q_norm_weight)));
      expect_slots(args.cache.k, heads.turned(heads.k, args.k_norm_weight), args.slot_mapping, false);
      expect_slots(args.cache.v, to_double(args.v), args.slot_mapping, true);
    });
  });
}

}  // namespace
}  // namespace ladder
