#pragma once
// Task 8.5: one decoder layer whose linears can be watched, and whose weights can be exchanged between two passes: what
// quantizing layer by layer needs. It is the model's own layer with a LinearMethod of ours (ModelMakers::linear_method), so
// nothing of the model is written a second time. In f32. On a GPU texts go through the layer there, and what the CPU looks at and
// writes is the same memory (shared_memory_cuda.h).
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

// One linear of the layer, of one part or of several with the same input: an expert's gate and up are one, its down is another.
struct WatchedLinear {
  std::string name;  // "layers.0.qkv_proj"; of experts "layers.0.experts.gate_up", the same for all of them
  int64_t expert = -1;  // whose it is; -1: no expert's
  std::vector<WatchedPart> parts;
  bool has_bias = false;
  // How its input is rounded; none: taken as it is.
  std::optional<QuantizationArgs> activations;
  float input_scale = 0;  // of static ones
  // For watch(): called with x [tokens, k] on the CPU, not yet rounded, and the pass ends there. Of an expert x has the tokens that were routed to
  // it, if there are any, and the pass goes on to the other experts. Empty: unwatched.
  std::function<void(const Tensor& x)> on_input;

  int64_t k() const { return parts.at(0).weight.dim(1); }
};

// Linears that run side by side and know nothing of one another: all experts' gates and ups, all their downs; else one.
using WatchedStep = std::vector<WatchedLinear*>;

// A norm of the layer; f32, the layer's own memory. Names as in the checkpoint.
struct WatchedNorm {
  std::string gain_name, bias_name;
  Tensor gain, bias;  // bias: undefined where there is none
  std::vector<WatchedPart>
      routers;  // what reads its output and is no linear: a router, a shared expert's gate
};

class WatchedLayer {
 public:
  // Loads the layer's weights, dense, from the folder. texts are of up to max_tokens. Error: experts on a GPU, where the tokens of one
  // are known to the GPU alone.
  WatchedLayer(const OpContext& ctx, const std::filesystem::path& directory, const DecoderSpec& spec,
               int64_t layer, int64_t max_tokens);

  // In the order in which they run.
  std::vector<std::unique_ptr<WatchedLinear>>& linears() { return linears_; }
  std::vector<WatchedStep> steps() const;

  // The norm whose output is this linear's input; nullptr: something else is.
  const WatchedNorm* norm_before(const WatchedLinear& linear) const;
  // All norms that norm_before() may give.
  const std::vector<WatchedNorm>& norms() const { return norms_; }
  DType checkpoint_dtype() const { return checkpoint_dtype_; }

  // A text's hidden states through the layer: `hidden` [tokens, hidden_size] as the layer before gave it, undefined for layer 0; what
  // comes out is a tensor of its own, on the CPU.
  Tensor run(const TokenIds& text, const Tensor& hidden);
  // Its keys and values, f32, from the first slot on, on the CPU.
  KvCacheView cache() const;
  // The same as far as the linear that is watched: of several the first that is no expert's.
  void watch(const TokenIds& text, const Tensor& hidden);

 private:
  std::vector<std::unique_ptr<WatchedLinear>> linears_;
  std::vector<WatchedNorm> norms_;  // of attention and of the MLP; none where norms come after the additions
  OpContext ctx_;
  DType checkpoint_dtype_;
  std::unique_ptr<DecoderModel> model_;
  std::unique_ptr<TextPass> pass_;
};

}  // namespace ladder
