#include "step1_layers/attention/kv_codes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "step1_layers/core/error.h"
#include "step1_layers/core/small_floats.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {
namespace {

constexpr std::string_view kNames[] = {"auto", "fp8", "int8", "int4"};

// Below the smallest normal number a scale has no inverse, and what it stands for is 0.
float usable(float scale) {
  return scale >= std::numeric_limits<float>::min() ? scale : 0.0f;
}
float inverse_of(float scale) {
  return scale > 0 ? 1 / scale : 0.0f;
}

// Half of the largest float: so that the difference of two is one.
constexpr float kLargest = std::numeric_limits<float>::max() / 2;

float finite(float x) {
  return std::isnan(x) ? 0.0f : std::clamp(x, -kLargest, kLargest);
}

}  // namespace

// >>> task 8.6: a head's numbers to codes and back
void quantize_kv(KvCacheDType kept_as, const float* x, int64_t dim, uint8_t* codes, float* scales) {
  float low = dim > 0 ? finite(x[0]) : 0, high = low;
  for (int64_t i = 1; i < dim; ++i) {
    low = std::min(low, finite(x[i]));
    high = std::max(high, finite(x[i]));
  }
  if (kept_as == KvCacheDType::int4) {
    const float scale = usable((high - low) / 15), inverse = inverse_of(scale);
    scales[0] = scale;
    scales[1] = low;
    for (int64_t i = 0; i < dim; i += 2) {
      const auto code = [&](int64_t at) {
        if (at >= dim) return 0;
        return static_cast<int>(std::nearbyint(std::clamp((finite(x[at]) - low) * inverse, 0.0f, 15.0f)));
      };
      codes[i / 2] = static_cast<uint8_t>(code(i) | code(i + 1) << 4);
    }
    return;
  }
  const float largest = kept_as == KvCacheDType::fp8 ? kMaxE4M3 : 127.0f;
  const float scale = usable(std::max(high, -low) / largest), inverse = inverse_of(scale);
  scales[0] = scale;
  scales[1] = 0;
  for (int64_t i = 0; i < dim; ++i) {
    const float scaled = std::clamp(finite(x[i]) * inverse, -largest, largest);
    codes[i] = kept_as == KvCacheDType::fp8
                   ? float_to_e4m3(scaled)
                   : static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(scaled)));
  }
}

void dequantize_kv(KvCacheDType kept_as, const uint8_t* codes, const float* scales, int64_t dim, float* x) {
  for (int64_t i = 0; i < dim; ++i) {
    if (kept_as == KvCacheDType::int4)
      x[i] = scales[1] + static_cast<float>(codes[i / 2] >> (i % 2 * 4) & 15) * scales[0];
    else if (kept_as == KvCacheDType::int8)
      x[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * scales[0];
    else
      x[i] = e4m3_to_float(codes[i]) * scales[0];
  }
}
// <<< task 8.6

void expect_kv_cache(const KvCacheView& cache, DType dtype, int64_t k_dim, int64_t v_dim,
                     std::string_view op) {
  const Tensor &k = cache.k, &v = cache.v;
  const bool codes = cache.kept_as != KvCacheDType::automatic;
  expect_shape(k, {-1, -1, -1, kv_code_bytes(cache.kept_as, k_dim)}, op);
  expect_shape(v, {k.dim(0), k.dim(1), k.dim(2), kv_code_bytes(cache.kept_as, v_dim)}, op);
  for (const Tensor* tensor : {&k, &v}) expect_dtype(*tensor, codes ? DType::u8 : dtype, op);
  if (!codes) return;
  for (const Tensor* scales : {&cache.k_scales, &cache.v_scales}) {
    expect_shape(*scales, {k.dim(0), k.dim(1), k.dim(2), kKvScales}, op);
    expect_dtype(*scales, DType::f32, op);
    LADDER_CHECK(scales->is_contiguous(), "{}: the scales of a KV cache are contiguous", op);
  }
}

KvCacheDType parse_kv_cache_dtype(std::string_view name, std::string_view flag) {
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<KvCacheDType>(i);
  fail("{} {}: expected one of {}", flag, name, fmt::join(kNames, ", "));
}

std::string_view kv_cache_dtype_name(KvCacheDType kept_as) {
  return kNames[static_cast<size_t>(kept_as)];
}

}  // namespace ladder
