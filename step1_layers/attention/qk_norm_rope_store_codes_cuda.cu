#include "step1_layers/attention/norm_rotate_cuda.cuh"
#include "step1_layers/attention/store_kv_codes_cuda.cuh"
#include "step1_layers/attention/store_kv_codes_cuda.h"
#include "step1_layers/core/packed.h"

namespace ladder {

namespace {

constexpr int kThreads = 128;

template <class T>
struct FusedCodes {
  StoreCodes<T> store;
  T* q;
  int64_t q_token, q_head, tokens, heads;
  const T *q_weight, *k_weight;  // nullptr: no norm
  const int32_t* positions;
  const float* table;
  int64_t table_stride;
  float eps;
};

// fused
// As qk_norm_rope_store_cuda.cu, where a group of neighbouring lanes has one head in its registers: queries go back to their
// place, and of keys and values the lanes find the lowest and the highest number together, which makes their codes.
template <int head_dim, class T>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_store_codes_kernel(FusedCodes<T> f) {
  constexpr int kSize = Pack<T>::kSize, kHalf = head_dim / 2, kLanes = NormRotate<head_dim, T>::kLanes;
  allow_next_kernel();
  const uint32_t group = (blockIdx.x * kThreads + threadIdx.x) / kLanes;
  const int first = threadIdx.x % kLanes * kSize;
  const auto heads = static_cast<uint32_t>(f.heads), kv_heads = static_cast<uint32_t>(f.store.heads);
  const uint32_t token = group / (heads + 2 * kv_heads), in_token = group % (heads + 2 * kv_heads);
  const bool inside = token < f.tokens, is_query = in_token < heads, is_value = in_token >= heads + kv_heads;
  const int64_t slot = inside && !is_query && token < f.store.tokens ? f.store.slots[token] : -1;
  const int32_t position = inside ? f.positions[token] : 0;
  const bool stores = inside && (is_query || slot >= 0);
  const T* weight = is_query ? f.q_weight : f.k_weight;

  NormRotate<head_dim, T> rotation;
  if (!is_value)
    rotation.load(f.table + position * f.table_stride + first, weight == nullptr ? nullptr : weight + first);

  const CodesSide<T>& side = is_value ? f.store.v : f.store.k;
  const uint32_t head = in_token - (is_query ? 0 : heads) - (is_value ? kv_heads : 0);
  const T* from = (is_query ? f.q + token * f.q_token + head * f.q_head : side.source(token, head)) + first;
  wait_for_previous_kernel();
  Pack<T> packs[2] = {zero_pack<T>(), zero_pack<T>()};
  if (stores) {
    packs[0] = load_pack_once(from);
    packs[1] = load_pack_once(from + kHalf);
  }
  rotation.apply(packs, stores && !is_value, weight != nullptr, f.eps);

  float x[2][kSize], low = INFINITY, high = -INFINITY;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    to_floats(packs[part], x[part]);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      x[part][i] = kept_number(x[part][i]);
      low = fminf(low, x[part][i]);
      high = fmaxf(high, x[part][i]);
    }
  }
  low = -warp_max<kLanes>(-low);
  high = warp_max<kLanes>(high);
  if (!stores) return;
  if (is_query) {
    T* to = const_cast<T*>(from);
    store_pack_once(to, packs[0]);
    store_pack_once(to + kHalf, packs[1]);
    return;
  }
  const KvCacheDType kept_as = f.store.kept_as;
  const KvScale scale = kv_scale(kept_as, low, high);
  const bool has_nibbles = kept_as == KvCacheDType::int4;
  uint8_t* codes = side.codes_of(slot, f.store.block_size, head) + (has_nibbles ? first / 2 : first);
#pragma unroll
  for (int part = 0; part < 2; ++part, codes += has_nibbles ? kHalf / 2 : kHalf) {
    uint32_t words[kSize / 4] = {};
    if (has_nibbles) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) words[0] |= kv_code(kept_as, x[part][i], scale) << 4 * i;
      if constexpr (kSize == 8)
        *reinterpret_cast<uint32_t*>(codes) = words[0];
      else
        *reinterpret_cast<uint16_t*>(codes) = static_cast<uint16_t>(words[0]);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) words[i / 4] |= kv_code(kept_as, x[part][i], scale) << i % 4 * 8;
      if constexpr (kSize == 8)
        *reinterpret_cast<uint2*>(codes) = {words[0], words[1]};
      else
        *reinterpret_cast<uint32_t*>(codes) = words[0];
    }
  }
  if (threadIdx.x % kLanes == 0) *side.scales_of(slot, f.store.heads, head) = {scale.scale, scale.lowest};
}

}  // namespace

void qk_norm_rope_store_codes_cuda(const OpContext& ctx, const QkNormRopeStoreArgs& args) {
  const Tensor& q = args.q;
  if (q.dim(0) == 0) return;
  check_slots(args.cache);
  with_cuda_type(q.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const FusedCodes<T> f{.store = store_codes<T>({args.k, args.v, args.slot_mapping, args.cache}),
                          .q = cuda_data<T>(q),
                          .q_token = q.stride(0),
                          .q_head = q.stride(1),
                          .tokens = q.dim(0),
                          .heads = q.dim(1),
                          .q_weight = cuda_data<T>(args.q_norm_weight),
                          .k_weight = cuda_data<T>(args.k_norm_weight),
                          .positions = cuda_data<int32_t>(args.positions),
                          .table = cuda_data<float>(args.table),
                          .table_stride = args.table.stride(0),
                          .eps = static_cast<float>(args.eps)};
    const auto launch = [&]<int head_dim>() {
      const int64_t threads = q.dim(0) * (q.dim(1) + 2 * args.k.dim(1)) * (head_dim / 2 / Pack<T>::kSize);
      launch_kernel(ctx, qk_norm_rope_store_codes_kernel<head_dim, T>,
                    static_cast<unsigned>(ceil_div<int64_t>(threads, kThreads)), kThreads, 0, f);
    };
    if (q.dim(2) == 64)
      launch.template operator()<64>();
    else if (q.dim(2) == 128)
      launch.template operator()<128>();
    else if constexpr (sizeof(T) == 2)
      launch.template operator()<256>();
  });
}

bool qk_norm_rope_store_codes_can_fuse(const QkNormRopeStoreArgs& args) {
  const int64_t head_dim = args.q.dim(2), lanes = head_dim / 2 * dtype_size(args.q.dtype()) / 16;
  const auto packed_or_absent = [](const Tensor& weight) { return !weight.defined() || is_packed(weight); };
  return (head_dim == 64 || head_dim == 128 || head_dim == 256) && lanes < kWarp &&
         args.q.numel() < int64_t{1} << 31 && args.table.dim(1) == head_dim && args.v.dim(2) == head_dim &&
         is_packed(args.q) && is_packed(args.k) && is_packed(args.v) && is_packed(args.table) &&
         is_packed(args.cache.k) && is_packed(args.cache.v) && packed_or_absent(args.q_norm_weight) &&
         packed_or_absent(args.k_norm_weight);
}

}  // namespace ladder
