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
// Rows of whole 16-byte packs (packed.h), fewer than 2^31 packs in all. A thread copies two packs, which may
// be of different tokens: no thread idles whatever the width, the loads of both ids and then of both packs
// are in flight together, and the divisions that find the tokens come before the wait for the
// previous kernel.
constexpr int kPacks = 2;
template <class T>
__global__ void __launch_bounds__(kThreads)
    embedding_packed(const int32_t* ids, const T* weight, int64_t weight_stride, Owned owned, T* out,
                     int64_t out_stride, uint32_t total, uint32_t row_packs) {
  allow_next_kernel();
  const uint32_t first = blockIdx.x * kPacks * kThreads + threadIdx.x;
  uint32_t token[kPacks];
  int64_t column[kPacks], row[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    token[i] = (first + i * kThreads) / row_packs;
    column[i] = (first + i * kThreads) % row_packs * Pack<T>::kSize;
  }
  wait_for_previous_kernel();
#pragma unroll
  for (int i = 0; i < kPacks; ++i) row[i] = first + i * kThreads < total ? ids[token[i]] - owned.begin : -1;
  Pack<T> packs[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
    packs[i] = row[i] >= 0 && row[i] < owned.count ? load_pack(weight + row[i] * weight_stride + column[i])
                                                   : zero_pack<T>();
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
    if (first + i * kThreads < total) store_pack(out + token[i] * out_stride + column[i], packs[i]);
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
    const auto total = static_cast<uint32_t>(args.out.numel() / Pack<T>::kSize);
    launch_kernel(ctx, embedding_packed<T>, ceil_div<uint32_t>(total, kPacks * kThreads), kThreads, 0,
                  cuda_data<int32_t>(args.ids), cuda_data<const T>(args.weight), args.weight.stride(0),
                  Owned{args.row_begin, args.weight.dim(0)}, cuda_data<T>(args.out), args.out.stride(0),
                  total, static_cast<uint32_t>(args.out.dim(1) / Pack<T>::kSize));
  });
}

bool embedding_is_packed(const EmbeddingArgs& args) {
  return is_packed(args.weight) && is_packed(args.out) && args.out.nbytes() / 16 < int64_t{1} << 31;
}

}  // namespace ladder
