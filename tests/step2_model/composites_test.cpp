// Task 2.4: the composites of a decoder layer, every rung of their ladders on either device.
#include "step2_model/decoder/composites.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "step1_layers/distributed/local_group.h"
#include "step1_layers/norm/layer_norm.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::bitwise_equal;
using testing::close_to;
using testing::Random;
using testing::to_double;

constexpr double kEps = 0.1;  // large enough to be seen in every type

struct Problem {
  int64_t rows, in, out;
};
// One row and more than a tile of them, sizes that are no multiples of tiles, more units of eight columns
// than a GPU has multiprocessors, (1001) rows that are not packs of sixteen bytes, (3704) rows too long for
// registers, and nine of them for shared memory.
constexpr Problem kProblems[] = {{1, 64, 48},    {2, 1024, 2200}, {3, 1001, 30},  {5, 520, 1064},
                                 {9, 256, 136},  {16, 72, 4600},  {17, 40, 24},   {32, 520, 2200},
                                 {40, 136, 56},  {9, 3704, 2120}, {7, 3704, 136}, {7, 328, 6200},
                                 {13, 1000, 136}};

// The tensors of one call on a context's device, made from tensors on the CPU.
struct Scene {
  OpContext ctx;
  std::shared_ptr<Arena> arena;
  std::unique_ptr<Linear> linear;
  ResidualStream stream;
  Tensor gain, x, out;

  Scene(DeviceType device, const Problem& p, const Tensor& weight, const Tensor& bias) {
    if (device == DeviceType::cuda) ctx = *testing::cuda_context();
    arena = std::make_shared<Arena>(ctx.device);
    ctx.arena = arena.get();
    linear = std::make_unique<ColumnParallelLinear>(ctx, "linear", p.in, p.out,
                                                    LinearOptions{weight.dtype(), bias.defined(), nullptr});
    linear->parameters()[0]->load(weight);
    if (bias.defined()) linear->parameters()[1]->load(bias);
    linear->process_after_load(ctx);
  }
  void sync() const { device_synchronize(ctx.device, ctx.stream); }
};

// What a sum or a norm in f32 may be off by, of the root of its squares.
constexpr double kSumError = 2e-6;

// Values that a kernel rounds to its dtype on the way to its result: [low, high] of each. Mostly the two are
// equal. Where the exact value is so close to the middle of two neighbours that the order of a sum in f32
// decides between them, both are right, and a narrow row would show the difference.
struct Rounded {
  std::vector<double> low, high;

  // A kernel has `exact` but for +-slack. In f32 that error is what the bound is for: nothing is widened.
  Rounded(const std::vector<double>& exact, const std::vector<double>& slack, DType dtype) {
    low = high = exact;
    for (size_t i = 0; i < exact.size() && dtype != DType::f32; ++i) {
      low[i] -= slack[i];
      high[i] += slack[i];
    }
    for (std::vector<double>* side : {&low, &high}) {
      Tensor t = Tensor::empty({static_cast<int64_t>(side->size())}, DType::f32);
      for (size_t i = 0; i < side->size(); ++i) t.data<float>()[i] = static_cast<float>((*side)[i]);
      *side = to_double(t.to(dtype));
    }
  }
  explicit Rounded(const Tensor& x) : low(to_double(x)), high(low) {}
};

Rounded normed(const Tensor& x, const Tensor& gain) {
  const auto values = to_double(x), gains = to_double(gain);
  const int64_t width = x.dim(1);
  std::vector<double> out(values.size()), slack(values.size());
  for (int64_t row = 0; row < x.dim(0); ++row) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += std::pow(values[static_cast<size_t>(row * width + i)], 2);
    const double scale = 1 / std::sqrt(sum / static_cast<double>(width) + kEps);
    for (int64_t i = 0; i < width; ++i) {
      const auto at = static_cast<size_t>(row * width + i);
      out[at] = values[at] * scale * gains[static_cast<size_t>(i)];
      slack[at] = kSumError * std::abs(out[at]);
    }
  }
  return {out, slack, x.dtype()};
}

// What a product in f32 may give before it is rounded: within `slack` of `exact`, for inputs in their ranges.
struct Product {
  std::vector<double> exact, slack;
};
Product product(const Rounded& x, const Tensor& weight, const Tensor& bias) {
  const auto w = to_double(weight), b = bias.defined() ? to_double(bias) : std::vector<double>();
  const auto n = static_cast<size_t>(weight.dim(0)), k = static_cast<size_t>(weight.dim(1));
  const size_t rows = x.low.size() / k;
  Product out{std::vector<double>(rows * n), std::vector<double>(rows * n)};
  for (size_t i = 0; i < rows; ++i) {
    std::vector<double> middle(k);
    std::vector<size_t> uncertain;
    for (size_t a = 0; a < k; ++a) {
      middle[a] = (x.low[i * k + a] + x.high[i * k + a]) / 2;
      if (x.low[i * k + a] != x.high[i * k + a]) uncertain.push_back(a);
    }
    for (size_t j = 0; j < n; ++j) {
      double sum = b.empty() ? 0 : b[j], squares = sum * sum, slack = 0;
      for (size_t a = 0; a < k; ++a) {
        const double term = middle[a] * w[j * k + a];
        sum += term;
        squares += term * term;
      }
      for (size_t a : uncertain) slack += (x.high[i * k + a] - middle[a]) * std::abs(w[j * k + a]);
      out.exact[i * n + j] = sum;
      out.slack[i * n + j] = slack + kSumError * std::sqrt(squares);
    }
  }
  return out;
}

// silu(gate) * up of rows [gate | up] that were rounded to the dtype: of the right results, the nearest to
// out.
std::vector<double> gated_rows(const Product& gate_up, size_t width, DType dtype,
                               const std::vector<double>& out) {
  const Rounded rounded(gate_up.exact, gate_up.slack, dtype);
  std::vector<double> nearest(out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t gate = i / width * 2 * width + i % width, up = gate + width;
    double least = INFINITY, most = -INFINITY;
    for (double g : {rounded.low[gate], rounded.high[gate]})
      for (double u : {rounded.low[up], rounded.high[up]}) {
        const double value = g / (1 + std::exp(-g)) * u;
        least = std::min(least, value);
        most = std::max(most, value);
      }
    nearest[i] = std::clamp(out[i], least, most);
  }
  return nearest;
}

// For a tool that follows every access to shared memory (tools/gpu_check.sh).
constexpr Problem kSmallProblems[] = {{1, 64, 48}, {5, 264, 144}, {16, 72, 136}, {3, 1096, 136}};

// Calls check(variant, problem, dtype) for every row of a table and problem; it says whether the row served.
template <class Args, class Check>
void for_each_case(std::span<const Variant<Args>> table, std::span<const Problem> sizes, Check&& check) {
  std::map<std::string, int> served;
  for (const Variant<Args>& variant : table) {
    if (variant.device == DeviceType::cuda && testing::cuda_context() == nullptr) continue;
    if (variant.device == DeviceType::cuda && !runs_here(variant, *testing::cuda_context())) continue;
    for (DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const Problem& problem : sizes) {
        SCOPED_TRACE(fmt::format("{} on {}: {} rows, {} to {} in {}", variant.name,
                                 variant.device == DeviceType::cuda ? "the GPU" : "the CPU", problem.rows,
                                 problem.in, problem.out, dtype_name(dtype)));
        served[std::string(variant.name)] += check(variant, problem, dtype);
        if (::testing::Test::HasFatalFailure()) return;
      }
  }
  for (const auto& [name, count] : served) EXPECT_GE(count, 6) << name << " served next to nothing";
}

template <class Args>
void check_norm_linear(std::span<const Variant<Args>> table, std::span<const Problem> sizes = kProblems) {
  constexpr bool gated = std::is_same_v<Args, NormGateUpArgs>;
  Random random;
  SCOPED_TRACE(random.describe());
  for_each_case(table, sizes, [&](const Variant<Args>& variant, const Problem& p, DType dtype) {
    int served = 0;
    for (bool pending : {false, true}) {
      const Tensor weight = random.normal({p.out, p.in}, dtype, 1 / std::sqrt(static_cast<double>(p.in)));
      const Tensor bias = p.rows % 2 && !gated ? random.normal({p.out}, dtype) : Tensor();
      const Tensor gain = random.normal({p.in}, dtype);
      const Tensor residual = random.normal({p.rows, p.in}, dtype),
                   waiting = random.normal({p.rows, p.in}, dtype);
      Tensor sum = residual;
      if (pending) {
        auto both = to_double(residual), more = to_double(waiting);
        for (size_t i = 0; i < both.size(); ++i) both[i] += more[i];
        Tensor exact = Tensor::empty(residual.shape(), DType::f32);
        for (size_t i = 0; i < both.size(); ++i) exact.data<float>()[i] = static_cast<float>(both[i]);
        sum = exact.to(dtype);
      }

      Scene scene(variant.device, p, weight, bias);
      const Device device = scene.ctx.device;
      scene.stream = {residual.clone().to(device), waiting.to(device), pending};
      scene.gain = gain.to(device);
      scene.out = testing::poisoned({p.rows, gated ? p.out / 2 : p.out}, dtype).to(device);
      Args args;
      static_cast<NormLinearArgs&>(args) = {
          &scene.stream, {scene.gain, {}, kEps}, scene.linear.get(), scene.out};
      if constexpr (gated) args.activation = MlpActivation::silu;
      if (!can_run(variant, scene.ctx, args)) continue;
      ++served;
      variant.run(scene.ctx, args);
      scene.sync();
      EXPECT_FALSE(scene.stream.has_pending);
      EXPECT_TRUE(bitwise_equal(scene.stream.residual.to(Device{}), sum)) << "the residual";

      const Product expected = product(normed(sum, gain), weight, bias);
      const Tensor out = scene.out.to(Device{});
      EXPECT_TRUE(close_to(out,
                           gated ? gated_rows(expected, static_cast<size_t>(p.out / 2), dtype, to_double(out))
                                 : expected.exact,
                           p.in));
    }
    return served;
  });
}

TEST(Task2_4_Composites, NormQkvIsTheProductOfTheNormedSum) {
  check_norm_linear(norm_qkv_variants());
}
TEST(Task2_4_Composites, NormGateUpSiluGatesMatchingColumns) {
  check_norm_linear(norm_gate_up_silu_variants());
}

void check_linear_residual(std::span<const Variant<LinearResidualArgs>> table,
                           std::span<const Problem> sizes = kProblems) {
  Random random;
  SCOPED_TRACE(random.describe());
  for_each_case(table, sizes, [&](const Variant<LinearResidualArgs>& variant, const Problem& p, DType dtype) {
    const Tensor weight = random.normal({p.out, p.in}, dtype, 1 / std::sqrt(static_cast<double>(p.in)));
    const Tensor bias = p.rows % 2 ? random.normal({p.out}, dtype) : Tensor();
    const Tensor x = random.normal({p.rows, p.in}, dtype), residual = random.normal({p.rows, p.out}, dtype);
    Scene scene(variant.device, p, weight, bias);
    const Device device = scene.ctx.device;
    scene.stream = {residual.clone().to(device), testing::poisoned({p.rows, p.out}, dtype).to(device), false};
    scene.x = x.to(device);
    const LinearResidualArgs args{scene.x, scene.linear.get(), &scene.stream, true};
    if (!can_run(variant, scene.ctx, args)) return 0;
    variant.run(scene.ctx, args);
    scene.sync();

    // Whoever does the addition: the product is rounded, then the sum.
    const auto before = to_double(residual);
    auto after = to_double(scene.stream.residual.to(Device{}));
    const Product exact = product(Rounded(x), weight, bias);
    const Rounded rounded(exact.exact, exact.slack, dtype);
    std::vector<double> expected(after.size());
    if (scene.stream.has_pending) {
      const auto pending = to_double(scene.stream.pending.to(Device{}));
      for (size_t i = 0; i < after.size(); ++i) after[i] += pending[i];
    }
    for (size_t i = 0; i < after.size(); ++i)
      expected[i] = std::clamp(after[i], rounded.low[i] + before[i], rounded.high[i] + before[i]);
    EXPECT_TRUE(close_to(after, expected, p.out, testing::row_bound(dtype, p.in)));
    return 1;
  });
}

TEST(Task2_4_Composites, OResidualAddsToTheStream) {
  check_linear_residual(o_residual_variants());
}
TEST(Task2_4_Composites, DownResidualAddsToTheStream) {
  check_linear_residual(down_residual_variants());
}

TEST(Task2_4_Composites, SmallCallsOfEveryRung) {
  check_norm_linear(norm_qkv_variants(), kSmallProblems);
  check_norm_linear(norm_gate_up_silu_variants(), kSmallProblems);
  check_linear_residual(o_residual_variants(), kSmallProblems);
}

TEST(Task2_4_Composites, AddPendingIsTheSumThatANormAdds) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const DeviceType device : {DeviceType::cpu, DeviceType::cuda}) {
      if (device == DeviceType::cuda && testing::cuda_context() == nullptr) continue;
      const Problem p{7, 1001, 8};
      const Scene scene(device, p, Tensor::zeros({p.out, p.in}, dtype), Tensor());
      const auto on_device = [&](const Tensor& t) { return t.clone().to(scene.ctx.device); };
      const Tensor residual = random.normal({p.rows, p.in}, dtype),
                   more = random.normal({p.rows, p.in}, dtype);
      ResidualStream normed{on_device(residual), on_device(more), true};
      ResidualStream added{on_device(residual), on_device(more), true};
      add_norm(scene.ctx, normed, {on_device(random.normal({p.in}, dtype)), {}, kEps}, normed.pending);
      add_pending(scene.ctx, added);
      scene.sync();
      EXPECT_FALSE(added.has_pending);
      EXPECT_TRUE(bitwise_equal(added.residual.to(Device{}), normed.residual.to(Device{})));
      add_pending(scene.ctx, added);  // nothing is pending
      scene.sync();
      EXPECT_TRUE(bitwise_equal(added.residual.to(Device{}), normed.residual.to(Device{})));
    }
}

// What waits is added first, the parts of two ranks before it, and the norm is the one with the bias.
TEST(Task2_4_Composites, ANormWithABiasIsALayerNorm) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Shape shape = {5, 24};
  const Tensor residual = random.exact(shape, DType::f32), more = random.exact(shape, DType::f32);
  const Norm norm{random.normal({24}, DType::f32), random.normal({24}, DType::f32), kEps};
  const auto expected = [&](int64_t times) {
    const Tensor sum = residual.clone(), out = testing::poisoned(shape, DType::f32);
    for (int64_t i = 0; i < sum.numel(); ++i)
      sum.data<float>()[i] += static_cast<float>(times) * more.data<float>()[i];
    layer_norm({}, sum, norm.weight, norm.bias, norm.eps, out);
    return out;
  };
  for (const bool pending : {false, true}) {
    ResidualStream stream{residual.clone(), more.clone(), pending};
    const Tensor out = testing::poisoned(shape, DType::f32);
    add_norm({}, stream, norm, out);
    EXPECT_TRUE(close_to(out, to_double(expected(pending ? 1 : 0)), 24)) << pending;
    EXPECT_FALSE(stream.has_pending);
  }
  run_ranks(2, [&](int, const ParallelContext& parallel) {
    OpContext ctx;
    ctx.parallel = &parallel;
    ResidualStream stream{residual.clone(), more.clone(), true, true};
    add_norm(ctx, stream, norm, stream.pending);
    EXPECT_TRUE(close_to(stream.pending, to_double(expected(2)), 24));
  });
}

// The same product kernel, then a rounded sum: fusing must not change a bit of the residual stream.
TEST(Task2_4_Composites, TheFusedSumHasTheBitsOfTheSequence) {
  if (testing::cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  Random random;
  SCOPED_TRACE(random.describe());
  for (DType dtype : {DType::bf16, DType::f16})
    for (const Problem& p : {Problem{1, 2048, 1024}, Problem{7, 3072, 1024}, Problem{16, 512, 1100}}) {
      const Tensor weight = random.normal({p.out, p.in}, dtype, 0.05);
      const Tensor x = random.normal({p.rows, p.in}, dtype), residual = random.normal({p.rows, p.out}, dtype);
      Scene scene(DeviceType::cuda, p, weight, Tensor());
      const Device device = scene.ctx.device;
      scene.x = x.to(device);
      scene.ctx.kernels["matmul"] = "rows_stream";
      auto stream_after = [&](const char* kernel) {
        ResidualStream stream{residual.to(device), residual.to(device), false};
        OpContext ctx = scene.ctx;
        ctx.kernels["o_residual"] = kernel;
        o_residual(ctx, scene.x, *scene.linear, stream);
        if (stream.has_pending) {
          const Tensor gain = residual.rows(1).view({p.out}).to(device);
          add_norm(ctx, stream, {gain, {}, kEps}, stream.pending);
        }
        scene.sync();
        return stream.residual.to(Device{});
      };
      EXPECT_TRUE(bitwise_equal(stream_after("fused"), stream_after("sequence")));
    }
}

TEST(Task2_4_Composites, WhatMustBeSummedFirstIsLeftToTheSequence) {
  if (testing::cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  const Problem p{2, 64, 64};
  Scene scene(DeviceType::cuda, p, Tensor::zeros({64, 64}, DType::bf16), Tensor());
  const Tensor rows = Tensor::zeros({2, 64}, DType::bf16, scene.ctx.device);
  scene.stream = {rows, rows, false};
  const Tensor gain = Tensor::zeros({64}, DType::bf16, scene.ctx.device);
  auto residual_kernel = [&](bool one_rank) {
    return select_variant<LinearResidualArgs>("o_residual", o_residual_variants(), scene.ctx,
                                              {rows, scene.linear.get(), &scene.stream, one_rank})
        .name;
  };
  auto norm_kernel = [&] {
    return select_variant<NormLinearArgs>("norm_qkv", norm_qkv_variants(), scene.ctx,
                                          {&scene.stream, {gain, {}, kEps}, scene.linear.get(), rows})
        .name;
  };
  EXPECT_EQ(residual_kernel(false), "sequence");
  if (scene.ctx.device_arch >= 90) {
    EXPECT_EQ(residual_kernel(true), "fused");
    EXPECT_EQ(norm_kernel(), "fused");
  }
  scene.stream.has_pending = true;
  EXPECT_EQ(norm_kernel(), "sequence");
}

}  // namespace
}  // namespace ladder
