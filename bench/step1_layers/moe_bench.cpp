// A mixture of experts: the router, and the experts of a layer of qwen3-30b-a3b (hidden 2048, experts of width 768, 8 of 128
// a token) for one token, the steps of a batch, and prompts. On a CPU a quarter of the experts, 2 of 32 a token. What must
// be moved are the weights of the experts that are touched: of a step with T tokens E * (1 - (1 - k / E)^T) on average.
#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <random>

#include "bench/support/bench_cuda.h"
#include "step1_layers/moe/experts.h"
#include "step1_layers/moe/router.h"

namespace ladder::bench {
namespace {

constexpr int64_t kHidden = 2048, kWidth = 768;
constexpr DType kType = DType::bf16;

// Every token goes to other experts, in every set of operands.
Tensor random_experts(int64_t tokens, int64_t top_k, int64_t experts) {
  static std::mt19937 engine(1);
  const Tensor ids = Tensor::empty({tokens, top_k}, DType::i32);
  std::vector<int32_t> all(static_cast<size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    std::shuffle(all.begin(), all.end(), engine);
    std::copy_n(all.begin(), top_k, ids.data<int32_t>() + t * top_k);
  }
  return ids;
}

// Made once: a gigabyte for a GPU.
std::pair<Tensor, Tensor> expert_weights(int64_t experts) {
  static Tensor gate_up, down;
  if (!gate_up.defined() || gate_up.dim(0) != experts) {
    gate_up = random_tensor({experts, 2 * kWidth, kHidden}, kType, 2);
    down = random_tensor({experts, kHidden, kWidth}, kType, 3);
  }
  return {gate_up, down};
}

BenchProblem<MoeExpertsArgs> experts_problem(int64_t tokens, int64_t top_k, int64_t experts) {
  const double touched = static_cast<double>(experts) *
                         (1 - std::pow(1 - static_cast<double>(top_k) / static_cast<double>(experts),
                                       static_cast<double>(tokens)));
  BenchProblem<MoeExpertsArgs> result;
  result.name = fmt::format("{}of{}/tokens:{}", top_k, experts, tokens);
  result.dtype = kType;
  result.bytes = 2.0 * (touched * 3 * kHidden * kWidth + 2.0 * static_cast<double>(tokens) * kHidden);
  result.flops = 6.0 * static_cast<double>(tokens * top_k) * kHidden * kWidth;
  result.make = [=] {
    const auto [gate_up, down] = expert_weights(experts);
    const Tensor weights = Tensor::empty({tokens, top_k}, DType::f32);
    std::fill_n(weights.data<float>(), weights.numel(), 1.0f / static_cast<float>(top_k));
    return MoeExpertsArgs{random_tensor({tokens, kHidden}, kType),
                          random_experts(tokens, top_k, experts),
                          weights,
                          gate_up,
                          down,
                          Tensor::zeros({tokens, kHidden}, kType)};
  };
  return result;
}

BenchProblem<RouteTokensArgs> router_problem(int64_t tokens) {
  constexpr int64_t kExperts = 128, kTopK = 8;
  BenchProblem<RouteTokensArgs> result;
  result.name = fmt::format("8of128/tokens:{}", tokens);
  result.bytes = static_cast<double>(tokens) * (kExperts + 2 * kTopK) * 4;
  result.make = [=] {
    return RouteTokensArgs{random_tensor({tokens, kExperts}, DType::f32),
                           {},
                           {.top_k = kTopK, .normalize = true},
                           Tensor::zeros({tokens, kTopK}, DType::i32),
                           Tensor::zeros({tokens, kTopK}, DType::f32)};
  };
  return result;
}

const bool kRegistered = [] {
  std::vector<BenchProblem<RouteTokensArgs>> router;
  for (int64_t tokens : {1, 64, 8192}) router.push_back(router_problem(tokens));
  register_ladder("route_tokens", route_tokens_variants(), router);
  register_cuda_ladder("route_tokens", route_tokens_variants(), router);
  std::vector<BenchProblem<MoeExpertsArgs>> on_cpu, on_gpu;
  for (int64_t tokens : {1, 8, 64, 256}) on_cpu.push_back(experts_problem(tokens, 2, 32));
  for (int64_t tokens : {1, 2, 8, 32, 64, 128, 256, 1024, 8192})
    on_gpu.push_back(experts_problem(tokens, 8, 128));
  register_ladder("moe_experts", moe_experts_variants(), on_cpu);
  register_cuda_ladder("moe_experts", moe_experts_variants(), on_gpu);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
