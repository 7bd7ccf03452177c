#include "step1_layers/attention/qk_norm_rope_store.h"

#include <cstring>
#include <vector>

#include "step1_layers/attention/store_head_codes.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/core/simd_rungs.h"
#include "step1_layers/norm/rms_norm.h"
#include "step1_layers/rotary/rope.h"
#include "step1_layers/rotary/rope_simd.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/attention/qk_norm_rope_store_cuda.h"
#endif

namespace ladder {

namespace {

void qk_norm_rope_store_sequence(const OpContext& ctx, const QkNormRopeStoreArgs& args) {
  if (args.q_norm_weight.defined()) rms_norm(ctx, args.q, args.q_norm_weight, args.eps, args.q);
  if (args.k_norm_weight.defined()) rms_norm(ctx, args.k, args.k_norm_weight, args.eps, args.k);
  rotary_embedding(ctx, args.positions, args.q, args.k, args.table);
  store_kv(ctx, args.k, args.v, args.slot_mapping, args.cache);
}

template <template <class> class Kernels>
void qk_norm_rope_store_fused(const OpContext&, const QkNormRopeStoreArgs& args) {
  const Tensor &q = args.q, &k = args.k, &v = args.v, &table = args.table;
  const Tensor &k_cache = args.cache.k, &v_cache = args.cache.v;
  const int64_t half = table.dim(1) / 2, head_dim = q.dim(2), v_dim = v.dim(2);
  const int64_t block_size = args.cache.block_size();
  const auto eps = static_cast<float>(args.eps);
  const int32_t* positions = args.positions.data<int32_t>();
  const int64_t* slots = args.slot_mapping.data<int64_t>();
  const int64_t per_token = (q.dim(1) + k.dim(1)) * head_dim;
  with_float_type(q.dtype(), "qk_norm_rope_store", [&](auto tag) {
    using T = decltype(tag);
    const T* q_weight = args.q_norm_weight.defined() ? args.q_norm_weight.data<T>() : nullptr;
    const T* k_weight = args.k_norm_weight.defined() ? args.k_norm_weight.data<T>() : nullptr;
    parallel_for(q.dim(0), 16384 / std::max<int64_t>(per_token, 1) + 1, [&](int64_t begin, int64_t end) {
      std::vector<float> values;
      for (int64_t token = begin; token < end; ++token) {
        const float* angles = table.data<float>() + positions[token] * table.stride(0);
        for (int64_t head = 0; head < q.dim(1); ++head) {
          T* x = q.data<T>() + token * q.stride(0) + head * q.stride(1);
          Kernels<T>::norm_rotate(x, q_weight, eps, angles, half, head_dim, x);
        }
        const int64_t slot = token < args.slot_mapping.dim(0) ? slots[token] : -1;
        if (slot < 0) continue;
        const int64_t block = slot / block_size, offset = slot % block_size;
        if (args.cache.kept_as != KvCacheDType::automatic) {
          for (int64_t head = 0; head < k.dim(1); ++head) {
            T* x = k.data<T>() + token * k.stride(0) + head * k.stride(1);
            Kernels<T>::norm_rotate(x, k_weight, eps, angles, half, head_dim, x);
            store_head_codes(args.cache, k_cache, args.cache.k_scales, slot, head, x, head_dim, values);
            store_head_codes(args.cache, v_cache, args.cache.v_scales, slot, head,
                             v.data<T>() + token * v.stride(0) + head * v.stride(1), v_dim, values);
          }
          continue;
        }
        T* k_out = k_cache.data<T>() + block * k_cache.stride(0) + offset * k_cache.stride(1);
        T* v_out = v_cache.data<T>() + block * v_cache.stride(0) + offset * v_cache.stride(1);
        for (int64_t head = 0; head < k.dim(1); ++head) {
          const T* x = k.data<T>() + token * k.stride(0) + head * k.stride(1);
          Kernels<T>::norm_rotate(x, k_weight, eps, angles, half, head_dim, k_out + head * k_cache.stride(2));
          std::memcpy(v_out + head * v_cache.stride(2),
                      v.data<T>() + token * v.stride(0) + head * v.stride(1),
                      static_cast<size_t>(v_dim) * sizeof(T));
        }
      }
    });
  });
}

constexpr Variant<QkNormRopeStoreArgs> kVariants[] = {
    {.name = "sequence",
     .idea = "rms_norm, rotary_embedding and store_kv, one after the other",
     .run = qk_norm_rope_store_sequence},
    LADDER_SIMD_RUNGS(
        qk_norm_rope_store_fused, RotaryKernels,
        "every head read and written once, keys straight into the cache; tokens split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "sequence",
     .device = DeviceType::cuda,
     .idea = "rms_norm, rotary_embedding and store_kv, one after the other",
     .run = qk_norm_rope_store_sequence},
    {.name = "fused",
     .device = DeviceType::cuda,
     .idea = "one kernel: every head read and written once, keys straight into the cache",
     .supports = qk_norm_rope_store_can_fuse,
     .run = qk_norm_rope_store_cuda_fused},
#endif
};

}  // namespace

std::span<const Variant<QkNormRopeStoreArgs>> qk_norm_rope_store_variants() {
  return kVariants;
}

void check_qk_norm_rope_store(const QkNormRopeStoreArgs& args, std::string_view op) {
  check_rotary_embedding({args.positions, args.q, args.k, args.table}, op);
  check_store_kv({args.k, args.v, args.slot_mapping, args.cache}, op);
  for (const Tensor& weight : {args.q_norm_weight, args.k_norm_weight}) {
    if (!weight.defined()) continue;
    expect_shape(weight, {args.q.dim(2)}, op);
    expect_dtype(weight, args.q.dtype(), op);
  }
}

void qk_norm_rope_store(const OpContext& ctx, const QkNormRopeStoreArgs& args) {
  constexpr std::string_view op = "qk_norm_rope_store";
  check_qk_norm_rope_store(args, op);
  run_variant<QkNormRopeStoreArgs>(op, qk_norm_rope_store_variants(), ctx, args);
}

}  // namespace ladder
