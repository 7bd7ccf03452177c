#pragma once
// Task 8.5: SmoothQuant and AWQ in their place: before a layer's linears are rounded, factors move from what makes their
// inputs into their columns (algorithms/fold_scales.h), and the layer computes what it computed.
//
//   input_layernorm            -> q, k, v         both
//   post_attention_layernorm   -> gate, up        both
//   v                          -> o               AWQ, where every query head has a key head of its own
//   up                         -> down            AWQ, each expert's own
//
// In a layer with experts the second norm feeds gate and up of all of them, a shared expert's too, and the router: all take the
// factors, or the router would choose for x / s. A router stays dense and is rounded to the checkpoint's dtype once more. What an expert
// loses is judged on the tokens that are routed to it, and counts as often as it is asked. AWQ scales a norm only if all
// linears that it feeds are AWQ's.
//
// A norm's gains are kept in the checkpoint's dtype. So the factors are those that the rounded gains give: gain' = bf16(gain / s),
// s' = gain / gain', and the linears take s', which loses nothing.
#include <span>
#include <vector>

#include "step8_advanced/quantization/quantizer/recipe.h"
#include "step8_advanced/quantization/quantizer/safetensors_writer.h"
#include "step8_advanced/quantization/quantizer/watched_layer.h"

namespace ladder {

// Rows of a linear's inputs, evenly out of all texts, up to so many: what searches try their candidates on.
inline constexpr int64_t kSampleRows = 512;
struct InputSample {
  Tensor rows;        // f32; undefined: no token came, to an expert
  int64_t count = 0;  // that came
};
// In one pass of all texts.
std::vector<InputSample> sample_inputs(WatchedLayer& layer, const WatchedStep& linears,
                                       std::span<const TokenIds> texts, std::span<const Tensor> hidden);

// Smooths what the recipe says, in the layer's own weights, and returns the norms and routers that changed, as the checkpoint calls
// and keeps them. Error: linears behind one norm of which some are smoothed.
std::vector<NamedTensor> smooth_layer(WatchedLayer& layer, const Recipe& recipe,
                                      std::span<const CheckpointLinear> linears,
                                      std::span<const TokenIds> texts, std::span<const Tensor> hidden);

}  // namespace ladder
