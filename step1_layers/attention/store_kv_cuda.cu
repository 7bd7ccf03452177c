#include "step1_layers/attention/store_kv_cuda.h"
#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/error.h"
#include "step1_layers/core/packed.h"

namespace ladder {

namespace {

constexpr int kThreads = 128;

// One side, keys or values, of a store.
template <class T>
struct Side {
  const T* from;
  T* cache;
  int64_t token, head, cache_block, cache_slot, cache_head, dim;

  __device__ const T* source(int64_t t, int64_t h) const { return from + t * token + h * head; }
  __device__ T* target(int64_t slot, int64_t block_size, int64_t h) const {
    // Divided in 32 bits, which takes a fifth of the instructions.
    const auto s = static_cast<uint32_t>(slot), size = static_cast<uint32_t>(block_size);
    return cache + s / size * cache_block + s % size * cache_slot + h * cache_head;
  }
};

template <class T>
Side<T> side(const Tensor& from, const Tensor& cache) {
  return {.from = cuda_data<T>(from),
          .cache = cuda_data<T>(cache),
          .token = from.stride(0),
          .head = from.stride(1),
          .cache_block = cache.stride(0),
          .cache_slot = cache.stride(1),
          .cache_head = cache.stride(2),
          .dim = from.dim(2)};
}

template <class T>
struct Store {
  Side<T> k, v;
  const int64_t* slots;
  int64_t tokens, heads, block_size;
};

template <class T>
Store<T> store(const StoreKvArgs& args) {
  return {.k = side<T>(args.k, args.cache.k),
          .v = side<T>(args.v, args.cache.v),
          .slots = cuda_data<int64_t>(args.slot_mapping),
          .tokens = args.slot_mapping.dim(0),
          .heads = args.k.dim(1),
          .block_size = args.cache.block_size()};
}

// naive (step 1) and vectorized (step = a pack's elements)
// A thread moves `step` adjacent elements of one token: first all of its keys, then all of its values. In
// steps of a pack every access is 16 bytes and the divisions are paid once for all of them.
template <int step, class T>
__global__ void store_kv_kernel(Store<T> s) {
  const int64_t k_steps = s.heads * s.k.dim / step, steps = k_steps + s.heads * s.v.dim / step;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= s.tokens * steps) return;
  const int64_t token = step == 1 ? i / steps : static_cast<uint32_t>(i) / static_cast<uint32_t>(steps);
  const int64_t slot = s.slots[token];
  if (slot < 0) return;
  const auto in_token = static_cast<uint32_t>(i - token * steps);
  const bool is_key = in_token < k_steps;
  const Side<T>& side = is_key ? s.k : s.v;
  const uint32_t element = (in_token - (is_key ? 0 : static_cast<uint32_t>(k_steps))) * step;
  const uint32_t head = element / static_cast<uint32_t>(side.dim),
                 offset = element % static_cast<uint32_t>(side.dim);
  const T* from = side.source(token, head) + offset;
  T* to = side.target(slot, s.block_size, head) + offset;
  if constexpr (step == 1)
    *to = *from;
  else
    store_pack(to, load_pack(from));
}

void check_slots(const KvCacheView& cache) {
  LADDER_CHECK(cache.num_blocks() * cache.block_size() < int64_t{1} << 32,
               "store_kv: a cache of {} blocks of {} slots has more than 2^32", cache.num_blocks(),
               cache.block_size());
}

template <bool packed>
void launch_store(const OpContext& ctx, const StoreKvArgs& args) {
  const int64_t per_token = args.k.dim(1) * (args.k.dim(2) + args.v.dim(2));
  if (args.slot_mapping.dim(0) * per_token == 0) return;
  check_slots(args.cache);
  with_cuda_type(args.k.dtype(), [&](auto tag) {
    using T = decltype(tag);
    constexpr int step = packed ? Pack<T>::kSize : 1;
    const int64_t threads = args.slot_mapping.dim(0) * (per_token / step);
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(threads, kThreads));
    store_kv_kernel<step><<<blocks, kThreads, 0, stream_of(ctx)>>>(store<T>(args));
  });
  LADDER_CUDA_CHECK(cudaGetLastError());
}

template <class T>
struct Fused {
  Store<T> store;  // of `tokens` rows; those past num_slots are padding
  T* q;
  int64_t q_token, q_head, tokens, heads, num_slots;
  const T *q_weight, *k_weight;  // nullptr: no norm
  const int32_t* positions;
  const float* table;
  int64_t table_stride;
  float eps;
};

// fused
// head_dim = rotary_dim = v_dim of 64, 128 or 256, everything in whole 16-byte packs. The rung below runs
// four kernels and takes q and k through memory three times; here every head is read once and written once,
// keys straight into the cache. A group of `lanes` neighbouring lanes owns a head: each holds one pack of its
// first half and the pack of partners in its second half, so the rotation needs no exchange and the norm's
// sum is a few shuffles. Values ride along as heads that are only copied.
template <int head_dim, class T>
__global__ void qk_norm_rope_store_kernel(Fused<T> f) {
  constexpr int kSize = Pack<T>::kSize, kHalf = head_dim / 2, kLanes = kHalf / kSize;
  const uint32_t group = (blockIdx.x * kThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int64_t kv_heads = f.store.heads;
  const auto per_token = static_cast<uint32_t>(f.heads + 2 * kv_heads);
  const int64_t token = group / per_token;
  int64_t head = group % per_token;
  if (token >= f.tokens) return;  // whole groups leave: shuffles stay inside a group

  const bool is_query = head < f.heads;
  const T* from;
  T* to;
  const T* weight = nullptr;
  bool rotates = true;
  if (is_query) {
    from = to = f.q + token * f.q_token + head * f.q_head;
    weight = f.q_weight;
  } else {
    head -= f.heads;
    rotates = head < kv_heads;
    const Side<T>& side = rotates ? f.store.k : f.store.v;
    if (!rotates) head -= kv_heads;
    const int64_t slot = token < f.num_slots ? f.store.slots[token] : -1;
    if (slot < 0) return;
    from = side.source(token, head);
    to = side.target(slot, f.store.block_size, head);
    if (rotates) weight = f.k_weight;
  }

  const int first = lane * kSize;
  Pack<T> packs[2] = {load_pack(from + first), load_pack(from + kHalf + first)};
  if (rotates) {
    float x[2][kSize];
    float sum = 0;
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        x[part][i] = to_float(packs[part].value[i]);
        sum += x[part][i] * x[part][i];
      }
    if (weight != nullptr) {
      const unsigned members = ((1u << kLanes) - 1) << (threadIdx.x % kWarp / kLanes * kLanes);
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(members, sum, offset, kLanes);
      const float scale = rsqrtf(sum / head_dim + f.eps);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const Pack<T> w = load_pack(weight + part * kHalf + first);
#pragma unroll
        for (int i = 0; i < kSize; ++i) x[part][i] = x[part][i] * scale * to_float(w.value[i]);
      }
    }
    const float* cosines = f.table + f.positions[token] * f.table_stride + first;
#pragma unroll
    for (int i = 0; i < kSize; i += 4) {
      const Pack<float> cosine = load_pack(cosines + i), sine = load_pack(cosines + kHalf + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float a = x[0][i + j], b = x[1][i + j];
        packs[0].value[i + j] = from_float<T>(a * cosine.value[j] - b * sine.value[j]);
        packs[1].value[i + j] = from_float<T>(b * cosine.value[j] + a * sine.value[j]);
      }
    }
  }
  store_pack(to + first, packs[0]);
  store_pack(to + kHalf + first, packs[1]);
}

}  // namespace

void store_kv_cuda(const OpContext& ctx, const StoreKvArgs& args) {
  launch_store<false>(ctx, args);
}
void store_kv_cuda_packed(const OpContext& ctx, const StoreKvArgs& args) {
  launch_store<true>(ctx, args);
}
bool store_kv_is_packed(const StoreKvArgs& args) {
  const int64_t elements = args.k.numel() + args.v.numel();
  return is_packed(args.k) && is_packed(args.v) && is_packed(args.cache.k) && is_packed(args.cache.v) &&
         elements < int64_t{1} << 32;
}

void qk_norm_rope_store_cuda_fused(const OpContext& ctx, const QkNormRopeStoreArgs& args) {
  const Tensor& q = args.q;
  if (q.dim(0) == 0) return;
  check_slots(args.cache);
  with_cuda_type(q.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const Fused<T> f{.store = store<T>({args.k, args.v, args.slot_mapping, args.cache}),
                     .q = cuda_data<T>(q),
                     .q_token = q.stride(0),
                     .q_head = q.stride(1),
                     .tokens = q.dim(0),
                     .heads = q.dim(1),
                     .num_slots = args.slot_mapping.dim(0),
                     .q_weight = cuda_data<T>(args.q_norm_weight),
                     .k_weight = cuda_data<T>(args.k_norm_weight),
                     .positions = cuda_data<int32_t>(args.positions),
                     .table = cuda_data<float>(args.table),
                     .table_stride = args.table.stride(0),
                     .eps = static_cast<float>(args.eps)};
    const int64_t heads = q.dim(0) * (q.dim(1) + 2 * args.k.dim(1));
    const int64_t threads = heads * (q.dim(2) / 2 / Pack<T>::kSize);
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(threads, kThreads));
    if (q.dim(2) == 64)
      qk_norm_rope_store_kernel<64><<<blocks, kThreads, 0, stream_of(ctx)>>>(f);
    else if (q.dim(2) == 128)
      qk_norm_rope_store_kernel<128><<<blocks, kThreads, 0, stream_of(ctx)>>>(f);
    else if constexpr (sizeof(T) == 2)
      qk_norm_rope_store_kernel<256><<<blocks, kThreads, 0, stream_of(ctx)>>>(f);
  });
  LADDER_CUDA_CHECK(cudaGetLastError());
}

bool qk_norm_rope_store_can_fuse(const QkNormRopeStoreArgs& args) {
  const int64_t head_dim = args.q.dim(2);
  const int64_t lanes = head_dim / 2 * dtype_size(args.q.dtype()) / 16;
  auto packed_or_absent = [](const Tensor& weight) { return !weight.defined() || is_packed(weight); };
  return (head_dim == 64 || head_dim == 128 || head_dim == 256) && lanes < kWarp &&
         args.q.numel() < int64_t{1} << 31 && args.table.dim(1) == head_dim && args.v.dim(2) == head_dim &&
         is_packed(args.q) && is_packed(args.table) &&
         store_kv_is_packed({args.k, args.v, args.slot_mapping, args.cache}) &&
         packed_or_absent(args.q_norm_weight) && packed_or_absent(args.k_norm_weight);
}

}  // namespace ladder
