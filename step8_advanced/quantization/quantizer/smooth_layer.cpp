#include "step8_advanced/quantization/quantizer/smooth_layer.h"

#include <algorithm>
#include <optional>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/algorithms/awq.h"
#include "step8_advanced/quantization/algorithms/fold_scales.h"
#include "step8_advanced/quantization/algorithms/hessian.h"
#include "step8_advanced/quantization/algorithms/smoothquant.h"

namespace ladder {
namespace {

const CheckpointLinear& stages_of(const WatchedLinear& linear, std::span<const CheckpointLinear> linears) {
  for (const CheckpointLinear& one : linears)
    if (one.name == linear.parts.at(0).name) return one;
  fail("{}: not among the linears of its layer", linear.name);
}

std::vector<Tensor> weights_of(const WatchedLinear& linear) {
  std::vector<Tensor> weights;
  for (const WatchedPart& part : linear.parts) weights.push_back(part.weight);
  return weights;
}

// max |x| and mean |x| of a linear's inputs.
Hessian statistics_of(WatchedLayer& layer, WatchedLinear& linear, std::span<const TokenIds> texts,
                      std::span<const Tensor> hidden) {
  Hessian inputs(linear.k(), linear.name);
  linear.on_input = [&inputs](const Tensor& x) { inputs.add(x); };
  for (size_t text = 0; text < texts.size(); ++text) layer.watch(texts[text], hidden[text]);
  linear.on_input = nullptr;
  return inputs;
}

// Divides what a norm gives by `scales` and multiplies the linears' columns, by what the norm's dtype can hold of them.
void fold_into_norm(const WatchedNorm& norm, DType dtype, std::span<const Tensor> linears,
                    const Tensor& scales, const std::string& name) {
  const Tensor divided = Tensor::empty(norm.gain.shape(), DType::f32);
  for (int64_t i = 0; i < divided.numel(); ++i)
    divided.data<float>()[i] = norm.gain.data<float>()[i] / scales.data<float>()[i];
  const Tensor kept = divided.to(dtype).to(DType::f32);
  const Tensor exact = scales.clone();
  for (int64_t i = 0; i < exact.numel(); ++i) {
    const float factor = norm.gain.data<float>()[i] / kept.data<float>()[i];
    if (factor > 0) exact.data<float>()[i] = factor;  // a gain of 0 stays 0, whatever the factor
  }
  fold_scales(NormBefore{norm.gain, norm.bias}, linears, exact, name);
  norm.gain.copy_from(kept);
  if (norm.bias.defined()) norm.bias.copy_from(norm.bias.to(dtype).to(DType::f32));
}

WatchedLinear* find_by_end(WatchedLayer& layer, std::string_view end) {
  for (const auto& linear : layer.linears())
    if (linear->name.ends_with(end)) return linear.get();
  return nullptr;
}

// The linear part whose rows make this linear's inputs, one each; it is rounded later, so its file is written anyway.
std::optional<Tensor> rows_before(WatchedLayer& layer, const WatchedLinear& linear,
                                  std::span<const CheckpointLinear> linears) {
  const bool is_o = linear.name.ends_with(".o_proj"), is_down = linear.name.ends_with(".down_proj");
  const WatchedLinear* before = is_o      ? find_by_end(layer, ".qkv_proj")
                                : is_down ? find_by_end(layer, ".gate_up_proj")
                                          : nullptr;
  if (before == nullptr || before->has_bias || !stages_of(*before, linears).is_rounded()) return std::nullopt;
  const Tensor& weight = before->parts.back().weight;  // v; up
  if (weight.dim(0) != linear.k()) return std::nullopt;
  return weight;
}

}  // namespace

Tensor sample_inputs(WatchedLayer& layer, WatchedLinear& linear, std::span<const TokenIds> texts,
                     std::span<const Tensor> hidden) {
  const int64_t per_text =
      std::max<int64_t>((kSampleRows + std::ssize(texts) - 1) / std::max<int64_t>(std::ssize(texts), 1), 1);
  std::vector<Tensor> rows;
  linear.on_input = [&](const Tensor& x) {
    const int64_t count = std::min({per_text, x.dim(0), kSampleRows - std::ssize(rows)});
    for (int64_t i = 0; i < count; ++i) rows.push_back(x.select(0, i * x.dim(0) / count).clone());
  };
  for (size_t text = 0; text < texts.size() && std::ssize(rows) < kSampleRows; ++text)
    layer.watch(texts[text], hidden[text]);
  linear.on_input = nullptr;
  const Tensor sample = Tensor::empty({std::ssize(rows), linear.k()}, DType::f32);
  for (int64_t i = 0; i < sample.dim(0); ++i) sample.select(0, i).copy_from(rows[static_cast<size_t>(i)]);
  return sample;
}

std::vector<NamedTensor> smooth_layer(WatchedLayer& layer, const Recipe& recipe,
                                      std::span<const CheckpointLinear> linears,
                                      std::span<const TokenIds> texts, std::span<const Tensor> hidden) {
  std::vector<NamedTensor> changed;
  for (const auto& linear : layer.linears()) {
    const CheckpointLinear& stages = stages_of(*linear, linears);
    const RecipeStage* smooth =
        stages.smooth_stage < 0 ? nullptr : &recipe.stages[static_cast<size_t>(stages.smooth_stage)];
    const RecipeStage* round =
        stages.is_rounded() ? &recipe.stages[static_cast<size_t>(stages.stage)] : nullptr;
    const bool awq = round != nullptr && round->method == QuantizationMethod::awq;
    if (smooth == nullptr && !awq) continue;
    LADDER_CHECK(round != nullptr, "{}: {} is smoothed and not rounded: expected a stage that rounds it",
                 smooth->where, stages.name);
    const std::vector<Tensor> weights = weights_of(*linear);
    const WatchedNorm* norm = layer.norm_before(*linear);
    const std::optional<Tensor> before = awq ? rows_before(layer, *linear, linears) : std::nullopt;
    if (norm == nullptr && !before) continue;

    if (smooth != nullptr && norm != nullptr) {
      Hessian inputs = statistics_of(layer, *linear, texts, hidden);
      fold_into_norm(*norm, layer.checkpoint_dtype(), weights,
                     smoothquant_scales(inputs.max_abs(), weights, smooth->smoothing_strength, linear->name),
                     linear->name);
    }
    if (awq) {
      Hessian inputs = statistics_of(layer, *linear, texts, hidden);
      const AwqScales found =
          search_awq_scales(sample_inputs(layer, *linear, texts, hidden), inputs.mean_abs(), weights,
                            round->linear->scheme.weights, linear->name);
      if (!found.identity && norm != nullptr)
        fold_into_norm(*norm, layer.checkpoint_dtype(), weights, found.scales, linear->name);
      else if (!found.identity)
        fold_scales(LinearBefore{*before}, weights, found.scales, linear->name);
    }
    if (norm == nullptr) continue;
    changed.push_back({norm->gain_name, norm->gain.to(layer.checkpoint_dtype())});
    if (norm->bias.defined()) changed.push_back({norm->bias_name, norm->bias.to(layer.checkpoint_dtype())});
  }
  return changed;
}

}  // namespace ladder
