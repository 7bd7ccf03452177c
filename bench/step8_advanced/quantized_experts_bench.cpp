// The experts of a layer in codes beside dense ones in bf16, on a GPU: qwen3-30b-a3b (hidden 2048, experts of width 768, 8 of 128 a
// token) for one token, the steps of a batch, and prompts. bytes: codes and scales of the experts that are touched, E * (1 - (1 - k /
// E)^T) of T tokens on average, as stored; x and out.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "bench/support/bench_cuda.h"
#include "step1_layers/core/small_floats.h"
#include "step1_layers/moe/experts.h"
#include "step8_advanced/quantization/kernels/quantized_experts.h"
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder::bench {

namespace {

// Both matrices travel with x.
struct ExpertWeights {
  QuantizedWeight gate_up, down;
};
QuantizedExpertsArgs owning(QuantizedExpertsArgs args, const std::shared_ptr<ExpertWeights>& weights) {
  const auto owner = std::make_shared<std::pair<Tensor, std::shared_ptr<ExpertWeights>>>(args.x, weights);
  args.x = Tensor::wrap(args.x.raw(), args.x.shape(), args.x.dtype(), args.x.device(), owner);
  args.gate_up.weight = &weights->gate_up;
  args.down.weight = &weights->down;
  return args;
}

}  // namespace

template <>
QuantizedExpertsArgs to_gpu(QuantizedExpertsArgs args, Device device) {
  const auto weights =
      std::make_shared<ExpertWeights>(ExpertWeights{*args.gate_up.weight, *args.down.weight});
  for (QuantizedWeight* weight : {&weights->gate_up, &weights->down})
    for (Tensor* tensor : {&weight->codes, &weight->scales, &weight->records.bytes})
      if (tensor->defined()) *tensor = tensor->to(device);
  for (Tensor* tensor : {&args.x, &args.expert_ids, &args.weights, &args.out}) *tensor = tensor->to(device);
  return owning(args, weights);
}

namespace {

constexpr int64_t kHidden = 2048, kWidth = 768, kExperts = 128, kTopK = 8;

struct Format {
  const char* name;
  WeightCodes type;
  int64_t group_size;  // 0: a row has one scale
  bool rounds_x = false;
};
constexpr Format kFormats[] = {{"w4_g128", WeightCodes::int4, 128},
                               {"w8", WeightCodes::int8, 0},
                               {"fp8", WeightCodes::fp8_e4m3, 0},
                               {"fp8_block_w8a8", WeightCodes::fp8_e4m3, 128, true},
                               {"nvfp4", WeightCodes::fp4_e2m1, 16}};

// The same tensor for every expert: what its bytes are does not matter here.
Tensor for_all(const Tensor& one) {
  if (!one.defined()) return one;
  std::vector<int64_t> sizes(one.shape().dims().begin(), one.shape().dims().end());
  sizes[0] *= kExperts;
  const Tensor all = Tensor::empty(Shape(sizes), one.dtype());
  for (int64_t e = 0; e < kExperts; ++e)
    std::memcpy(static_cast<char*>(all.raw()) + e * one.nbytes(), one.raw(),
                static_cast<size_t>(one.nbytes()));
  return all;
}

QuantizedWeight weight_of_experts(const Format& format, int64_t rows, int64_t k) {
  QuantizedWeight weight;
  weight.type = format.type;
  weight.n = rows;
  weight.k = k;
  weight.group_size = format.group_size > 0 ? format.group_size : k;
  const Tensor numbers = random_tensor({rows, is_nibble(format.type) ? k / 2 : k}, DType::f32);
  weight.codes = Tensor::empty(numbers.shape(), format.type == WeightCodes::int8 ? DType::i8 : DType::u8);
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    const float number = numbers.data<float>()[i];
    static_cast<uint8_t*>(weight.codes.raw())[i] = format.type == WeightCodes::fp8_e4m3
                                                       ? float_to_e4m3(number * kMaxE4M3)
                                                       : static_cast<uint8_t>(static_cast<int>(number * 128));
  }
  weight.scales = random_tensor({rows, k / weight.group_size}, DType::bf16).to(DType::f32);
  if (fits_records(weight)) weight = in_records(weight);
  weight.n *= kExperts;
  for (Tensor* tensor : {&weight.codes, &weight.scales, &weight.records.bytes}) *tensor = for_all(*tensor);
  return weight;
}

Tensor random_experts(int64_t tokens) {
  static std::mt19937 engine(1);
  const Tensor ids = Tensor::empty({tokens, kTopK}, DType::i32);
  std::vector<int32_t> all(kExperts);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    std::shuffle(all.begin(), all.end(), engine);
    std::copy_n(all.begin(), kTopK, ids.data<int32_t>() + t * kTopK);
  }
  return ids;
}

Tensor even_weights(int64_t tokens) {
  const Tensor weights = Tensor::empty({tokens, kTopK}, DType::f32);
  std::fill_n(weights.data<float>(), weights.numel(), 1.0f / static_cast<float>(kTopK));
  return weights;
}

double touched(int64_t tokens) {
  return kExperts * (1 - std::pow(1 - static_cast<double>(kTopK) / kExperts, static_cast<double>(tokens)));
}

template <class Args>
BenchProblem<Args> problem_of(const std::string& format, int64_t tokens, double bytes_of_weight) {
  BenchProblem<Args> result;
  result.name = fmt::format("{}/8of128/tokens:{}", format, tokens);
  result.dtype = DType::bf16;
  result.bytes =
      touched(tokens) * 3 * kHidden * kWidth * bytes_of_weight + 4.0 * static_cast<double>(tokens * kHidden);
  result.flops = 6.0 * static_cast<double>(tokens * kTopK) * kHidden * kWidth;
  return result;
}

double bytes_of_weight(const Format& format) {
  const double codes = is_nibble(format.type) ? 0.5 : 1;
  const double scale = format.type == WeightCodes::int4 ? 2 : 4;  // f16 in a record of 4 bits
  return codes + (format.group_size > 0 ? scale / static_cast<double>(format.group_size) : 0);
}

const bool kRegistered = [] {
  std::vector<BenchProblem<QuantizedExpertsArgs>> problems;
  std::vector<BenchProblem<MoeExpertsArgs>> dense;
  for (const int64_t tokens : {1, 4, 16, 64, 256, 512, 1024, 4096}) {
    BenchProblem<MoeExpertsArgs> in_bf16 = problem_of<MoeExpertsArgs>("bf16", tokens, 2);
    in_bf16.make = [=] {
      return MoeExpertsArgs{random_tensor({tokens, kHidden}, DType::bf16),
                            random_experts(tokens),
                            even_weights(tokens),
                            for_all(random_tensor({1, 2 * kWidth, kHidden}, DType::bf16)),
                            for_all(random_tensor({1, kHidden, kWidth}, DType::bf16)),
                            Tensor::zeros({tokens, kHidden}, DType::bf16)};
    };
    dense.push_back(in_bf16);
    for (const Format& format : kFormats) {
      BenchProblem<QuantizedExpertsArgs> problem =
          problem_of<QuantizedExpertsArgs>(format.name, tokens, bytes_of_weight(format));
      problem.make = [=] {
        std::optional<QuantizationArgs> rounding;
        if (format.rounds_x)
          rounding = QuantizationArgs{
              .is_float = true, .strategy = ScaleStrategy::group, .group_size = 128, .dynamic = true};
        const auto weights = std::make_shared<ExpertWeights>(ExpertWeights{
            weight_of_experts(format, 2 * kWidth, kHidden), weight_of_experts(format, kHidden, kWidth)});
        return owning({.x = random_tensor({tokens, kHidden}, DType::bf16),
                       .expert_ids = random_experts(tokens),
                       .weights = even_weights(tokens),
                       .experts = kExperts,
                       .gate_up = {nullptr, rounding, {}},
                       .down = {nullptr, rounding, {}},
                       .out = Tensor::zeros({tokens, kHidden}, DType::bf16)},
                      weights);
      };
      problems.push_back(problem);
    }
  }
  register_cuda_ladder("moe_experts", moe_experts_variants(), dense);
  register_cuda_ladder("quantized_experts", quantized_experts_variants(), problems);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
