#include "step7_parallel/pipeline/split_layers.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

// >>> task 7.5: what a layer and the head cost, and the cuts of which the slowest stage is the fastest
LayerCosts layer_costs(const DecoderSpec& spec) {
  const int64_t q = spec.num_heads * spec.head_dim, kv = spec.num_kv_heads * spec.head_dim;
  const int64_t mlp = (spec.gated_mlp ? 3 : 2) * spec.mean_active_mlp_width();
  return {spec.hidden_size * (2 * q + 2 * kv + mlp), spec.embedding_width() * spec.vocab_size};
}

std::vector<int64_t> split_layers(const DecoderSpec& spec, int stages) {
  LADDER_CHECK(stages >= 1 && stages <= spec.num_layers, "{} stages of {} layers", stages, spec.num_layers);
  if (stages == 1) return {spec.num_layers};
  const LayerCosts costs = layer_costs(spec);
  const int64_t others = stages - 1;
  int64_t best_last = 0, best_cost = 0;
  for (int64_t last = 1; last <= spec.num_layers - others; ++last) {
    const int64_t most_of_others = (spec.num_layers - last + others - 1) / others;
    const int64_t cost = std::max(most_of_others * costs.layer, last * costs.layer + costs.head);
    if (best_last == 0 || cost <= best_cost) best_last = last, best_cost = cost;
  }
  // From the last of the others backwards: the first stage, which has the embedding, is the last to get one more.
  const int64_t left = spec.num_layers - best_last;
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (int64_t stage = 0; stage < others; ++stage) {
    end += left / others + (stage >= others - left % others);
    ends.push_back(end);
  }
  ends.push_back(spec.num_layers);
  return ends;
}

double imbalance(const DecoderSpec& spec, const std::vector<int64_t>& stage_ends) {
  const LayerCosts costs = layer_costs(spec);
  int64_t most = 0, begin = 0;
  for (const int64_t end : stage_ends) {
    most = std::max(most, (end - begin) * costs.layer + (end == spec.num_layers ? costs.head : 0));
    begin = end;
  }
  const auto mean = static_cast<double>(spec.num_layers * costs.layer + costs.head) /
                    static_cast<double>(stage_ends.size());
  return static_cast<double>(most) / mean;
}
// <<< task 7.5

}  // namespace ladder
