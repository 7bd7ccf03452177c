#pragma once
// Task 8.5: what has been done already, on disc, so that a run that was stopped goes on. OUT.partial holds
//
//   key.json                  what the run is a function of: model, recipe, texts, settings
//   layer-00003.safetensors   the finished layer's tensors as the result will have them, and its codes as memory has them
//   layer-00003.json          what became of its linears; written last: where it is, the layer is finished
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "step8_advanced/quantization/quantizer/quantize_layer.h"

namespace ladder {

class FinishedLayers {
 public:
  // Makes the folder, or goes on with the one there. Another key there: what it holds is removed, and started_over() is true.
  FinishedLayers(std::filesystem::path folder, const std::string& key);

  bool started_over() const { return started_over_; }
  bool has(int64_t layer) const;
  // All but kv_scales, which the passes need not know. Error: the files of this layer are damaged.
  FinishedLayer load(int64_t layer) const;
  // `stages`: that round each linear, in the same order; nullptr where none does.
  void save(int64_t layer, const FinishedLayer& finished, std::span<const RecipeStage* const> stages) const;
  // The layer's tensors as the result has them, views of its file.
  std::vector<NamedTensor> stored(int64_t layer) const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path file(int64_t layer, const char* extension) const;

  std::filesystem::path folder_;
  bool started_over_ = false;
};

}  // namespace ladder
