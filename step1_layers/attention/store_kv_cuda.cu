#include "step1_layers/attention/store_kv_cuda.h"

#include <algorithm>

#include "step1_layers/attention/store_kv_cuda.cuh"
#include "step1_layers/core/packed.h"

namespace ladder {

namespace {

constexpr int kThreads = 128;

// naive
// Any shape. A thread moves one element of one token: first all of its keys, then all of its values. A warp
// moves 64 bytes of bf16, and every thread makes an index of several divisions for its two.
//
// vectorized
// Everything in whole 16-byte packs, fewer than 2^32 of them. A thread moves one pack of keys and the pack of
// values at the same place, so an index is made for 32 bytes. Few bytes per thread and small blocks: what is
// in flight at one time then lies close together in memory, which is faster than many bytes per thread. The
// divisions that find token and slot come before the wait for the previous kernel (kv_cache.h), and only the
// move itself after it. Where the heads of a token are adjacent the caller makes one head of them.
}  // namespace

// >>> task 1.7.store.cuda: keys and values to their slots on the GPU, element by element and in packs
namespace {

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

template <class T>
__global__ void __launch_bounds__(kThreads) store_kv_vectorized(Store<T> s, uint32_t head_packs) {
  allow_next_kernel();
  const uint32_t pack = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t row = pack / head_packs, heads = static_cast<uint32_t>(s.heads);
  const int64_t at = pack % head_packs * Pack<T>::kSize;
  const uint32_t token = heads == 1 ? row : row / heads, head = heads == 1 ? 0 : row % heads;
  const int64_t slot = token < s.tokens ? s.slots[token] : -1;
  const T *k = s.k.source(token, head) + at, *v = s.v.source(token, head) + at;
  T *k_to = s.k.target(slot, s.block_size, head) + at, *v_to = s.v.target(slot, s.block_size, head) + at;
  wait_for_previous_kernel();
  if (slot < 0) return;
  Pack<T> keys, values;
  if (at < s.k.dim) keys = load_pack(k);
  if (at < s.v.dim) values = load_pack(v);
  if (at < s.k.dim) store_pack(k_to, keys);
  if (at < s.v.dim) store_pack(v_to, values);
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
  if (args.slot_mapping.dim(0) == 0 || args.k.numel() + args.v.numel() == 0) return;
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
    const int64_t head_packs = std::max(s.k.dim, s.v.dim) / Pack<T>::kSize;
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(s.tokens * s.heads * head_packs, kThreads));
    launch_kernel(ctx, store_kv_vectorized<T>, blocks, kThreads, 0, s, static_cast<uint32_t>(head_packs));
  });
}
// <<< task 1.7.store.cuda

bool store_kv_is_packed(const StoreKvArgs& args) {
  const int64_t elements = args.k.numel() + args.v.numel();
  return is_packed(args.k) && is_packed(args.v) && is_packed(args.cache.k) && is_packed(args.cache.v) &&
         elements < int64_t{1} << 32;
}

}  // namespace ladder
