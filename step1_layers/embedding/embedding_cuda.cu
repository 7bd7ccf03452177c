#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/packed.h"
#include "step1_layers/embedding/embedding_cuda.h"

namespace ladder {

namespace {

struct Owned {
  int64_t begin, count;  // rows of the table that this rank has
};

// naive
// Any shape. A thread copies one element of one token's row.
constexpr int kThreads = 128;
template <class T>
__global__ void embedding_naive(const int32_t* ids, const T* weight, int64_t weight_stride, Owned owned,
                                T* out, int64_t out_stride, int64_t tokens, int64_t width) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= tokens * width) return;
  const int64_t token = i / width, column = i % width, row = ids[token] - owned.begin;
  const bool has = row >= 0 && row < owned.count;
  out[token * out_stride + column] = has ? weight[row * weight_stride + column] : from_float<T>(0.0f);
}

// vectorized
// Rows of whole 16-byte packs (packed.h). A block of 256 threads copies a token's row, two packs per thread
// in flight; the token's id is read once per thread and no division is left. Rows as short as a head's leave
// threads idle.
constexpr int kRowThreads = 256, kPacks = 2;
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    embedding_rows(const int32_t* ids, const T* weight, int64_t weight_stride, Owned owned, T* out,
                   int64_t out_stride, int row_packs) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t token = blockIdx.x, row = ids[token] - owned.begin;
  const bool has = row >= 0 && row < owned.count;
  const T* from = weight + (has ? row : 0) * weight_stride;
  T* to = out + token * out_stride;
  for (int first = threadIdx.x; first < row_packs; first += kPacks * kRowThreads) {
    Pack<T> packs[kPacks];
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int pack = first + j * kRowThreads;
      packs[j] = has && pack < row_packs ? load_pack(from + pack * Pack<T>::kSize) : zero_pack<T>();
    }
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int pack = first + j * kRowThreads;
      if (pack < row_packs) store_pack(to + pack * Pack<T>::kSize, packs[j]);
    }
  }
}

}  // namespace

void embedding_cuda(const OpContext& ctx, const EmbeddingArgs& args) {
  if (args.out.numel() == 0) return;
  with_cuda_type(args.out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(args.out.numel(), kThreads));
    embedding_naive<<<blocks, kThreads, 0, stream_of(ctx)>>>(
        cuda_data<int32_t>(args.ids), cuda_data<const T>(args.weight), args.weight.stride(0),
        Owned{args.row_begin, args.weight.dim(0)}, cuda_data<T>(args.out), args.out.stride(0),
        args.out.dim(0), args.out.dim(1));
  });
  LADDER_CUDA_CHECK(cudaGetLastError());
}

void embedding_cuda_packed(const OpContext& ctx, const EmbeddingArgs& args) {
  if (args.out.numel() == 0) return;
  with_cuda_type(args.out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    launch_kernel(ctx, embedding_rows<T>, static_cast<unsigned>(args.out.dim(0)), kRowThreads, 0,
                  cuda_data<int32_t>(args.ids), cuda_data<const T>(args.weight), args.weight.stride(0),
                  Owned{args.row_begin, args.weight.dim(0)}, cuda_data<T>(args.out), args.out.stride(0),
                  static_cast<int>(args.out.dim(1) / Pack<T>::kSize));
  });
}

bool embedding_is_packed(const EmbeddingArgs& args) {
  return is_packed(args.weight) && is_packed(args.out) && args.out.dim(1) < int64_t{1} << 30;
}

}  // namespace ladder
