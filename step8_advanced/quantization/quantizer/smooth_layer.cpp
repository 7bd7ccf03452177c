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

const RecipeStage* smoothing_of(const Recipe& recipe, const CheckpointLinear& linear) {
  return linear.smooth_stage < 0 ? nullptr : &recipe.stages[static_cast<size_t>(linear.smooth_stage)];
}

const RecipeStage* awq_of(const Recipe& recipe, const CheckpointLinear& linear) {
  if (!linear.is_rounded()) return nullptr;
  const RecipeStage& stage = recipe.stages[static_cast<size_t>(linear.stage)];
  return stage.method == QuantizationMethod::awq ? &stage : nullptr;
}

void add_weights(const WatchedLinear& linear, std::vector<Tensor>& weights) {
  for (const WatchedPart& part : linear.parts) weights.push_back(part.weight);
}

// A norm, and all linears that it feeds.
struct NormAndReaders {
  const WatchedNorm& norm;
  WatchedStep readers;
  std::vector<Tensor> weights;  // theirs
};

NormAndReaders readers_of(WatchedLayer& layer, const WatchedNorm& norm) {
  NormAndReaders result{norm, {}, {}};
  for (const auto& linear : layer.linears())
    if (layer.norm_before(*linear) == &norm) {
      result.readers.push_back(linear.get());
      add_weights(*linear, result.weights);
    }
  return result;
}

// Divides what a norm gives by `scales` and multiplies the columns of all that read it, by what the norm's dtype can hold of them.
void fold_into_norm(const NormAndReaders& all, DType dtype, const Tensor& scales) {
  const WatchedNorm& norm = all.norm;
  const Tensor divided = Tensor::empty(norm.gain.shape(), DType::f32);
  for (int64_t i = 0; i < divided.numel(); ++i)
    divided.data<float>()[i] = norm.gain.data<float>()[i] / scales.data<float>()[i];
  const Tensor kept = divided.to(dtype).to(DType::f32);
  const Tensor exact = scales.clone();
  for (int64_t i = 0; i < exact.numel(); ++i) {
    const float factor = norm.gain.data<float>()[i] / kept.data<float>()[i];
    if (factor > 0) exact.data<float>()[i] = factor;  // a gain of 0 stays 0, whatever the factor
  }
  std::vector<Tensor> matrices = all.weights;
  for (const WatchedPart& router : norm.routers) matrices.push_back(router.weight);
  fold_scales(NormBefore{norm.gain, norm.bias}, matrices, exact, all.readers[0]->name);
  norm.gain.copy_from(kept);
  if (norm.bias.defined()) norm.bias.copy_from(norm.bias.to(dtype).to(DType::f32));
  for (const WatchedPart& router : norm.routers)
    router.weight.copy_from(router.weight.to(dtype).to(DType::f32));
}

// The linear part whose rows make this linear's inputs, one each; it is rounded later, so its file is written anyway.
std::optional<Tensor> rows_before(WatchedLayer& layer, const WatchedLinear& linear,
                                  std::span<const CheckpointLinear> linears) {
  std::string before_name = linear.name;
  for (const auto& [end, before] : {std::pair{".o_proj", ".qkv_proj"},
                                    {".down_proj", ".gate_up_proj"},
                                    {".experts.down", ".experts.gate_up"}})
    if (linear.name.ends_with(end))
      before_name.replace(linear.name.size() - std::string_view(end).size(), std::string::npos, before);
  if (before_name == linear.name) return std::nullopt;
  for (const auto& before : layer.linears()) {
    if (before->name != before_name || before->expert != linear.expert) continue;
    if (before->has_bias || !stages_of(*before, linears).is_rounded()) return std::nullopt;
    const Tensor& weight = before->parts.back().weight;  // v; up
    if (weight.dim(0) == linear.k()) return weight;
  }
  return std::nullopt;
}

class LayerSmoother {
 public:
  LayerSmoother(WatchedLayer& layer, const Recipe& recipe, std::span<const CheckpointLinear> linears,
                std::span<const TokenIds> texts, std::span<const Tensor> hidden)
      : layer_(layer), recipe_(recipe), linears_(linears), texts_(texts), hidden_(hidden) {}

  std::vector<NamedTensor> run() {
    for (const WatchedStep& step : layer_.steps()) {
      const WatchedNorm* norm = layer_.norm_before(*step[0]);
      if (norm == nullptr)
        fold_into_rows(step);
      else if (const NormAndReaders all = readers_of(layer_, *norm); all.readers[0] == step[0])
        smooth_norm(all);
    }
    return std::move(changed_);
  }

 private:
  void smooth_norm(const NormAndReaders& all) {
    const CheckpointLinear& first = stages_of(*all.readers[0], linears_);
    const RecipeStage* smooth = smoothing_of(recipe_, first);
    bool awq = true;
    for (const WatchedLinear* reader : all.readers) {
      const CheckpointLinear& stages = stages_of(*reader, linears_);
      awq = awq && awq_of(recipe_, stages) != nullptr;
      LADDER_CHECK(smoothing_of(recipe_, stages) == smooth,
                   "{} and {} take the same norm's output: expected the same smoothing for both", first.name,
                   stages.name);
    }
    if (smooth == nullptr && !awq) return;
    const std::string& name = all.readers[0]->name;
    if (smooth != nullptr)
      fold_into_norm(all, layer_.checkpoint_dtype(),
                     smoothquant_scales(largest_of(statistics_of(all.readers)), all.weights,
                                        smooth->smoothing_strength, name));
    if (awq) {
      const AwqScales found = search(all.readers, all.weights, mean_of(statistics_of(all.readers)),
                                     sample_inputs(layer_, all.readers, texts_, hidden_));
      if (!found.identity) fold_into_norm(all, layer_.checkpoint_dtype(), found.scales);
    }
    const auto keep = [&](const std::string& changed, const Tensor& tensor) {
      changed_.push_back({changed, tensor.to(layer_.checkpoint_dtype())});
    };
    keep(all.norm.gain_name, all.norm.gain);
    if (all.norm.bias.defined()) keep(all.norm.bias_name, all.norm.bias);
    for (const WatchedPart& router : all.norm.routers) keep(router.name, router.weight);
  }

  // The factors of each linear of a step go into the rows before it.
  void fold_into_rows(const WatchedStep& step) {
    if (awq_of(recipe_, stages_of(*step[0], linears_)) == nullptr || !rows_before(layer_, *step[0], linears_))
      return;
    Statistics statistics = statistics_of(step);
    const std::vector<InputSample> samples = sample_inputs(layer_, step, texts_, hidden_);
    for (size_t i = 0; i < step.size(); ++i) {
      const std::optional<Tensor> before = rows_before(layer_, *step[i], linears_);
      if (!before || !statistics[i]) continue;
      std::vector<Tensor> weights;
      add_weights(*step[i], weights);
      const AwqScales found =
          search({step[i]}, weights, statistics[i]->mean_abs(), std::span(&samples[i], 1));
      if (!found.identity) fold_scales(LinearBefore{*before}, weights, found.scales, step[i]->name);
    }
  }

  // Of each linear's inputs; none: an expert to which no token came.
  using Statistics = std::vector<std::optional<Hessian>>;
  Statistics statistics_of(const WatchedStep& linears) {
    Statistics all(linears.size());
    for (size_t i = 0; i < linears.size(); ++i)
      linears[i]->on_input = [&one = all[i], linear = linears[i]](const Tensor& x) {
        if (!one) one.emplace(linear->k(), linear->parts[0].name);
        one->add(x);
      };
    for (size_t text = 0; text < texts_.size(); ++text) layer_.watch(texts_[text], hidden_[text]);
    for (WatchedLinear* linear : linears) linear->on_input = nullptr;
    return all;
  }

  // Of all linears' inputs together.
  static Tensor largest_of(const Statistics& all) {
    Tensor largest;
    for (const auto& one : all) {
      if (!one) continue;
      const Tensor more = one->max_abs();
      if (!largest.defined()) largest = more;
      std::transform(more.data<float>(), more.data<float>() + more.numel(), largest.data<float>(),
                     largest.data<float>(), [](float a, float b) { return std::max(a, b); });
    }
    return largest;
  }
  static Tensor mean_of(const Statistics& all) {
    if (all.size() == 1) return all[0]->mean_abs();
    std::vector<double> sums;
    double count = 0;
    for (const auto& one : all) {
      if (!one) continue;
      const Tensor mean = one->mean_abs();
      sums.resize(static_cast<size_t>(mean.numel()));
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] += static_cast<double>(one->count()) * mean.data<float>()[i];
      count += static_cast<double>(one->count());
    }
    const Tensor mean = Tensor::empty({std::ssize(sums)}, DType::f32);
    for (size_t i = 0; i < sums.size(); ++i) mean.data<float>()[i] = static_cast<float>(sums[i] / count);
    return mean;
  }

  // The scales of the least error of all these linears together, each on rows that come to it.
  AwqScales search(const WatchedStep& step, std::span<const Tensor> weights, const Tensor& mean_abs,
                   std::span<const InputSample> samples) const {
    const auto args_of = [&](const WatchedLinear& linear) -> const QuantizationArgs& {
      return awq_of(recipe_, stages_of(linear, linears_))->linear->scheme.weights;
    };
    double tokens = 0;
    for (const InputSample& sample : samples) tokens += static_cast<double>(sample.count);
    const auto error = [&](const Tensor& scales) {
      double sum = 0;
      for (size_t i = 0; i < step.size(); ++i) {
        if (samples[i].count == 0) continue;
        std::vector<Tensor> of_one;
        add_weights(*step[i], of_one);
        sum += static_cast<double>(samples[i].count) / tokens *
               awq_error(samples[i].rows, of_one, args_of(*step[i]), scales, step[i]->name);
      }
      return sum;
    };
    return search_awq_scales(mean_abs, weights, args_of(*step[0]), step[0]->name, error);
  }

  WatchedLayer& layer_;
  const Recipe& recipe_;
  std::span<const CheckpointLinear> linears_;
  std::span<const TokenIds> texts_;
  std::span<const Tensor> hidden_;
  std::vector<NamedTensor> changed_;
};

}  // namespace

std::vector<InputSample> sample_inputs(WatchedLayer& layer, const WatchedStep& linears,
                                       std::span<const TokenIds> texts, std::span<const Tensor> hidden) {
  const int64_t per_text =
      std::max<int64_t>((kSampleRows + std::ssize(texts) - 1) / std::max<int64_t>(std::ssize(texts), 1), 1);
  std::vector<InputSample> samples(linears.size());
  std::vector<std::vector<Tensor>> rows(linears.size());
  for (size_t i = 0; i < linears.size(); ++i)
    linears[i]->on_input = [&kept = rows[i], &sample = samples[i], per_text](const Tensor& x) {
      const int64_t count = std::min({per_text, x.dim(0), kSampleRows - std::ssize(kept)});
      for (int64_t row = 0; row < count; ++row) kept.push_back(x.select(0, row * x.dim(0) / count).clone());
      sample.count += x.dim(0);
    };
  for (size_t text = 0; text < texts.size(); ++text) layer.watch(texts[text], hidden[text]);
  for (size_t i = 0; i < linears.size(); ++i) {
    linears[i]->on_input = nullptr;
    if (rows[i].empty()) continue;
    samples[i].rows = Tensor::empty({std::ssize(rows[i]), linears[i]->k()}, DType::f32);
    for (size_t row = 0; row < rows[i].size(); ++row)
      samples[i].rows.select(0, static_cast<int64_t>(row)).copy_from(rows[i][row]);
  }
  return samples;
}

std::vector<NamedTensor> smooth_layer(WatchedLayer& layer, const Recipe& recipe,
                                      std::span<const CheckpointLinear> linears,
                                      std::span<const TokenIds> texts, std::span<const Tensor> hidden) {
  return LayerSmoother(layer, recipe, linears, texts, hidden).run();
}

}  // namespace ladder
