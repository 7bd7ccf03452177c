#include "step8_advanced/quantization/quantizer/watched_layer.h"

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step2_model/families/family.h"
#include "step2_model/loading/weight_loader.h"
#include "step8_advanced/quantization/kernels/round_activations.h"

namespace ladder {
namespace {

// x as the linear will see it when it is quantized.
Tensor rounded_input(const Tensor& x, const WatchedLinear& linear) {
  const int64_t k = x.dim(1);
  const Tensor rounded = Tensor::empty({x.dim(0), k}, DType::f32);
  parallel_for(x.dim(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* values = rounded.data<float>() + row * k;
      const float scale = round_activations(x.data<float>() + row * x.stride(0), k, linear.activations,
                                            linear.input_scale, values);
      for (int64_t i = 0; i < k; ++i) values[i] *= scale;
    }
  });
  return rounded;
}

struct PassEnded {};  // thrown through the layer: what comes behind the watched linear is of no use

// The dense method, with somebody looking on.
class WatchedMethod final : public LinearMethod {
 public:
  explicit WatchedMethod(WatchedLinear& linear) : linear_(linear), dense_(unquantized_linear_method()) {}

  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const override {
    return dense_->parameters(shape);
  }
  void process_after_load(const OpContext&, const LinearShape& shape,
                          std::vector<Tensor>& tensors) const override {
    linear_.has_bias = shape.bias;
    int64_t row = 0;
    for (size_t part = 0; part < shape.out.size(); ++part) {
      linear_.parts.at(part).weight = tensors.at(0).narrow(0, row, shape.out[part].size);
      row += shape.out[part].size;
    }
  }
  void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
             const Tensor& x, const Tensor& out) const override {
    if (linear_.on_input) {
      linear_.on_input(x);
      throw PassEnded();
    }
    dense_->apply(ctx, shape, tensors, linear_.activations ? rounded_input(x, linear_) : x, out);
  }

 private:
  WatchedLinear& linear_;
  std::shared_ptr<const LinearMethod> dense_;
};

}  // namespace

WatchedLayer::WatchedLayer(const OpContext& ctx, const std::filesystem::path& directory,
                           const DecoderSpec& spec, int64_t layer, int64_t max_tokens)
    : checkpoint_dtype_(spec.checkpoint_dtype) {
  ModelOptions options;
  options.dtype = DType::f32;
  options.layer_begin = layer;
  options.layer_end = layer + 1;
  options.makers.linear_method = [this](const OpContext&, const NamedLinear& named) {
    auto linear = std::make_unique<WatchedLinear>();
    linear->name = named.name;
    for (const std::string& part : named.part_names) linear->parts.push_back({part, {}});
    linears_.push_back(std::move(linear));
    return std::make_shared<const WatchedMethod>(*linears_.back());
  };
  const Checkpoint checkpoint(directory);
  model_ = std::make_unique<DecoderModel>(ctx, spec, options);
  const std::vector<Parameter*> parameters = model_->parameters();
  load_weights(checkpoint, spec, parameters, {});
  model_->process_after_load(ctx);
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    if (spec.post_norm) break;
    WatchedNorm found;
    for (const Parameter* parameter : parameters) {
      const std::string name = fmt::format("layers.{}.{}", layer, norm);
      const bool is_gain = parameter->name == name + ".weight";
      if (!is_gain && parameter->name != name + ".bias") continue;
      (is_gain ? found.gain : found.bias) = parameter->tensor;
      (is_gain ? found.gain_name : found.bias_name) =
          checkpoint_name_of(family_of(spec.architecture), parameter->name, 0);
    }
    norms_.push_back(std::move(found));
  }
  pass_ = std::make_unique<TextPass>(*model_, ctx, max_tokens);
}

const WatchedNorm* WatchedLayer::norm_before(const WatchedLinear& linear) const {
  if (norms_.empty()) return nullptr;
  if (linear.name.ends_with(".qkv_proj")) return &norms_[0];
  return linear.name.ends_with(".gate_up_proj") || linear.name.ends_with(".fc1") ? &norms_[1] : nullptr;
}

Tensor WatchedLayer::run(const TokenIds& text, const Tensor& hidden) {
  Tensor result;
  pass_->forward(text, hidden, [&](const Tensor& out) { result = out.clone(); });
  return result;
}

void WatchedLayer::watch(const TokenIds& text, const Tensor& hidden) {
  try {
    pass_->forward(text, hidden, [](const Tensor&) {});
  } catch (const PassEnded&) {
  }
}

}  // namespace ladder
