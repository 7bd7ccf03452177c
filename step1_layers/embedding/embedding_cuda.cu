#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/packed.h"
#include "step1_layers/embedding/embedding_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 128;

// naive (step 1) and vectorized (step = a pack's elements)
// A thread copies `step` adjacent elements of one token's row. In steps of a pack every access is 16 bytes
// and the division that finds the token is paid once for all of them.
template <int step, class T>
__global__ void embedding_kernel(const int32_t* ids, const T* weight, int64_t weight_stride,
                                 int64_t row_begin, int64_t rows, T* out, int64_t out_stride, int64_t tokens,
                                 int64_t width) {
  const int64_t steps = width / step;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= tokens * steps) return;
  // 2^32 packs would be 64 GB: they are divided in 32 bits, which takes a fifth of the instructions.
  const int64_t token = step == 1 ? i / steps : static_cast<uint32_t>(i) / static_cast<uint32_t>(steps);
  const int64_t column = (i - token * steps) * step, row = ids[token] - row_begin;
  const bool owned = row >= 0 && row < rows;
  const T* from = weight + row * weight_stride + column;
  T* to = out + token * out_stride + column;
  if constexpr (step == 1)
    *to = owned ? *from : from_float<T>(0.0f);
  else
    store_pack(to, owned ? load_pack(from) : zero_pack<T>());
}

template <bool packed>
void launch(const OpContext& ctx, const EmbeddingArgs& args) {
  if (args.out.numel() == 0) return;
  with_cuda_type(args.out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    constexpr int step = packed ? Pack<T>::kSize : 1;
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(args.out.numel() / step, kThreads));
    embedding_kernel<step><<<blocks, kThreads, 0, stream_of(ctx)>>>(
        cuda_data<int32_t>(args.ids), cuda_data<const T>(args.weight), args.weight.stride(0), args.row_begin,
        args.weight.dim(0), cuda_data<T>(args.out), args.out.stride(0), args.out.dim(0), args.out.dim(1));
  });
  LADDER_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void embedding_cuda(const OpContext& ctx, const EmbeddingArgs& args) {
  launch<false>(ctx, args);
}
void embedding_cuda_packed(const OpContext& ctx, const EmbeddingArgs& args) {
  launch<true>(ctx, args);
}
bool embedding_is_packed(const EmbeddingArgs& args) {
  return is_packed(args.weight) && is_packed(args.out) && args.out.nbytes() / 16 < int64_t{1} << 32;
}

}  // namespace ladder
