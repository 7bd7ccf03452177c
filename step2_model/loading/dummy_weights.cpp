#include <cmath>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step2_model/loading/weight_loader.h"

namespace ladder {
namespace {

// SplitMix64 (Steele, Lea and Flood, 2014): a counter in, 64 well mixed bits out.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Sum of four uniform numbers of 16 bits, centred and scaled to deviation 1: normal enough for weights, and
// far cheaper than logarithms and cosines.
inline float roughly_normal(uint64_t bits) {
  const auto sum =
      static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  constexpr float kInverseDeviation = 1.0f / 37837.2f;  // 65536 * sqrt(4 / 12)
  return static_cast<float>(sum - 131070) * kInverseDeviation;
}

uint64_t seed_of(std::string_view name) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mix(hash);
}

}  // namespace

void fill_dummy_weights(std::span<Parameter* const> parameters, const LoadProgress& progress) {
  int64_t done_bytes = 0, total_bytes = 0;
  for (const Parameter* parameter : parameters) {
    const DType dtype = parameter->tensor.dtype();
    LADDER_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
                 "--load-format dummy: {} is kept in {}, expected a model without quantization_config",
                 parameter->name, dtype_name(dtype));
    total_bytes += parameter->tensor.nbytes();
  }
  for (const Parameter* parameter : parameters) {
    const bool on_host = parameter->tensor.device().is_cpu();
    const Tensor tensor =
        on_host ? parameter->tensor : Tensor::empty(parameter->tensor.shape(), parameter->tensor.dtype());
    const bool matrix = tensor.ndim() > 1, norm = parameter->name.find("norm.weight") != std::string::npos;
    const float mean = norm ? 1.0f : 0.0f;
    const float deviation =
        matrix ? 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(tensor.dim(-1), 1))) : 0.05f;
    const uint64_t seed = seed_of(parameter->name);
    with_float_type(tensor.dtype(), parameter->name, [&](auto tag) {
      using T = decltype(tag);
      T* values = tensor.data<T>();
      parallel_for(tensor.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          values[i] = T(mean + deviation * roughly_normal(mix(seed + static_cast<uint64_t>(i))));
      });
    });
    if (!on_host) parameter->tensor.copy_from(tensor);
    done_bytes += tensor.nbytes();
    if (progress) progress(done_bytes, total_bytes);
  }
}

}  // namespace ladder
