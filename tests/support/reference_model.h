#pragma once
// The model once more, as plainly as it can be said: double precision, one sequence, no cache, no batch,
// loops over checkpoint tensors by their checkpoint names. It shares with the engine only what it does not
// want to judge: reading the files, the config, and the table of rotary angles (which goldens of their own
// judge). For small models; every kernel, layout and quantization of the engine can be held against it.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/rotary/rope.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/model.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

class ReferenceModel {
 public:
  using Row = std::vector<double>;

  explicit ReferenceModel(const std::filesystem::path& directory, int64_t max_model_len = 0)
      : spec_(load_decoder_spec(directory)) {
    const Checkpoint checkpoint(directory);
    for (const Checkpoint::Entry& entry : checkpoint.entries()) {
      std::string name = entry.info->name;
      if (name.rfind("model.", 0) == 0) name = name.substr(6);
      if (name.rfind("decoder.", 0) == 0) name = common_name(name.substr(8));
      weights_[name] = to_double(entry.tensor());
    }
    const RopeFrequencies rope =
        rope_frequencies(spec_.rope, max_model_len > 0 ? max_model_len : spec_.max_position_embeddings);
    inv_freq_ = rope.inv_freq;
    attention_factor_ = rope.attention_factor;
  }

  const DecoderSpec& spec() const { return spec_; }
  // Replaces a weight, by its checkpoint name without "model.": to see what a quantized one would do.
  Row& weight(const std::string& name) { return weights_.at(name); }

  // By how much, at the least, a router's choice was made in what logits() computed so far, in units of the router's
  // logits: where it is near 0 another order of the same sums may choose another expert, and be as right.
  double narrowest_choice() const { return narrowest_choice_; }

  // logits[position][token]
  std::vector<Row> logits(std::span<const int32_t> token_ids) const {
    const int64_t width = spec_.embedding_width(), hidden = spec_.hidden_size;
    std::vector<Row> x;
    for (const int32_t id : token_ids) {
      const double* row = weights_.at("embed_tokens.weight").data() + id * width;
      Row embedded(row, row + width);
      if (width != hidden) embedded = project("project_in", embedded);
      if (spec_.learned_positions) {
        const auto position = static_cast<int64_t>(x.size()) + spec_.position_offset;
        const double* of_position = weights_.at("embed_positions.weight").data() + position * hidden;
        add(embedded, Row(of_position, of_position + hidden));
      }
      x.push_back(std::move(embedded));
    }
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) run_layer(layer, x);
    const Row& head = weights_.at(spec_.tie_word_embeddings ? "embed_tokens.weight" : "lm_head.weight");
    std::vector<Row> result;
    for (const Row& row : x) {
      const Row last = spec_.final_norm ? norm(row, "norm") : row;
      result.push_back(multiply(head, bias_of("lm_head"),
                                width != hidden ? project("project_out", last) : last, spec_.vocab_size));
    }
    return result;
  }

 private:
  // OPT's names, where it has what the other families have.
  static std::string common_name(std::string name) {
    const bool in_layer = name.rfind("layers.", 0) == 0;
    for (const auto& [own, common] : std::initializer_list<std::pair<std::string, std::string>>{
             {"self_attn_layer_norm", "input_layernorm"},
             {"final_layer_norm", in_layer ? "post_attention_layernorm" : "norm"},
             {"out_proj", "o_proj"}})
      if (const size_t at = name.find(own); at != std::string::npos && name.rfind("project_out", 0) != 0)
        name.replace(at, own.size(), common);
    return name;
  }

  static Row multiply(const Row& weight, const Row& bias, const Row& x, int64_t rows) {
    Row out(static_cast<size_t>(rows));
    for (size_t i = 0; i < out.size(); ++i) {
      double sum = bias.empty() ? 0.0 : bias[i];
      for (size_t k = 0; k < x.size(); ++k) sum += weight[i * x.size() + k] * x[k];
      out[i] = sum;
    }
    return out;
  }

  Row project(const std::string& name, const Row& x) const {
    const Row& weight = weights_.at(name + ".weight");
    return multiply(weight, bias_of(name), x, static_cast<int64_t>(weight.size() / x.size()));
  }

  // Empty where there is none.
  Row bias_of(const std::string& name) const {
    const auto bias = weights_.find(name + ".bias");
    return bias == weights_.end() ? Row{} : bias->second;
  }

  // LayerNorm where the norm has a bias, else RMSNorm.
  Row norm(const Row& x, const std::string& name) const {
    const Row &gains = weights_.at(name + ".weight"), bias = bias_of(name);
    const auto width = static_cast<double>(x.size());
    const double mean = bias.empty() ? 0 : std::accumulate(x.begin(), x.end(), 0.0) / width;
    double sum = 0;
    for (const double value : x) sum += (value - mean) * (value - mean);
    const double scale = 1.0 / std::sqrt(sum / width + spec_.norm_eps);
    Row out(x.size());
    for (size_t i = 0; i < x.size(); ++i)
      out[i] = (x[i] - mean) * scale * gains[i] + (bias.empty() ? 0 : bias[i]);
    return out;
  }

  // Norms (where the model has them) and rotates every head of a row.
  void norm_and_rotate(Row& heads, int64_t position, const std::string& norm_name) const {
    const auto width = static_cast<size_t>(spec_.head_dim), half = inv_freq_.size();
    for (size_t head = 0; head < heads.size(); head += width) {
      if (spec_.qk_norm) {
        const Row part(heads.begin() + static_cast<int64_t>(head),
                       heads.begin() + static_cast<int64_t>(head + width));
        const Row normed = norm(part, norm_name);
        std::copy(normed.begin(), normed.end(), heads.begin() + static_cast<int64_t>(head));
      }
      for (size_t i = 0; i < half; ++i) {
        // The angle is rounded to f32 as transformers does it: far out, that is what the model was run with.
        const float angle = static_cast<float>(position) * inv_freq_[i];
        const double c = std::cos(static_cast<double>(angle)) * attention_factor_;
        const double s = std::sin(static_cast<double>(angle)) * attention_factor_;
        const double a = heads[head + i], b = heads[head + i + half];
        heads[head + i] = a * c - b * s;
        heads[head + i + half] = b * c + a * s;
      }
    }
  }

  Row attend(const Row& q, const std::vector<Row>& keys, const std::vector<Row>& values,
             size_t num_keys) const {
    const auto width = static_cast<size_t>(spec_.head_dim);
    const auto group = static_cast<size_t>(spec_.num_heads / spec_.num_kv_heads);
    Row out(q.size());
    for (size_t head = 0; head < q.size() / width; ++head) {
      const size_t at = head * width, kv = head / group * width;
      Row scores(num_keys);
      double largest = -INFINITY, total = 0;
      for (size_t j = 0; j < num_keys; ++j) {
        for (size_t i = 0; i < width; ++i) scores[j] += q[at + i] * keys[j][kv + i];
        scores[j] /= std::sqrt(static_cast<double>(width));
        largest = std::max(largest, scores[j]);
      }
      for (double& score : scores) total += score = std::exp(score - largest);
      for (size_t j = 0; j < num_keys; ++j)
        for (size_t i = 0; i < width; ++i) out[at + i] += scores[j] / total * values[j][kv + i];
    }
    return out;
  }

  double activation(double x) const {
    switch (spec_.activation) {
      case MlpActivation::relu:
        return std::max(x, 0.0);
      case MlpActivation::silu:
        return x / (1 + std::exp(-x));
      case MlpActivation::gelu:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
      case MlpActivation::gelu_tanh:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    }
    return 0;
  }

  void run_layer(int64_t index, std::vector<Row>& x) const {
    const std::string layer = "layers." + std::to_string(index) + ".";
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    std::vector<Row> keys, values;
    for (size_t t = 0; t < x.size(); ++t) {
      const bool after = spec_.post_norm;
      const Row normed = after ? x[t] : norm(x[t], layer + "input_layernorm");
      Row q = project(attention + "q_proj", normed);
      keys.push_back(project(attention + "k_proj", normed));
      values.push_back(project(attention + "v_proj", normed));
      norm_and_rotate(q, static_cast<int64_t>(t), attention + "q_norm");
      norm_and_rotate(keys.back(), static_cast<int64_t>(t), attention + "k_norm");
      add(x[t], project(attention + "o_proj", attend(q, keys, values, t + 1)));

      if (after) x[t] = norm(x[t], layer + "input_layernorm");
      const Row second = after ? x[t] : norm(x[t], layer + "post_attention_layernorm");
      if (!spec_.gated_mlp)
        add(x[t], run_plain_mlp(layer, second));
      else if (weights_.contains(mlp + "gate_proj.weight"))
        add(x[t], run_mlp(mlp + "gate_proj", mlp + "up_proj", mlp + "down_proj", second));
      else if (weights_.contains(mlp + "gate.weight"))
        add(x[t], run_experts(mlp, {"gate_proj", "up_proj", "down_proj"}, second));
      else
        add(x[t], run_experts(layer + "block_sparse_moe.", {"w1", "w3", "w2"}, second));
      if (after) x[t] = norm(x[t], layer + "post_attention_layernorm");
    }
  }

  Row run_plain_mlp(const std::string& layer, const Row& x) const {
    Row inner = project(layer + "fc1", x);
    for (double& value : inner) value = activation(value);
    return project(layer + "fc2", inner);
  }

  Row run_mlp(const std::string& gate_name, const std::string& up_name, const std::string& down_name,
              const Row& x) const {
    Row gate = project(gate_name, x);
    const Row up = project(up_name, x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = activation(gate[i]) * up[i];
    return project(down_name, gate);
  }

  // The best expert, weighed by a softmax over those that are near it; then the same without it.
  Row run_sparsemixer(const std::string& block, const std::array<std::string, 3>& names, const Row& x,
                      const Row& logits) const {
    Row out(x.size());
    std::vector<size_t> chosen;
    for (int round = 0; round < 2; ++round) {
      const auto is_left = [&](size_t e) { return chosen.empty() || e != chosen[0]; };
      size_t best = is_left(0) ? 0 : 1;
      for (size_t e = 0; e < logits.size(); ++e)
        if (is_left(e) && logits[e] > logits[best]) best = e;
      double total = 0;
      for (size_t e = 0; e < logits.size(); ++e) {
        if (!is_left(e)) continue;
        const double distance = logits[best] - logits[e];
        const double limit = 2 * spec_.experts.rule.jitter * std::max(std::abs(logits[e]), logits[best]);
        if (distance <= limit) total += std::exp(-distance);
        if (e != best) note_choice(std::min(distance, std::abs(distance - limit)));
      }
      chosen.push_back(best);
      const std::string prefix = block + "experts." + std::to_string(best) + ".";
      Row one = run_mlp(prefix + names[0], prefix + names[1], prefix + names[2], x);
      for (double& value : one) value /= total;
      add(out, one);
    }
    return out;
  }

  // Softmax over all experts, the best of them, their weights divided by their sum where the model does it.
  Row run_experts(const std::string& block, const std::array<std::string, 3>& names, const Row& x) const {
    const RouterRule& rule = spec_.experts.rule;
    Row scores = project(block + "gate", x);
    if (rule.score == RouterScore::sparsemixer) return run_sparsemixer(block, names, x, scores);
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    const auto top_k = static_cast<size_t>(rule.top_k);
    if (top_k < order.size()) note_choice(scores[order[top_k - 1]] - scores[order[top_k]]);
    order.resize(top_k);
    double total = 0, chosen = 0;
    for (double& score : scores) total += score = std::exp(score);
    for (const size_t expert : order) chosen += scores[expert];

    Row out(x.size());
    for (const size_t expert : order) {
      const std::string prefix = block + "experts." + std::to_string(expert) + ".";
      Row one = run_mlp(prefix + names[0], prefix + names[1], prefix + names[2], x);
      for (double& value : one) value *= scores[expert] / (rule.normalize ? chosen : total);
      add(out, one);
    }
    if (weights_.contains(block + "shared_expert_gate.weight")) {
      const std::string shared = block + "shared_expert.";
      Row one = run_mlp(shared + "gate_proj", shared + "up_proj", shared + "down_proj", x);
      const double share = 1 / (1 + std::exp(-project(block + "shared_expert_gate", x)[0]));
      for (double& value : one) value *= share;
      add(out, one);
    }
    return out;
  }

  void note_choice(double margin) const { narrowest_choice_ = std::min(narrowest_choice_, margin); }

  static void add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  DecoderSpec spec_;
  std::map<std::string, Row> weights_;
  std::vector<float> inv_freq_;
  double attention_factor_ = 1.0;
  mutable double narrowest_choice_ = std::numeric_limits<double>::infinity();
};

}  // namespace ladder::testing
