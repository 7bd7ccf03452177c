// The matrix product on the ordinary arithmetic units, for every type and shape.
#include "step1_layers/linear/matmul_cuda.cuh"

namespace ladder {

namespace {

// naive
// Any shape. A thread computes one output: the CPU's loop. Every product takes two loads, and neighbouring
// threads read weight rows that lie far apart.
//
// tiled
// Any shape. A block computes 64 x 64 outputs. Sixteen columns of 64 rows of x and of weight are brought to
// shared memory, converted once, and each is used 64 times; a thread's 4 x 4 outputs take eight loads from
// shared memory for sixteen products. Every output is summed in the order of k, as by the rung below, to the
// same bits: batch invariant, also together with that rung. A zero's sign is one of these bits: a sum of products
// that underflow is -0, and adding a product of zeros for what lies beyond k would make it 0.
constexpr int kNaiveThreads = 128;
constexpr int kTile = 64, kDepth = 16, kOutputs = 4, kTiledThreads = (kTile / kOutputs) * (kTile / kOutputs);

}  // namespace

// >>> task 1.4.cuda: the matrix product on the GPU, an output per thread and a tile of outputs per block
namespace {

template <class T, class Out>
__global__ void product_naive(Product<T, Out> p) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t index = int64_t{blockIdx.x} * kNaiveThreads + threadIdx.x;
  if (index >= p.m * p.n) return;
  const int64_t i = index / p.n, j = index % p.n;
  float sum = 0;
  for (int64_t a = 0; a < p.k; ++a)
    sum = fmaf(to_float(p.x[i * p.x_stride + a]), to_float(p.weight[j * p.weight_stride + a]), sum);
  p.store(i, j, sum);
}

template <class T, class Out>
__global__ void __launch_bounds__(kTiledThreads) product_tiled(Product<T, Out> p) {
  allow_next_kernel();
  wait_for_previous_kernel();
  __shared__ float xs[kDepth][kTile + 4], ws[kDepth][kTile + 4];
  const int64_t tiles_n = ceil_div<int64_t>(p.n, kTile);
  const int64_t first_i = blockIdx.x / tiles_n * kTile, first_j = blockIdx.x % tiles_n * kTile;
  const int tx = threadIdx.x % (kTile / kOutputs), ty = threadIdx.x / (kTile / kOutputs);
  float sums[kOutputs][kOutputs] = {};
  for (int64_t first_k = 0; first_k < p.k; first_k += kDepth) {
    for (int e = threadIdx.x; e < kTile * kDepth; e += kTiledThreads) {
      const int row = e / kDepth, depth = e % kDepth;
      const int64_t a = first_k + depth;
      xs[depth][row] =
          first_i + row < p.m && a < p.k ? to_float(p.x[(first_i + row) * p.x_stride + a]) : 0.0f;
      ws[depth][row] =
          first_j + row < p.n && a < p.k ? to_float(p.weight[(first_j + row) * p.weight_stride + a]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kDepth; ++depth) {
      if (first_k + depth >= p.k) break;  // adding a zero could turn -0 into 0
      float x[kOutputs], w[kOutputs];
      *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(&xs[depth][ty * kOutputs]);
      *reinterpret_cast<float4*>(w) = *reinterpret_cast<const float4*>(&ws[depth][tx * kOutputs]);
#pragma unroll
      for (int i = 0; i < kOutputs; ++i)
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) sums[i][j] = fmaf(x[i], w[j], sums[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOutputs; ++i)
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      const int64_t row = first_i + ty * kOutputs + i, column = first_j + tx * kOutputs + j;
      if (row < p.m && column < p.n) p.store(row, column, sums[i][j]);
    }
}

}  // namespace

void matmul_cuda_naive(const OpContext& ctx, const MatmulArgs& args) {
  with_product(args, [&](const auto& p) {
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(p.m * p.n, kNaiveThreads));
    using T = std::remove_cvref_t<decltype(*p.x)>;
    using Out = std::remove_cvref_t<decltype(*p.out)>;
    launch_kernel(ctx, product_naive<T, Out>, blocks, kNaiveThreads, 0, p);
  });
}

void matmul_cuda_tiled(const OpContext& ctx, const MatmulArgs& args) {
  with_product(args, [&](const auto& p) {
    const int64_t tiles = ceil_div<int64_t>(p.m, kTile) * ceil_div<int64_t>(p.n, kTile);
    using T = std::remove_cvref_t<decltype(*p.x)>;
    using Out = std::remove_cvref_t<decltype(*p.out)>;
    launch_kernel(ctx, product_tiled<T, Out>, static_cast<unsigned>(tiles), kTiledThreads, 0, p);
  });
}
// <<< task 1.4.cuda

}  // namespace ladder
