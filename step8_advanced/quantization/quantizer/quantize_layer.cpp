#include "step8_advanced/quantization/quantizer/quantize_layer.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/algorithms/awq.h"
#include "step8_advanced/quantization/algorithms/gptq.h"
#include "step8_advanced/quantization/algorithms/hessian.h"
#include "step8_advanced/quantization/algorithms/sparse.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "step8_advanced/quantization/quantizer/smooth_layer.h"

namespace ladder {
namespace {

const CheckpointLinear& find_linear(std::span<const CheckpointLinear> linears, const std::string& name) {
  for (const CheckpointLinear& linear : linears)
    if (linear.name == name) return linear;
  fail("{}: not among the linears of its layer", name);
}

// The squared error of the weights alone.
double weight_error(const Tensor& weight, const Tensor& rounded) {
  double error = 0, all = 0;
  for (int64_t i = 0; i < weight.numel(); ++i) {
    const double w = weight.data<float>()[i], e = rounded.data<float>()[i] - w;
    error += e * e;
    all += w * w;
  }
  return all > 0 ? error / all : 0;
}

// NVFP4's G, which the parts of a merged linear share.
float common_global_scale(const WatchedLinear& linear, const RecipeStage& stage) {
  if (stage.linear->format != StoredFormat::nvfp4) return 0;
  float largest = 0;
  for (const WatchedPart& part : linear.parts) largest = std::max(largest, largest_absolute(part.weight));
  return nvfp4_global_scale(largest);
}

Tensor prune(const Tensor& weight, const RecipeStage& stage, const Tensor& hessian, LinearReport& report) {
  if (stage.method == QuantizationMethod::magnitude) return prune_by_magnitude(weight, report.name);
  if (stage.method == QuantizationMethod::wanda) return prune_by_wanda(weight, hessian, report.name);
  const SparseGptResult result = prune_by_sparse_gpt(weight, hessian, report.name, stage.damping,
                                                     std::max(1.0, stage.damping), stage.block_size);
  report.damping = result.damping;
  report.dead_columns = result.dead_columns;
  return result.weight;
}

QuantizedLinear round(const Tensor& weight, const LinearStages& stages, const LinearInputs& inputs,
                      float global_scale, LinearReport& report) {
  const RecipeStage& stage = *stages.round;
  const QuantizationScheme& scheme = stage.linear->scheme;
  QuantizedLinear linear;
  if (stage.method == QuantizationMethod::gptq || stage.method == QuantizationMethod::sparsegpt) {
    QuantizationArgs args = scheme.weights;
    args.actorder = stage.actorder;
    GptqOptions options;
    options.damping = stage.damping;
    options.max_damping = std::max(1.0, stage.damping);
    options.block_size = stage.block_size;
    options.clipped_grids = stage.clipped_grids;
    options.two_of_four = stage.prunes();
    options.keep_zeros = stages.prune != nullptr && !stage.prunes();
    options.global_scale = global_scale;
    const GptqResult result = gptq(weight, inputs.hessian, args, report.name, options);
    linear.weight = result.weight;
    linear.g_idx = result.g_idx;
    report.damping = result.damping;
    report.dead_columns = result.dead_columns;
  } else {
    // Scores of attention are products of what q and k give, so their weights are not clipped.
    const bool clips = stage.method == QuantizationMethod::awq && !report.name.ends_with(".q_proj") &&
                       !report.name.ends_with(".k_proj");
    linear.weight =
        quantize_weight(clips ? clip_awq(inputs.sample, weight, scheme.weights, report.name) : weight,
                        scheme.weights, report.name, global_scale);
  }
  if (global_scale > 0) linear.global_scale = global_scale;
  if (scheme.input_activations && !scheme.input_activations->dynamic)
    linear.input_scale = make_grid(-inputs.largest, inputs.largest, *scheme.input_activations).scale;
  return linear;
}

// What can be done to a weight of whose inputs nothing is known.
std::optional<RecipeStage> without_inputs(const RecipeStage* stage, QuantizationMethod method) {
  if (stage == nullptr) return std::nullopt;
  RecipeStage blind = *stage;
  blind.method = method;
  return blind;
}

}  // namespace

Tensor FinishedLinear::values() const {
  return dense.defined() ? dense.to(DType::f32) : dequantize(linear.weight);
}

FinishedLinear quantize_linear(const std::string& name, const Tensor& weight,
                               const LinearStages& stages_of_it, const LinearInputs& inputs,
                               float global_scale) {
  const auto start = std::chrono::steady_clock::now();
  FinishedLinear finished;
  LinearReport& report = finished.report;
  report.name = name;
  report.unreached = inputs.unreached;
  LinearStages stages = stages_of_it;
  std::optional<RecipeStage> prune_blind, round_blind;
  if (inputs.unreached) {
    prune_blind = without_inputs(stages.prune, QuantizationMethod::magnitude);
    round_blind = without_inputs(stages.round, QuantizationMethod::rtn);
    stages = {prune_blind ? &*prune_blind : nullptr, round_blind ? &*round_blind : nullptr};
  }
  const bool at_once = stages.prune == stages.round;
  Tensor pruned = weight;
  if (stages.prune != nullptr && !at_once) {
    report.method = method_name(stages.prune->method);
    pruned = prune(weight, *stages.prune, inputs.hessian, report);
  }
  if (stages.round != nullptr) {
    report.method +=
        fmt::format("{}{}", report.method.empty() ? "" : ", ", method_name(stages.round->method));
    report.scheme = stages.round->scheme_name;
    finished.linear = round(pruned, stages, inputs, global_scale, report);
  } else {
    report.scheme = dtype_name(stages.prune->dense_dtype);
    finished.dense = pruned.to(stages.prune->dense_dtype);
  }
  report.calibrated = inputs.hessian.defined();
  report.error = report.calibrated ? layer_error(weight, finished.values(), inputs.hessian)
                                   : weight_error(weight, finished.values());
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return finished;
}

// >>> task 8.5.sequential: a layer's linears one after the other, each on what the quantized ones before it give
std::vector<LinearInputs> collect_inputs(WatchedLayer& layer, const WatchedStep& step,
                                         std::span<const TokenIds> texts, std::span<const Tensor> hidden) {
  std::vector<std::optional<Hessian>> seen(step.size());
  for (size_t i = 0; i < step.size(); ++i)
    step[i]->on_input = [&one = seen[i], &linear = *step[i]](const Tensor& x) {
      if (!one) one.emplace(linear.k(), linear.parts[0].name);
      one->add(x);
    };
  for (size_t text = 0; text < texts.size(); ++text) layer.watch(texts[text], hidden[text]);
  std::vector<LinearInputs> inputs(step.size());
  float largest_of_all = 0;
  for (size_t i = 0; i < step.size(); ++i) {
    step[i]->on_input = nullptr;
    inputs[i].unreached = !seen[i];
    if (!seen[i]) continue;
    const Tensor maxima = seen[i]->max_abs();
    inputs[i].largest = *std::max_element(maxima.data<float>(), maxima.data<float>() + maxima.numel());
    inputs[i].hessian = seen[i]->matrix();
    seen[i].reset();
    largest_of_all = std::max(largest_of_all, inputs[i].largest);
  }
  for (LinearInputs& one : inputs)
    if (one.unreached) one.largest = largest_of_all;
  return inputs;
}

FinishedLayer quantize_layer(WatchedLayer& layer, const Recipe& recipe,
                             std::span<const CheckpointLinear> linears, std::span<const TokenIds> texts,
                             std::span<const Tensor> hidden) {
  FinishedLayer finished;
  finished.norms = smooth_layer(layer, recipe, linears, texts, hidden);
  for (const WatchedStep& step : layer.steps()) {
    // The parts of a step are stored alike.
    const LinearStages stages = stages_of(recipe, find_linear(linears, step[0]->parts.at(0).name));
    if (stages.prune == nullptr && stages.round == nullptr) continue;
    std::vector<LinearInputs> inputs = collect_inputs(layer, step, texts, hidden);
    std::vector<InputSample> samples(step.size());
    if (stages.round != nullptr && stages.round->method == QuantizationMethod::awq)
      samples = sample_inputs(layer, step, texts, hidden);
    for (size_t i = 0; i < step.size(); ++i) {
      WatchedLinear& linear = *step[i];
      inputs[i].sample = samples[i].rows;
      const float global_scale = stages.round != nullptr ? common_global_scale(linear, *stages.round) : 0;
      for (WatchedPart& part : linear.parts) {
        finished.linears.push_back(quantize_linear(part.name, part.weight, stages, inputs[i], global_scale));
        part.weight.copy_from(finished.linears.back().values());
      }
      inputs[i] = {};
      if (stages.round == nullptr) continue;
      linear.activations = stages.round->linear->scheme.input_activations;
      linear.input_scale = finished.linears.back().linear.input_scale;
    }
  }
  return finished;
}

void restore_layer(WatchedLayer& layer, const Recipe& recipe, std::span<const CheckpointLinear> linears,
                   const FinishedLayer& finished) {
  const auto restore = [&](const std::string& name, const Tensor& tensor) {
    for (const NamedTensor& changed : finished.norms)
      if (changed.name == name) tensor.copy_from(changed.tensor.to(DType::f32));
  };
  for (const WatchedNorm& norm : layer.norms()) {
    restore(norm.gain_name, norm.gain);
    restore(norm.bias_name, norm.bias);
    for (const WatchedPart& router : norm.routers) restore(router.name, router.weight);
  }
  for (const auto& linear : layer.linears())
    for (WatchedPart& part : linear->parts) {
      const LinearStages stages = stages_of(recipe, find_linear(linears, part.name));
      if (stages.prune == nullptr && stages.round == nullptr) continue;
      const auto one =
          std::find_if(finished.linears.begin(), finished.linears.end(),
                       [&](const FinishedLinear& candidate) { return candidate.report.name == part.name; });
      LADDER_CHECK(one != finished.linears.end(), "{}: not among the finished linears", part.name);
      part.weight.copy_from(one->values());
      if (stages.round == nullptr) continue;
      linear->activations = stages.round->linear->scheme.input_activations;
      linear->input_scale = one->linear.input_scale;
    }
}
// <<< task 8.5.sequential

}  // namespace ladder
