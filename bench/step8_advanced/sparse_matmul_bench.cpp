// The product with a weight of which two of four are kept beside the dense product (op `matmul`, problems `sparse_bf16/...`): the weights
// of Llama-3.1-8B's layers and a square one, from 1 row to 8192. bytes: records, x and out; flops: those of the dense product.
#include <fmt/format.h>

#include "bench/support/bench_cuda.h"
#include "bench/support/bench_support.h"
#include "step1_layers/linear/matmul.h"
#include "step8_advanced/quantization/kernels/sparse_matmul.h"

namespace ladder::bench {

namespace {

// With what owns the weight: it travels with x.
SparseMatmulArgs owning(SparseMatmulArgs args, const std::shared_ptr<SparseWeight>& weight) {
  const auto owner = std::make_shared<std::pair<Tensor, std::shared_ptr<SparseWeight>>>(args.x, weight);
  args.x = Tensor::wrap(args.x.raw(), args.x.shape(), args.x.dtype(), args.x.device(), owner);
  args.weight = weight.get();
  return args;
}

}  // namespace

template <>
SparseMatmulArgs to_gpu(SparseMatmulArgs args, Device device) {
  const auto weight = std::make_shared<SparseWeight>(*args.weight);
  for (Tensor* tensor : {&weight->records, &args.x, &args.out}) *tensor = tensor->to(device);
  return owning(args, weight);
}

namespace {

// Random numbers, and of each four any two.
SparseWeight random_weight(int64_t n, int64_t k) {
  const Tensor values = random_tensor({n, k}, DType::bf16);
  uint64_t bits = 1;
  for (int64_t four = 0; four < n * k; four += 4) {
    bits = bits * 6364136223846793005u + 1442695040888963407u;
    const uint64_t first = bits >> 40 & 3, second = (first + 1 + (bits >> 50) % 3) % 4;
    for (uint64_t i = 0; i < 4; ++i)
      if (i != first && i != second) values.data<bf16>()[four + static_cast<int64_t>(i)] = bf16(0);
  }
  return in_sparse_records(values);
}

BenchProblem<SparseMatmulArgs> problem(int64_t n, int64_t k, int64_t m) {
  BenchProblem<SparseMatmulArgs> result;
  result.name = fmt::format("{}x{}/m:{}", n, k, m);
  result.dtype = DType::bf16;
  result.bytes = static_cast<double>(n * k / 64 * 72 + 2 * m * (k + n));
  result.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  result.make = [=] {
    SparseMatmulArgs args;
    args.x = random_tensor({m, k}, DType::bf16);
    args.out = Tensor::zeros({m, n}, DType::bf16);
    return owning(args, std::make_shared<SparseWeight>(random_weight(n, k)));
  };
  return result;
}

BenchProblem<MatmulArgs> dense_problem(int64_t n, int64_t k, int64_t m) {
  BenchProblem<MatmulArgs> result;
  result.name = fmt::format("sparse_bf16/{}x{}/m:{}", n, k, m);
  result.dtype = DType::bf16;
  result.bytes = static_cast<double>(2 * (n * k + m * (k + n)));
  result.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  result.make = [=] {
    return MatmulArgs{random_tensor({m, k}, DType::bf16), random_tensor({n, k}, DType::bf16), Tensor(),
                      Tensor::zeros({m, n}, DType::bf16)};
  };
  return result;
}

const bool kRegistered = [] {
  std::vector<BenchProblem<SparseMatmulArgs>> problems;
  std::vector<BenchProblem<MatmulArgs>> dense;
  for (const auto& [n, k] : {std::pair{8192, 8192}, {28672, 4096}, {4096, 14336}, {6144, 4096}, {4096, 4096}})
    for (const int64_t m : {1, 4, 16, 32, 64, 128, 256, 512, 2048, 8192}) {
      if (m == 8192 && n != 8192) continue;
      dense.push_back(dense_problem(n, k, m));
      problems.push_back(problem(n, k, m));
    }
  register_cuda_ladder("matmul", matmul_variants(), dense);
  register_cuda_ladder("sparse_matmul", sparse_matmul_variants(), problems);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
