#include "step1_layers/attention/store_kv.h"

#include <cstring>

#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/attention/store_kv_codes.h"
#include "step1_layers/core/parallel.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/attention/store_kv_cuda.h"
#endif

namespace ladder {

namespace {

// >>> task 1.7.store: keys and values to their slots, value by value and a token's heads at once
void store_kv_loop(const OpContext&, const StoreKvArgs& args) {
  const int64_t* slots = args.slot_mapping.data<int64_t>();
  const int64_t block_size = args.cache.block_size();
  with_float_type(args.k.dtype(), "store_kv", [&](auto tag) {
    using T = decltype(tag);
    auto store = [&](const Tensor& from, const Tensor& cache) {
      for (int64_t token = 0; token < args.slot_mapping.dim(0); ++token) {
        if (slots[token] < 0) continue;
        const int64_t block = slots[token] / block_size, offset = slots[token] % block_size;
        for (int64_t head = 0; head < from.dim(1); ++head)
          for (int64_t i = 0; i < from.dim(2); ++i)
            cache.data<T>()[block * cache.stride(0) + offset * cache.stride(1) + head * cache.stride(2) + i] =
                from.data<T>()[token * from.stride(0) + head * from.stride(1) + i];
      }
    };
    store(args.k, args.cache.k);
    store(args.v, args.cache.v);
  });
}

void store_kv_copy(const OpContext&, const StoreKvArgs& args) {
  const int64_t* slots = args.slot_mapping.data<int64_t>();
  const int64_t block_size = args.cache.block_size(), size = dtype_size(args.k.dtype());
  auto store = [&](const Tensor& from, const Tensor& cache, int64_t token, int64_t slot) {
    const char* source = static_cast<const char*>(from.raw()) + token * from.stride(0) * size;
    char* target = static_cast<char*>(cache.raw()) +
                   (slot / block_size * cache.stride(0) + slot % block_size * cache.stride(1)) * size;
    const int64_t heads = from.dim(1), dim = from.dim(2);
    if (from.stride(1) == dim && cache.stride(2) == dim) {
      std::memcpy(target, source, static_cast<size_t>(heads * dim * size));
      return;
    }
    for (int64_t head = 0; head < heads; ++head)
      std::memcpy(target + head * cache.stride(2) * size, source + head * from.stride(1) * size,
                  static_cast<size_t>(dim * size));
  };
  const int64_t per_token = args.k.dim(1) * (args.k.dim(2) + args.v.dim(2));
  parallel_for(args.slot_mapping.dim(0), 32768 / std::max<int64_t>(per_token, 1) + 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t token = begin; token < end; ++token) {
                   if (slots[token] < 0) continue;
                   store(args.k, args.cache.k, token, slots[token]);
                   store(args.v, args.cache.v, token, slots[token]);
                 }
               });
}
// <<< task 1.7.store

constexpr Variant<StoreKvArgs> kVariants[] = {
    {.name = "loop", .idea = "value by value", .run = store_kv_loop},
    {.name = "copy",
     .idea = "all heads of a token in one copy where both sides are dense; tokens split among threads",
     .run = store_kv_copy},
#ifdef LADDER_HAS_CUDA
    {.name = "naive", .device = DeviceType::cuda, .idea = "an element per thread", .run = store_kv_cuda},
    {.name = "vectorized",
     .device = DeviceType::cuda,
     .idea = "sixteen bytes per access",
     .supports = store_kv_is_packed,
     .run = store_kv_cuda_packed},
#endif
};

}  // namespace

std::span<const Variant<StoreKvArgs>> store_kv_variants() {
  return kVariants;
}

void check_store_kv(const StoreKvArgs& args, std::string_view op) {
  const Tensor &k = args.k, &v = args.v, &slots = args.slot_mapping;
  const KvCacheView& cache = args.cache;
  expect_shape(k, {-1, -1, -1}, op);
  expect_shape(v, {k.dim(0), k.dim(1), -1}, op);
  expect_kv_cache(cache, k.dtype(), k.dim(2), v.dim(2), op);
  expect_shape(cache.k, {-1, -1, k.dim(1), -1}, op);
  expect_shape(slots, {-1}, op);
  expect_dtype(slots, DType::i64, op);
  expect_dtype(v, k.dtype(), op);
  LADDER_CHECK(slots.dim(0) <= k.dim(0), "{}: {} slots for {} tokens", op, slots.dim(0), k.dim(0));
  LADDER_CHECK(k.stride(2) == 1 && v.stride(2) == 1 && cache.k.stride(3) == 1 && cache.v.stride(3) == 1,
               "{}: the elements of a head must be adjacent", op);
  if (!k.device().is_cpu()) return;
  const int64_t num_slots = cache.num_blocks() * cache.block_size();
  for (int64_t i = 0; i < slots.dim(0); ++i)
    LADDER_CHECK(slots.data<int64_t>()[i] >= -1 && slots.data<int64_t>()[i] < num_slots,
                 "{}: slot {} is outside a cache of {}", op, slots.data<int64_t>()[i], num_slots);
}

void store_kv(const OpContext& ctx, const Tensor& k, const Tensor& v, const Tensor& slot_mapping,
              const KvCacheView& cache) {
  const StoreKvArgs args{k, v, slot_mapping, cache};
  check_store_kv(args, "store_kv");
  if (cache.kept_as != KvCacheDType::automatic) return store_kv_as_codes(ctx, args);
  run_variant<StoreKvArgs>("store_kv", store_kv_variants(), ctx, args);
}

}  // namespace ladder
