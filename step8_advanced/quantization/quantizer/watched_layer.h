#pragma once
// Task 8.5: one decoder layer whose linears can be watched, and whose weights can be exchanged between two passes: what
// quantizing layer by layer needs. It is the model's own layer with a LinearMethod of ours (ModelMakers::linear_method), so
// nothing of the model is written a second time. In f32.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "step2_model/decoder/decoder_model.h"
#include "step8_advanced/quantization/quantizer/text_pass.h"
#include "step8_advanced/quantization/quantizer/texts.h"
#include "step8_advanced/quantization/scheme.h"

namespace ladder {

struct WatchedPart {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  Tensor weight;     // f32 [n, k]: the layer's own memory; what is written there holds from the next pass on
};

// One linear of the layer, of one part or of several with the same input.
struct WatchedLinear {
  std::string name;  // "layers.0.qkv_proj"
  std::vector<WatchedPart> parts;
  bool has_bias = false;
  // How its input is rounded; none: taken as it is.
  std::optional<QuantizationArgs> activations;
  float input_scale = 0;  // of static ones
  // For watch(): called with x [tokens, k], not yet rounded, and the pass ends there. Empty: unwatched.
  std::function<void(const Tensor& x)> on_input;

  int64_t k() const { return parts.at(0).weight.dim(1); }
};

// A norm of the layer; f32, the layer's own memory. Names as in the checkpoint.
struct WatchedNorm {
  std::string gain_name, bias_name;
  Tensor gain, bias;  // bias: undefined where there is none
};

class WatchedLayer {
 public:
  // Loads the layer's weights, dense, from the folder. texts are of up to max_tokens.
  WatchedLayer(const OpContext& ctx, const std::filesystem::path& directory, const DecoderSpec& spec,
               int64_t layer, int64_t max_tokens);

  // In the order in which they run.
  std::vector<std::unique_ptr<WatchedLinear>>& linears() { return linears_; }

  // The norm whose output is this linear's input; nullptr: something else is.
  const WatchedNorm* norm_before(const WatchedLinear& linear) const;
  // All norms that norm_before() may give.
  const std::vector<WatchedNorm>& norms() const { return norms_; }
  DType checkpoint_dtype() const { return checkpoint_dtype_; }

  // A text's hidden states through the layer: `hidden` [tokens, hidden_size] as the layer before gave it, undefined for layer 0; what
  // comes out is a tensor of its own.
  Tensor run(const TokenIds& text, const Tensor& hidden);
  // Its keys and values, f32, from the first slot on.
  const KvCacheView& cache() const { return pass_->caches()[0]; }
  // The same as far as the linear that is watched: of several the first.
  void watch(const TokenIds& text, const Tensor& hidden);

 private:
  std::vector<std::unique_ptr<WatchedLinear>> linears_;
  std::vector<WatchedNorm> norms_;  // of attention and of the MLP; none where norms come after the additions
  DType checkpoint_dtype_;
  std::unique_ptr<DecoderModel> model_;
  std::unique_ptr<TextPass> pass_;
};

}  // namespace ladder
