#pragma once
// Task 8.5: the scales of keys and values that a recipe's kv_cache_scheme asks for: what a layer really stores (keys normed and
// rotated) for all texts of the calibration.
#include <string>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step8_advanced/quantization/quantizer/safetensors_writer.h"
#include "step8_advanced/quantization/stored_linear.h"

namespace ladder {

// The largest absolute value of each head.
class KvMaxima {
 public:
  // The first `tokens` slots of a cache that keeps f32.
  void add(const KvCacheView& cache, int64_t tokens);
  // "<attention>.k_scale" and ".v_scale": [1], or [heads, 1, 1] of a scheme per head, in `dtype`. Error, naming the tensor: numbers that
  // are not finite.
  std::vector<NamedTensor> scales(const std::string& attention, const StoredKvCache& scheme,
                                  DType dtype) const;

 private:
  std::vector<float> keys_, values_;
};

}  // namespace ladder
