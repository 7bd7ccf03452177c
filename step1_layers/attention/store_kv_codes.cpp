#include <vector>

#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/core/parallel.h"

namespace ladder {

void store_kv_codes(const StoreKvArgs& args) {
  const KvCacheView& cache = args.cache;
  const int64_t* slots = args.slot_mapping.data<int64_t>();
  const int64_t per_token = args.k.dim(1) * (args.k.dim(2) + args.v.dim(2));
  with_float_type(args.k.dtype(), "store_kv", [&](auto tag) {
    using T = decltype(tag);
    const auto store = [&](const Tensor& from, const Tensor& to, const Tensor& scales, int64_t token,
                           std::vector<float>& head_values) {
      const int64_t block = slots[token] / cache.block_size(), offset = slots[token] % cache.block_size();
      head_values.resize(static_cast<size_t>(from.dim(2)));
      for (int64_t head = 0; head < from.dim(1); ++head) {
        const T* x = from.data<T>() + token * from.stride(0) + head * from.stride(1);
        for (int64_t i = 0; i < from.dim(2); ++i)
          head_values[static_cast<size_t>(i)] = static_cast<float>(x[i]);
        quantize_kv(cache.kept_as, head_values.data(), from.dim(2),
                    to.data<uint8_t>() + block * to.stride(0) + offset * to.stride(1) + head * to.stride(2),
                    scales.data<float>() + block * scales.stride(0) + offset * scales.stride(1) +
                        head * scales.stride(2));
      }
    };
    parallel_for(args.slot_mapping.dim(0), 8192 / std::max<int64_t>(per_token, 1) + 1,
                 [&](int64_t begin, int64_t end) {
                   std::vector<float> head_values;
                   for (int64_t token = begin; token < end; ++token) {
                     if (slots[token] < 0) continue;
                     store(args.k, cache.k, cache.k_scales, token, head_values);
                     store(args.v, cache.v, cache.v_scales, token, head_values);
                   }
                 });
  });
}

}  // namespace ladder
