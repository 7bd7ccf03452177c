#pragma once
// A named parameter of the model and the rule by which a checkpoint fills it.
//
// A merged parameter (q, k and v in one matrix; gate and up) is filled by several checkpoint tensors, one per
// part. Each part must be filled exactly once: the loader of step 2 asks at the end, and a second load of a
// part is an error.
#include <functional>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

struct Parameter {
  std::string name;  // full path, "layers.3.qkv_proj.weight"
  Tensor tensor;     // this rank's memory
  int num_parts = 1;
  // Copies this rank's shard of one part out of the full checkpoint tensor, converting the dtype through
  // float where the two differ. Error: another shape than expected, saying both.
  std::function<void(const Tensor& checkpoint, int part)> load_part;

  void load(const Tensor& checkpoint, int part = 0) {
    loaded_.resize(static_cast<size_t>(num_parts));
    LADDER_CHECK(part >= 0 && part < num_parts, "{} has no part {}", name, part);
    LADDER_CHECK(!loaded_[static_cast<size_t>(part)], "{} (part {}) is in the checkpoint twice", name, part);
    load_part(checkpoint, part);
    loaded_[static_cast<size_t>(part)] = true;
  }
  bool is_loaded() const {
    for (int part = 0; part < num_parts; ++part)
      if (static_cast<size_t>(part) >= loaded_.size() || !loaded_[static_cast<size_t>(part)]) return false;
    return true;
  }

 private:
  std::vector<bool> loaded_;
};

}  // namespace ladder
