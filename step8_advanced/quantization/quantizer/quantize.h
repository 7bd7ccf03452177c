#pragma once
// Task 8.5: a dense checkpoint becomes a quantized one, layer by layer.
//
//   texts ──embedding──> hidden ──layer 0──> hidden ──layer 1──> ...         the texts' hidden states are kept, one layer's weights,
//                          │ quantize_layer    │ quantize_layer              and the one H (4 k^2 bytes) that is being collected
//                          v                   v
//                    OUT.partial/layer-00000   layer-00001  ...  ──>  OUT    a folder that loads like any other
//
// A recipe that needs no calibration reads weights alone, and runs nothing.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "step8_advanced/quantization/quantizer/quantize_layer.h"
#include "step8_advanced/quantization/quantizer/recipe.h"

namespace ladder {

struct QuantizeOptions {
  std::filesystem::path model, output;  // output: must not be there
  Recipe recipe;
  std::vector<TokenIds> texts;  // calibration's, one sample each; empty where the recipe needs none
  // Layers done, of all; may be empty. What it throws ends the run, which may then be gone on with.
  std::function<void(int64_t done, int64_t total)> progress;
  std::function<void(const std::string& line)> say;  // what a user should know; may be empty
};

struct QuantizeReport {
  std::vector<LinearReport> linears;  // in the order of the layers
  int64_t resumed_layers = 0;         // that an earlier run had finished
  int64_t calibration_tokens = 0;
  int64_t bytes_before = 0, bytes_after = 0;
};

// What a run will take, before it starts.
struct QuantizeEstimate {
  int64_t memory_bytes =
      0;  // hidden states, one layer, one H (of experts all of theirs); without the mapped files
  double operations = 0;  // multiplications and additions of all passes and of the algorithm
  int64_t bytes_before = 0;
};
QuantizeEstimate estimate_quantize(const QuantizeOptions& options, const DecoderSpec& spec);

// The key of a run: the model's bytes, the recipe, the texts. Reads every byte of the checkpoint once.
std::string quantize_key(const QuantizeOptions& options);

// Error: see recipe.h, check_weights.h, quantize_layer.h and safetensors_writer.h; `output` is there; no texts where the recipe needs
// some. What is finished stays in OUT.partial, a rotated model too, and the same call goes on from there and writes the same bytes.
QuantizeReport quantize(const OpContext& ctx, const QuantizeOptions& options);

}  // namespace ladder
