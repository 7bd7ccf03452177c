// What each algorithm loses of a layer's output, on a synthetic layer of 512 x 512 whose activations are as real ones are: a few
// directions hold most of the energy, and eight features are 30 times as large as the others. 2048 rows of calibration; the error is
// measured on 2048 others. a8, a4: activations rounded and weights not, on the rows of calibration. The counter `percent` is 100 tr(E H E^T) / tr(W H W^T), the mean over three seeds.
#include <benchmark/benchmark.h>

#include <array>
#include <cmath>
#include <span>
#include <string>

#include "bench/support/bench_support.h"
#include "step1_layers/linear/matmul.h"
#include "step8_advanced/quantization/algorithms/awq.h"
#include "step8_advanced/quantization/algorithms/gptq.h"
#include "step8_advanced/quantization/algorithms/hadamard.h"
#include "step8_advanced/quantization/algorithms/hessian.h"
#include "step8_advanced/quantization/algorithms/smoothquant.h"
#include "step8_advanced/quantization/algorithms/sparse.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"

namespace ladder::bench {
namespace {

constexpr int64_t kSize = 512, kRows = 2048;
constexpr int kSeeds = 3;

struct Layer {
  Tensor weight, x, hessian, mean_abs_x;  // of calibration
  Tensor other_hessian;                   // of the rows that judge
};

// Nearly normal: the sum of four.
Tensor weight_of(uint64_t seed) {
  const Tensor sum = random_tensor({kSize, kSize}, DType::f32, seed);
  for (uint64_t i = 1; i < 4; ++i) {
    const Tensor term = random_tensor({kSize, kSize}, DType::f32, seed + i);
    for (int64_t j = 0; j < sum.numel(); ++j) sum.data<float>()[j] += term.data<float>()[j];
  }
  return sum;
}

Layer layer(uint64_t seed) {
  Tensor x = Tensor::empty({2 * kRows, kSize}, DType::f32);
  const Tensor z = random_tensor({2 * kRows, kSize}, DType::f32, 10 * seed),
               mix = random_tensor({kSize, kSize}, DType::f32, 10 * seed + 1);
  for (int64_t i = 0; i < z.numel(); ++i)
    z.data<float>()[i] *= std::pow(1.0f + static_cast<float>(i % kSize), -0.7f);
  OpContext ctx;
  ctx.batch_invariant = true;
  matmul(ctx, z, mix, Tensor(), x);
  for (int64_t i = 0; i < x.numel(); ++i)
    if (i % kSize % 64 == 7) x.data<float>()[i] *= 30;
  Layer result;
  result.weight = weight_of(10 * seed + 2);
  result.x = x.rows(kRows);
  Hessian calibration(kSize, "layer"), other(kSize, "layer");
  calibration.add(result.x);
  other.add(x.narrow(0, kRows, kRows));
  result.hessian = calibration.matrix();
  result.mean_abs_x = calibration.mean_abs();
  result.other_hessian = other.matrix();
  return result;
}

const Layer& layer_of(int seed) {
  static const std::array<Layer, kSeeds> layers = {layer(1), layer(2), layer(3)};
  return layers[static_cast<size_t>(seed)];
}

template <class Method>
void measure(const std::string& name, Method method) {
  benchmark::RegisterBenchmark(("layer_error/" + name).c_str(),
                               [=](benchmark::State& state) {
                                 layer_of(0);
                                 double error = 0;
                                 for (auto _ : state)
                                   for (int seed = 0; seed < kSeeds; ++seed)
                                     error += layer_error(layer_of(seed).weight, method(layer_of(seed)),
                                                          layer_of(seed).other_hessian) /
                                              kSeeds;
                                 state.counters["percent"] = 100 * error;
                               })
      ->Iterations(1)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}

Tensor nearest(const Tensor& weight, const QuantizationArgs& args) {
  return dequantize(quantize_weight(weight, args, "layer"));
}

Tensor awq(const Layer& layer, const QuantizationArgs& args, bool clip) {
  const Tensor x = layer.x.rows(512).clone(), weight = layer.weight.clone();
  const Tensor scales = search_awq_scales(x, layer.mean_abs_x, std::array{weight}, args, "layer").scales;
  const auto scale = [&](const Tensor& tensor, bool back) {
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const float by = scales.data<float>()[i % kSize];
      tensor.data<float>()[i] *= back ? 1 / by : by;
    }
  };
  scale(weight, false);
  scale(x, true);
  const Tensor rounded = nearest(clip ? clip_awq(x, weight, args, "layer") : weight, args);
  scale(rounded, true);
  return rounded;
}

// Activations of `bits` bits with one scale for each `together` of their numbers, the weight as it is: |(Q(x) - x) W^T|^2 over |x W^T|^2.
double activation_error(const Tensor& x, const Tensor& weight, int bits, int64_t together) {
  const QuantizationArgs args{.num_bits = bits};
  const Tensor wrong = Tensor::empty(x.shape(), DType::f32),
               out = Tensor::empty({x.dim(0), weight.dim(0)}, DType::f32);
  for (int64_t begin = 0; begin < x.numel(); begin += together) {
    const std::span<const float> numbers(x.data<float>() + begin, static_cast<size_t>(together));
    const Grid grid = make_grid(numbers, args);
    for (int64_t i = begin; i < begin + together; ++i)
      wrong.data<float>()[i] = round_to_grid(x.data<float>()[i], grid, args) - x.data<float>()[i];
  }
  OpContext ctx;
  ctx.batch_invariant = true;
  const auto squares = [&](const Tensor& rows) {
    matmul(ctx, rows, weight, Tensor(), out);
    double sum = 0;
    for (int64_t i = 0; i < out.numel(); ++i)
      sum += static_cast<double>(out.data<float>()[i]) * out.data<float>()[i];
    return sum;
  };
  return squares(wrong) / squares(x);
}

// `change` makes x and the weight easier to round.
template <class Change>
void measure_activations(const std::string& name, int bits, bool by_token, Change change) {
  benchmark::RegisterBenchmark(
      ("layer_error/" + name).c_str(),
      [=](benchmark::State& state) {
        layer_of(0);
        double error = 0;
        for (auto _ : state) {
          for (int seed = 0; seed < kSeeds; ++seed) {
            const Tensor x = layer_of(seed).x.clone(), weight = layer_of(seed).weight.clone();
            change(x, weight);
            error += activation_error(x, weight, bits, by_token ? kSize : x.numel()) / kSeeds;
          }
        }
        state.counters["percent"] = 100 * error;
      })
      ->Iterations(1)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}

void smooth(const Tensor& x, const Tensor& weight) {
  Hessian calibration(kSize, "layer");
  calibration.add(x);
  const Tensor scales = smoothquant_scales(calibration.max_abs(), std::array{weight}, 0.5, "layer");
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] /= scales.data<float>()[i % kSize];
  for (int64_t i = 0; i < weight.numel(); ++i) weight.data<float>()[i] *= scales.data<float>()[i % kSize];
}

void rotate(const Tensor& x, const Tensor& weight) {
  const HadamardRotation rotation(kSize, 1);
  rotation.rotate(x);
  rotation.rotate(weight);
}

int register_all() {
  for (const int bits : {4, 3}) {
    for (const int64_t group : {kSize, int64_t{128}}) {
      for (const bool symmetric : {true, false}) {
        QuantizationArgs args{
            .num_bits = bits, .symmetric = symmetric, .strategy = ScaleStrategy::group, .group_size = group};
        const std::string scheme =
            "w" + std::to_string(bits) + (group == kSize ? "_channel" : "_g128") + (symmetric ? "" : "_asym");
        measure(scheme + "/nearest", [=](const Layer& layer) { return nearest(layer.weight, args); });
        measure(scheme + "/awq", [=](const Layer& layer) { return awq(layer, args, false); });
        measure(scheme + "/awq_clip", [=](const Layer& layer) { return awq(layer, args, true); });
        for (const ActivationOrder order :
             {ActivationOrder::none, ActivationOrder::group, ActivationOrder::weight}) {
          args.actorder = order;
          const char* names[] = {"gptq", "gptq_order_group", "gptq_order_weight"};
          measure(scheme + "/" + names[static_cast<int>(order)], [=](const Layer& layer) {
            return dequantize(gptq(layer.weight, layer.hessian, args, "layer").weight);
          });
        }
      }
    }
  }
  measure("2of4/magnitude", [](const Layer& layer) { return prune_by_magnitude(layer.weight, "layer"); });
  measure("2of4/wanda",
          [](const Layer& layer) { return prune_by_wanda(layer.weight, layer.hessian, "layer"); });
  measure("2of4/sparse_gpt", [](const Layer& layer) {
    return prune_by_sparse_gpt(layer.weight, layer.hessian, "layer").weight;
  });
  for (const int bits : {8, 4, 3}) {
    const QuantizationArgs args{.num_bits = bits, .strategy = ScaleStrategy::group, .group_size = 128};
    measure("2of4/sparse_gpt_then_nearest_w" + std::to_string(bits), [=](const Layer& layer) {
      return nearest(prune_by_sparse_gpt(layer.weight, layer.hessian, "layer").weight, args);
    });
    measure("2of4/sparse_gpt_jointly_w" + std::to_string(bits), [=](const Layer& layer) {
      return dequantize(gptq(layer.weight, layer.hessian, args, "layer", {.two_of_four = true}).weight);
    });
  }
  for (const int bits : {8, 4}) {
    for (const bool by_token : {false, true}) {
      const std::string scheme = "a" + std::to_string(bits) + (by_token ? "_token" : "_tensor");
      measure_activations(scheme + "/nearest", bits, by_token, [](const Tensor&, const Tensor&) {});
      measure_activations(scheme + "/smoothquant", bits, by_token, smooth);
      measure_activations(scheme + "/rotated", bits, by_token, rotate);
    }
  }
  return 0;
}

const int kRegistered = register_all();

}  // namespace
}  // namespace ladder::bench
