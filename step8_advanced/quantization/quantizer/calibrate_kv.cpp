#include "step8_advanced/quantization/quantizer/calibrate_kv.h"

#include <algorithm>
#include <cmath>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/numbers/grid.h"

namespace ladder {
namespace {

// NaN stays.
void take_larger(float& largest, float value) {
  if (!std::isnan(largest) && !(std::fabs(value) <= largest)) largest = std::fabs(value);
}

void add_heads(const Tensor& stored, int64_t tokens, std::vector<float>& largest) {
  const int64_t block_size = stored.dim(1), heads = stored.dim(2), dim = stored.dim(3);
  largest.resize(static_cast<size_t>(heads));
  for (int64_t token = 0; token < tokens; ++token) {
    const Tensor slot = stored.select(0, token / block_size).select(0, token % block_size);
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < dim; ++i)
        take_larger(largest[static_cast<size_t>(head)], slot.data<float>()[head * slot.stride(0) + i]);
  }
}

Tensor scales_of(const std::vector<float>& largest, const StoredKvCache& scheme, DType dtype,
                 const std::string& name) {
  std::vector<float> scales(scheme.per_head ? largest.size() : 1);
  for (size_t head = 0; head < largest.size(); ++head) {
    LADDER_CHECK(std::isfinite(largest[head]), "{}: the numbers of head {} are not finite", name, head);
    float& all = scales[scheme.per_head ? head : 0];
    all = std::max(all, largest[head]);
  }
  for (float& scale : scales) scale = make_grid(-scale, scale, scheme.args).scale;
  const int64_t count = std::ssize(scales);
  const Tensor tensor = Tensor::from<float>(scales, scheme.per_head ? Shape{count, 1, 1} : Shape{1});
  return tensor.to(dtype);
}

}  // namespace

void KvMaxima::add(const KvCacheView& cache, int64_t tokens) {
  add_heads(cache.k, tokens, keys_);
  add_heads(cache.v, tokens, values_);
}

std::vector<NamedTensor> KvMaxima::scales(const std::string& attention, const StoredKvCache& scheme,
                                          DType dtype) const {
  StoredKvCache kept = scheme;
  kept.args.scale_format = dtype == DType::bf16  ? ScaleFormat::bf16
                           : dtype == DType::f16 ? ScaleFormat::f16
                                                 : ScaleFormat::f32;
  const std::string keys = attention + ".k_scale", values = attention + ".v_scale";
  return {{keys, scales_of(keys_, kept, dtype, keys)}, {values, scales_of(values_, kept, dtype, values)}};
}

}  // namespace ladder
