#include "step1_layers/attention/store_kv_codes.h"

#include <vector>

#include "step1_layers/attention/store_head_codes.h"
#include "step1_layers/core/parallel.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/attention/store_kv_codes_cuda.h"
#endif

namespace ladder {

void store_kv_codes(const StoreKvArgs& args) {
  const KvCacheView& cache = args.cache;
  const int64_t* slots = args.slot_mapping.data<int64_t>();
  const int64_t per_token = args.k.dim(1) * (args.k.dim(2) + args.v.dim(2));
  with_float_type(args.k.dtype(), "store_kv", [&](auto tag) {
    using T = decltype(tag);
    const auto store = [&](const Tensor& from, const Tensor& codes, const Tensor& scales, int64_t token,
                           std::vector<float>& values) {
      for (int64_t head = 0; head < from.dim(1); ++head)
        store_head_codes(cache, codes, scales, slots[token], head,
                         from.data<T>() + token * from.stride(0) + head * from.stride(1), from.dim(2),
                         values);
    };
    parallel_for(args.slot_mapping.dim(0), 8192 / std::max<int64_t>(per_token, 1) + 1,
                 [&](int64_t begin, int64_t end) {
                   std::vector<float> values;
                   for (int64_t token = begin; token < end; ++token) {
                     if (slots[token] < 0) continue;
                     store(args.k, cache.k, cache.k_scales, token, values);
                     store(args.v, cache.v, cache.v_scales, token, values);
                   }
                 });
  });
}

namespace {

constexpr Variant<StoreKvArgs> kVariants[] = {
    {.name = "loop",
     .idea = "head by head; tokens split among threads",
     .run = [](const OpContext&, const StoreKvArgs& args) { store_kv_codes(args); }},
#ifdef LADDER_HAS_CUDA
    {.name = "naive", .device = DeviceType::cuda, .idea = "a warp per head", .run = store_kv_codes_cuda},
#endif
};

}  // namespace

void store_kv_as_codes(const OpContext& ctx, const StoreKvArgs& args) {
  run_variant<StoreKvArgs>("store_kv_codes", kVariants, ctx, args);
}

}  // namespace ladder
