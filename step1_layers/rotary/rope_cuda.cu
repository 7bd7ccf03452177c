#include "step1_layers/core/packed.h"
#include "step1_layers/core/packs.cuh"
#include "step1_layers/rotary/rope_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 128;

template <class T>
struct Rotation {
  const int32_t* positions;
  const float* table;
  int64_t table_stride, half;
  T *q, *k;
  int64_t tokens, heads, kv_heads;
  int64_t q_token, q_head, k_token, k_head;

  // Head h of a token; the key heads follow the query heads.
  __device__ T* head(int64_t token, int64_t h) const {
    return h < heads ? q + token * q_token + h * q_head : k + token * k_token + (h - heads) * k_head;
  }
};

template <class T>
Rotation<T> rotation(const RotaryEmbeddingArgs& args) {
  const Tensor &q = args.q, &k = args.k, &table = args.table;
  return {.positions = cuda_data<int32_t>(args.positions),
          .table = cuda_data<float>(table),
          .table_stride = table.stride(0),
          .half = table.dim(1) / 2,
          .q = cuda_data<T>(q),
          .k = cuda_data<T>(k),
          .tokens = q.dim(0),
          .heads = q.dim(1),
          .kv_heads = k.dim(1),
          .q_token = q.stride(0),
          .q_head = q.stride(1),
          .k_token = k.stride(0),
          .k_head = k.stride(1)};
}

// naive
// Any shape. A thread turns one pair.
template <class T>
__global__ void rotate_naive(Rotation<T> r) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = i / r.half, pair = i % r.half, all_heads = r.heads + r.kv_heads;
  const int64_t token = row / all_heads;
  if (token >= r.tokens) return;
  T* x = r.head(token, row % all_heads);
  const float* angles = r.table + r.positions[token] * r.table_stride;
  const float cosine = angles[pair], sine = angles[r.half + pair];
  const float x1 = to_float(x[pair]), x2 = to_float(x[pair + r.half]);
  x[pair] = from_float<T>(x1 * cosine - x2 * sine);
  x[pair + r.half] = from_float<T>(x2 * cosine + x1 * sine);
}

// vectorized
// Heads and table rows of whole 16-byte packs, the rotated half a whole number of packs. A thread turns the
// pairs of one pack (eight of bf16): an eighth of the instructions, and the divisions that find token and
// head are paid once for sixteen values, in 32 bits. All of that, positions and angles come before the wait
// for the previous kernel (kv_cache.h), so that only q and k are left.
template <class T>
__global__ void __launch_bounds__(kThreads) rotate_packed(Rotation<T> r, uint32_t total) {
  constexpr int kSize = Pack<T>::kSize;
  allow_next_kernel();
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  const auto half_packs = static_cast<uint32_t>(r.half / kSize);
  const auto all_heads = static_cast<uint32_t>(r.heads + r.kv_heads);
  const uint32_t row = i / half_packs, first = i % half_packs * kSize;
  const uint32_t token = row / all_heads;
  T* x = r.head(token, row % all_heads) + first;
  const bool inside = i < total;
  const float* cosines = r.table + (inside ? r.positions[token] : 0) * r.table_stride + first;
  const float* sines = cosines + r.half;
  float cosine[kSize], sine[kSize];
#pragma unroll
  for (int part = 0; part < kSize; part += 4) {
    *reinterpret_cast<float4*>(cosine + part) = *reinterpret_cast<const float4*>(cosines + part);
    *reinterpret_cast<float4*>(sine + part) = *reinterpret_cast<const float4*>(sines + part);
  }
  wait_for_previous_kernel();
  if (!inside) return;
  float x1[kSize], x2[kSize], y[kSize];
  const Pack<T> pack1 = load_pack_once(x), pack2 = load_pack_once(x + r.half);
  to_floats(pack1, x1);
  to_floats(pack2, x2);
#pragma unroll
  for (int k = 0; k < kSize; ++k) y[k] = x1[k] * cosine[k] - x2[k] * sine[k];
  store_pack_once(x, from_floats<T>(y));
#pragma unroll
  for (int k = 0; k < kSize; ++k) y[k] = x2[k] * cosine[k] + x1[k] * sine[k];
  store_pack_once(x + r.half, from_floats<T>(y));
}

int64_t pairs(const RotaryEmbeddingArgs& args) {
  return args.q.dim(0) * (args.q.dim(1) + args.k.dim(1)) * (args.table.dim(1) / 2);
}

}  // namespace

void rotary_embedding_cuda(const OpContext& ctx, const RotaryEmbeddingArgs& args) {
  if (pairs(args) == 0) return;
  with_cuda_type(args.q.dtype(), [&](auto tag) {
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(pairs(args), kThreads));
    rotate_naive<<<blocks, kThreads, 0, stream_of(ctx)>>>(rotation<decltype(tag)>(args));
  });
  LADDER_CUDA_CHECK(cudaGetLastError());
}

void rotary_embedding_cuda_packed(const OpContext& ctx, const RotaryEmbeddingArgs& args) {
  if (pairs(args) == 0) return;
  with_cuda_type(args.q.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto total = static_cast<uint32_t>(pairs(args) / Pack<T>::kSize);
    launch_kernel(ctx, rotate_packed<T>, ceil_div<uint32_t>(total, kThreads), kThreads, 0, rotation<T>(args),
                  total);
  });
}

bool rotary_embedding_is_packed(const RotaryEmbeddingArgs& args) {
  const int64_t half_bytes = args.table.dim(1) / 2 * dtype_size(args.q.dtype());
  return is_packed(args.q) && is_packed(args.k) && is_packed(args.table) && half_bytes % 16 == 0 &&
         pairs(args) < int64_t{1} << 31;
}

}  // namespace ladder
