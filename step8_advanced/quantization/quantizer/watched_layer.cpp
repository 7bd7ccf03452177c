#include "step8_advanced/quantization/quantizer/watched_layer.h"

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step2_model/families/family.h"
#include "step2_model/loading/weight_loader.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/quantizer/recipe.h"
#ifdef LADDER_HAS_CUDA
#include "step8_advanced/quantization/quantizer/shared_memory_cuda.h"
#endif

namespace ladder {
namespace {

// Puts a tensor of the layer where both can reach it; what the CPU has of it is returned.
Tensor share_with_cpu([[maybe_unused]] const OpContext& ctx, Tensor& tensor) {
#ifdef LADDER_HAS_CUDA
  if (!tensor.device().is_cpu()) {
    device_synchronize(ctx.device, ctx.stream);  // it is loaded
    return move_to_shared_memory(tensor);
  }
#endif
  return tensor;
}

// x as the linear will see it when it is quantized.
Tensor rounded_input(const OpContext& ctx, const Tensor& input, const WatchedLinear& linear) {
  const Tensor x = on_cpu(ctx, input);
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
  return ctx.device.is_cpu() ? rounded : rounded.to(ctx.device);
}

struct PassEnded {};  // thrown through the layer: what comes behind the watched linear is of no use

// The dense method, with somebody looking on. The linear's parts are those of one watched linear, or of several (experts) with as
// many each.
class WatchedMethod final : public LinearMethod {
 public:
  explicit WatchedMethod(std::vector<WatchedLinear*> linears)
      : linears_(std::move(linears)), dense_(unquantized_linear_method()) {}

  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const override {
    return dense_->parameters(shape);
  }
  void process_after_load(const OpContext& ctx, const LinearShape& shape,
                          std::vector<Tensor>& tensors) const override {
    const Tensor weight = share_with_cpu(ctx, tensors.at(0));
    int64_t row = 0;
    size_t part = 0;
    for (WatchedLinear* linear : linears_) {
      linear->has_bias = shape.bias;
      for (WatchedPart& one : linear->parts) {
        const int64_t rows = shape.out.at(part++).size;
        one.weight = weight.narrow(0, row, rows);
        row += rows;
      }
    }
  }
  void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
             const Tensor& x, const Tensor& out) const override {
    const WatchedLinear& linear = *linears_.at(0);
    if (linear.on_input) {
      linear.on_input(on_cpu(ctx, x));
      throw PassEnded();
    }
    dense_->apply(ctx, shape, tensors, linear.activations ? rounded_input(ctx, x, linear) : x, out);
  }
  void apply_parts(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
                   size_t first, size_t count, const Tensor& x, const Tensor& out) const override {
    const WatchedLinear& linear = *linears_.at(first / count);
    if (linear.on_input) linear.on_input(on_cpu(ctx, x));
    dense_->apply_parts(ctx, shape, tensors, first, count,
                        linear.activations ? rounded_input(ctx, x, linear) : x, out);
  }

 private:
  std::vector<WatchedLinear*> linears_;
  std::shared_ptr<const LinearMethod> dense_;
};

}  // namespace

WatchedLayer::WatchedLayer(const OpContext& ctx, const std::filesystem::path& directory,
                           const DecoderSpec& spec, int64_t layer, int64_t max_tokens)
    : ctx_(ctx), checkpoint_dtype_(spec.checkpoint_dtype) {
  LADDER_CHECK(ctx.device.is_cpu() || spec.experts.num_experts == 0,
               "{}: experts are calibrated on the CPU alone, expected --device cpu", directory.string());
  ModelOptions options;
  options.dtype = DType::f32;
  options.layer_begin = layer;
  options.layer_end = layer + 1;
  options.makers.linear_method = [this](const OpContext&, const NamedLinear& named) {
    const auto parts = static_cast<size_t>(parts_per_expert(named.name));
    WatchedStep step;
    for (size_t part = 0; part < named.part_names.size(); ++part) {
      if (part == 0 || (parts > 0 && part % parts == 0)) {
        linears_.push_back(std::make_unique<WatchedLinear>());
        step.push_back(linears_.back().get());
        step.back()->name = named.name;
        if (parts > 0) step.back()->expert = static_cast<int64_t>(part / parts);
      }
      step.back()->parts.push_back({named.part_names[part], {}});
    }
    return std::make_shared<const WatchedMethod>(std::move(step));
  };
  const Checkpoint checkpoint(directory);
  model_ = std::make_unique<DecoderModel>(ctx, spec, options);
  const std::vector<Parameter*> parameters = model_->parameters();
  load_weights(checkpoint, spec, parameters, {});
  model_->process_after_load(ctx);
  const ModelFamily& family = family_of(spec.architecture);
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    if (spec.post_norm) break;
    WatchedNorm found;
    for (Parameter* parameter : parameters) {
      const std::string name = fmt::format("layers.{}.{}", layer, norm);
      const bool is_gain = parameter->name == name + ".weight";
      if (!is_gain && parameter->name != name + ".bias") continue;
      (is_gain ? found.gain : found.bias) = share_with_cpu(ctx, parameter->tensor);
      (is_gain ? found.gain_name : found.bias_name) = checkpoint_name_of(family, parameter->name, 0);
    }
    norms_.push_back(std::move(found));
  }
  for (const Parameter* parameter : parameters)
    if (!norms_.empty() && (parameter->name.ends_with(".router.weight") ||
                            parameter->name.ends_with(".shared_expert_gate.weight")))
      norms_[1].routers.push_back({checkpoint_name_of(family, parameter->name, 0), parameter->tensor});
  pass_ = std::make_unique<TextPass>(*model_, ctx, max_tokens);
}

std::vector<WatchedStep> WatchedLayer::steps() const {
  std::vector<WatchedStep> steps;
  for (const auto& linear : linears_) {
    if (steps.empty() || steps.back().back()->name != linear->name) steps.emplace_back();
    steps.back().push_back(linear.get());
  }
  return steps;
}

const WatchedNorm* WatchedLayer::norm_before(const WatchedLinear& linear) const {
  const int norm = ladder::norm_before(linear.name);
  return norms_.empty() || norm < 0 ? nullptr : &norms_[static_cast<size_t>(norm)];
}

Tensor WatchedLayer::run(const TokenIds& text, const Tensor& hidden) {
  Tensor result;
  pass_->forward(text, hidden, [&](const Tensor& out) {
    result = out.device().is_cpu() ? out.clone() : on_cpu(ctx_, out);
  });
  return result;
}

KvCacheView WatchedLayer::cache() const {
  KvCacheView cache = pass_->caches()[0];
  for (Tensor* side : {&cache.k, &cache.v}) {
    if (side->device().is_cpu()) continue;
    const Tensor copy =
        Tensor::empty(side->shape(), side->dtype());  // keys and values of a block are neighbours on a GPU
    for (int64_t block = 0; block < copy.dim(0); ++block)
      copy.select(0, block).copy_from(side->select(0, block));
    *side = copy;
  }
  return cache;
}

void WatchedLayer::watch(const TokenIds& text, const Tensor& hidden) {
  try {
    pass_->forward(text, hidden, [](const Tensor&) {});
  } catch (const PassEnded&) {
  }
}

}  // namespace ladder
