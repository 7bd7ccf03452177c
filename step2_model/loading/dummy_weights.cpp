#include <algorithm>
#include <cmath>
#include <string>

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

// values[i] = the random value of the parameter's element first + i.
void fill_values(const Tensor& values, const std::string& name, int64_t first, float mean, float deviation) {
  const uint64_t seed = seed_of(name) + static_cast<uint64_t>(first);
  with_float_type(values.dtype(), name, [&](auto tag) {
    using T = decltype(tag);
    T* to = values.data<T>();
    parallel_for(values.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        to[i] = T(mean + deviation * roughly_normal(mix(seed + static_cast<uint64_t>(i))));
    });
  });
}

// Of a layer's experts the parts that each has, where this rank has other experts than all of the layer in their order
// (moe_mlp.h); else 0.
int parts_of_some_experts(const Parameter& parameter) {
  const int parts = parameter.name.ends_with(".experts.gate_up.weight") ? 2
                    : parameter.name.ends_with(".experts.down.weight")  ? 1
                                                                        : 0;
  return parts > 0 && parameter.tensor.ndim() == 3 && parameter.num_parts != parts * parameter.tensor.dim(0)
             ? parts
             : 0;
}

// The part of an expert that is on another rank is not looked at, whatever it is; any other has to have its shape.
bool is_here(const Parameter& parameter, int part) {
  try {
    parameter.load_part(Tensor::empty({1}, parameter.tensor.dtype()), part);
    return false;
  } catch (const Error&) {
    return true;
  }
}

// Each part as it would be loaded, with the values that it has where all experts are on one rank.
void fill_some_experts(const Parameter& parameter, int parts, float deviation) {
  const Tensor& tensor = parameter.tensor;
  const Tensor values = Tensor::empty({tensor.dim(1) / parts, tensor.dim(2)}, tensor.dtype());
  for (int part = 0; part < parameter.num_parts; ++part) {
    if (!is_here(parameter, part)) continue;
    fill_values(values, parameter.name, part * values.numel(), 0.0f, deviation);
    parameter.load_part(values, part);
  }
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
    const Tensor& tensor = parameter->tensor;
    const bool matrix = tensor.ndim() > 1, norm = parameter->name.find("norm.weight") != std::string::npos;
    const float mean = norm ? 1.0f : 0.0f;
    const float deviation =
        matrix ? 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(tensor.dim(-1), 1))) : 0.05f;
    if (const int parts = parts_of_some_experts(*parameter); parts > 0) {
      fill_some_experts(*parameter, parts, deviation);
    } else {
      const bool on_host = tensor.device().is_cpu();
      const Tensor values = on_host ? tensor : Tensor::empty(tensor.shape(), tensor.dtype());
      fill_values(values, parameter->name, 0, mean, deviation);
      if (!on_host) tensor.copy_from(values);
    }
    done_bytes += tensor.nbytes();
    if (progress) progress(done_bytes, total_bytes);
  }
}

}  // namespace ladder
