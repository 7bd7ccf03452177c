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

// naive
// A thread moves one element of one token: first all of its keys, then all of its values.
template <class T>
__global__ void store_kv_naive(Store<T> s) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t k_elements = s.heads * s.k.dim, elements = k_elements + s.heads * s.v.dim;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= s.tokens * elements) return;
  const int64_t token = i / elements, slot = s.slots[token];
  if (slot < 0) return;
  const bool is_key = i % elements < k_elements;
  const Side<T>& side = is_key ? s.k : s.v;
  const int64_t element = i % elements - (is_key ? 0 : k_elements);
  const int64_t head = element / side.dim, offset = element % side.dim;
  side.target(slot, s.block_size, head)[offset] = side.source(token, head)[offset];
}

// vectorized
// Everything in whole 16-byte packs. A warp moves a token: the slot is looked up and divided once for all of
// its elements, and each lane has up to four packs of keys and four of values under way before it stores the
// first. Where the heads of a token are adjacent the caller makes one head of them.
template <class T>
__global__ void __launch_bounds__(kThreads) store_kv_vectorized(Store<T> s) {
  constexpr int kSize = Pack<T>::kSize, kBatch = 4;
  allow_next_kernel();
  const int64_t token = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int64_t slot = token < s.tokens ? s.slots[token] : -1;
  wait_for_previous_kernel();
  if (slot < 0) return;
  for (int64_t head = 0; head < s.heads; ++head) {
    const T *k = s.k.source(token, head), *v = s.v.source(token, head);
    T *k_to = s.k.target(slot, s.block_size, head), *v_to = s.v.target(slot, s.block_size, head);
    const int64_t longest = s.k.dim > s.v.dim ? s.k.dim : s.v.dim;
    for (int64_t first = threadIdx.x % kWarp * kSize; first < longest; first += kBatch * kWarp * kSize) {
      Pack<T> keys[kBatch], values[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t at = first + i * kWarp * kSize;
        if (at < s.k.dim) keys[i] = load_pack(k + at);
        if (at < s.v.dim) values[i] = load_pack(v + at);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t at = first + i * kWarp * kSize;
        if (at < s.k.dim) store_pack(k_to + at, keys[i]);
        if (at < s.v.dim) store_pack(v_to + at, values[i]);
      }
    }
  }
}

void check_slots(const KvCacheView& cache) {
  LADDER_CHECK(cache.num_blocks() * cache.block_size() < int64_t{1} << 32,
               "store_kv: a cache of {} blocks of {} slots has more than 2^32", cache.num_blocks(),
               cache.block_size());
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
// keys straight into the cache. A group of neighbouring lanes owns `batch` heads of a token, all of q, of k
// or of v: each lane holds one pack of a head's first half and the pack of partners in its second half, so
// the rotation needs no exchange and the norm's sum is a few shuffles. With many tokens a batch of four keeps
// 128 bytes per lane under way, and the angles, times the weights, are made once for four heads: instructions
// are what bounds it then. With few tokens one head per group spreads the work over the chip. Positions,
// slots, angles and weights are read before the wait for the kernel in front (kv_cache.h).
template <int head_dim, int batch, class T>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_store_kernel(Fused<T> f) {
  constexpr int kSize = Pack<T>::kSize, kHalf = head_dim / 2, kLanes = kHalf / kSize;
  allow_next_kernel();
  const uint32_t group = (blockIdx.x * kThreads + threadIdx.x) / kLanes;
  const int first = threadIdx.x % kLanes * kSize;
  const auto q_groups = static_cast<uint32_t>(f.heads) / batch,
             kv_groups = static_cast<uint32_t>(f.store.heads) / batch;
  const int64_t token = group / (q_groups + 2 * kv_groups);
  const uint32_t in_token = group % (q_groups + 2 * kv_groups);
  const bool inside = token < f.tokens, is_query = in_token < q_groups,
             is_value = in_token >= q_groups + kv_groups;
  const int64_t slot = inside && !is_query && token < f.num_slots ? f.store.slots[token] : -1;
  const int32_t position = inside ? f.positions[token] : 0;
  const T* weight = is_query ? f.q_weight : f.k_weight;

  // y0 = scale (x0 straight[0] - x1 crossed[1]), y1 = scale (x1 straight[1] + x0 crossed[0]), where straight
  // is cosine times weight and crossed sine times weight.
  float straight[2][kSize], crossed[2][kSize];
  auto load_factors = [&] {
    if (!inside || is_value) return;
    const float* angles = f.table + position * f.table_stride + first;
#pragma unroll
    for (int i = 0; i < kSize; i += 4) {
      const Pack<float> cosine = load_pack(angles + i), sine = load_pack(angles + kHalf + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        straight[0][i + j] = straight[1][i + j] = cosine.value[j];
        crossed[0][i + j] = crossed[1][i + j] = sine.value[j];
      }
    }
    if (weight == nullptr) return;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const Pack<T> w = load_pack(weight + part * kHalf + first);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        straight[part][i] *= to_float(w.value[i]);
        crossed[part][i] *= to_float(w.value[i]);
      }
    }
  };
  if constexpr (batch == 1) load_factors();
  wait_for_previous_kernel();
  if (!inside || (!is_query && slot < 0)) return;  // whole groups leave: shuffles stay inside a group

  const T* from;
  T* to;
  int64_t from_stride, to_stride;  // from head to head
  if (is_query) {
    from = to = f.q + token * f.q_token + in_token * batch * f.q_head;
    from_stride = to_stride = f.q_head;
  } else {
    const Side<T>& side = is_value ? f.store.v : f.store.k;
    const uint32_t head = (in_token - q_groups - (is_value ? kv_groups : 0)) * batch;
    from = side.source(token, head);
    to = side.target(slot, f.store.block_size, head);
    from_stride = side.head;
    to_stride = side.cache_head;
  }
  Pack<T> packs[batch][2];
#pragma unroll
  for (int i = 0; i < batch; ++i) {
    packs[i][0] = load_pack(from + i * from_stride + first);
    packs[i][1] = load_pack(from + i * from_stride + kHalf + first);
  }
  if constexpr (batch > 1) load_factors();
#pragma unroll
  for (int i = 0; i < batch; ++i) {
    if (!is_value) {
      float x[2][kSize];
      float sum = 0;
#pragma unroll
      for (int part = 0; part < 2; ++part)
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          x[part][j] = to_float(packs[i][part].value[j]);
          sum = fmaf(x[part][j], x[part][j], sum);
        }
      float scale = 1;
      if (weight != nullptr) {
        const unsigned members = ((1u << kLanes) - 1) << (threadIdx.x % kWarp / kLanes * kLanes);
#pragma unroll
        for (int offset = kLanes / 2; offset > 0; offset /= 2)
          sum += __shfl_xor_sync(members, sum, offset, kLanes);
        scale = rsqrtf(fmaf(sum, 1.0f / head_dim, f.eps));
      }
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const float y0 = fmaf(x[0][j], straight[0][j], -(x[1][j] * crossed[1][j]));
        const float y1 = fmaf(x[1][j], straight[1][j], x[0][j] * crossed[0][j]);
        packs[i][0].value[j] = from_float<T>(y0 * scale);
        packs[i][1].value[j] = from_float<T>(y1 * scale);
      }
    }
    store_pack(to + i * to_stride + first, packs[i][0]);
    store_pack(to + i * to_stride + kHalf + first, packs[i][1]);
  }
}

}  // namespace

void store_kv_cuda(const OpContext& ctx, const StoreKvArgs& args) {
  const int64_t elements = args.slot_mapping.dim(0) * args.k.dim(1) * (args.k.dim(2) + args.v.dim(2));
  if (elements == 0) return;
  check_slots(args.cache);
  with_cuda_type(args.k.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(elements, kThreads));
    launch_kernel(ctx, store_kv_naive<T>, blocks, kThreads, 0, store<T>(args));
  });
}
void store_kv_cuda_packed(const OpContext& ctx, const StoreKvArgs& args) {
  if (args.slot_mapping.dim(0) == 0) return;
  check_slots(args.cache);
  with_cuda_type(args.k.dtype(), [&](auto tag) {
    using T = decltype(tag);
    Store<T> s = store<T>(args);
    auto adjacent = [](const Side<T>& side) { return side.head == side.dim && side.cache_head == side.dim; };
    if (adjacent(s.k) && adjacent(s.v)) {
      s.k.dim *= s.heads;
      s.v.dim *= s.heads;
      s.heads = 1;
    }
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(s.tokens, kThreads / kWarp));
    launch_kernel(ctx, store_kv_vectorized<T>, blocks, kThreads, 0, s);
  });
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
    auto launch = [&]<int head_dim, int batch>() {
      const int64_t groups = q.dim(0) * ((q.dim(1) + 2 * args.k.dim(1)) / batch);
      const int64_t threads = groups * (head_dim / 2 / Pack<T>::kSize);
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(threads, kThreads));
      launch_kernel(ctx, qk_norm_rope_store_kernel<head_dim, batch, T>, blocks, kThreads, 0, f);
    };
    auto launch_dim = [&]<int head_dim>() {
      constexpr int kBatch = 4;
      // Whether batches fit, and still give every multiprocessor a few blocks.
      const int64_t threads = q.numel() / (2 * Pack<T>::kSize * kBatch);
      if (q.dim(1) % kBatch == 0 && args.k.dim(1) % kBatch == 0 &&
          threads > 2 * kThreads * ctx.cuda->num_multiprocessors())
        launch.template operator()<head_dim, kBatch>();
      else
        launch.template operator()<head_dim, 1>();
    };
    if (q.dim(2) == 64)
      launch_dim.template operator()<64>();
    else if (q.dim(2) == 128)
      launch_dim.template operator()<128>();
    else if constexpr (sizeof(T) == 2)
      launch_dim.template operator()<256>();
  });
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
