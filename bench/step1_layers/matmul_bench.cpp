// The matrix products of one decoder layer and the LM head of a qwen3-0.6b-shaped model, at the row counts of
// decode (1, 4, 16, 64) and of a prefill (512).
#include <fmt/format.h>

#include "bench/support/bench_support.h"
#include "step1_layers/linear/matmul.h"

namespace ladder::bench {
namespace {

struct WeightShape {
  const char* name;
  int64_t n;
  int64_t k;
};
constexpr WeightShape kWeights[] = {
    {"qkv", 4096, 1024},  {"o", 1024, 2048},         {"gate_up", 6144, 1024},
    {"down", 1024, 3072}, {"lm_head", 151936, 1024},
};

BenchProblem<MatmulArgs> problem(const WeightShape& weight, DType dtype, int64_t m) {
  const bool logits = weight.n > 100000;
  const DType out = logits ? DType::f32 : dtype;
  const int64_t n = weight.n, k = weight.k;
  BenchProblem<MatmulArgs> result;
  result.name = fmt::format("{}/{}/m:{}", weight.name, dtype_name(dtype), m);
  result.dtype = dtype;
  result.bytes = static_cast<double>((m * k + n * k) * dtype_size(dtype) + m * n * dtype_size(out));
  result.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  result.make = [=] {
    return MatmulArgs{random_tensor({m, k}, dtype), random_tensor({n, k}, dtype), Tensor(),
                      Tensor::zeros({m, n}, out)};
  };
  return result;
}

const bool kRegistered = [] {
  std::vector<BenchProblem<MatmulArgs>> problems;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const WeightShape& weight : kWeights)
      for (int64_t m : {1, 4, 16, 64, 512})
        if (weight.n < 100000 || m <= 16) problems.push_back(problem(weight, dtype, m));
  register_ladder("matmul", matmul_variants(), problems);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
