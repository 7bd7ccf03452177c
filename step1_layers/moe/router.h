#pragma once
// Task 1.9.router: which experts a token goes to, and with which weights.
//
// A mixture of experts keeps many MLPs in a layer and runs few of them for a token (Shazeer et al., 2017, arXiv
// 1701.06538). The router is a small linear; its results, one logit per expert, become scores, the best top_k are
// chosen, and their scores weigh what these experts compute:
//
//   softmax      score = softmax(logits)                   Mixtral, Qwen2-MoE, Qwen3-MoE, DeepSeek-V2
//   sigmoid      score = 1 / (1 + e^-logit)                DeepSeek-V3: chosen by score + correction_bias, weighed by score
//   sparsemixer  e1 = argmax; its weight is a softmax over the experts with (l1 - lj) / max(|lj|, l1) <= 2 * jitter;
//                then e1 is masked and the same is done once more for e2      Phi-3.5-MoE (arXiv 2409.12136)
//
// Choosing in groups (DeepSeek): experts lie in num_groups groups of equal size; only those of the best topk_groups
// groups can be chosen. What cannot be chosen counts as -infinity: with 0, a negative bias would let it win.
// Of equal scores the lowest expert number comes first. A row is in descending order of what it was chosen by.
#include <cstdint>
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

enum class RouterScore : uint8_t { softmax, sigmoid, sparsemixer };
enum class GroupScore : uint8_t { best, sum_of_best_two };  // of a group's experts: DeepSeek-V2, DeepSeek-V3

struct RouterRule {
  RouterScore score = RouterScore::softmax;
  int64_t top_k = 1;
  bool normalize = false;  // the weights of a token are divided by their sum (norm_topk_prob)
  int64_t num_groups = 1;
  int64_t topk_groups = 1;
  GroupScore group_score = GroupScore::best;
  double scaling_factor = 1;  // of the weights, last of all (routed_scaling_factor)
  double jitter = 0.01;       // sparsemixer; at inference too
};

struct RouteTokensArgs {
  Tensor logits;           // [tokens, experts] f32
  Tensor correction_bias;  // [experts] f32, or undefined; sigmoid only
  RouterRule rule;
  Tensor expert_ids;  // out [tokens, top_k] i32
  Tensor weights;     // out [tokens, top_k] f32
};

std::span<const Variant<RouteTokensArgs>> route_tokens_variants();

// Computed in float. No tokens: nothing is done. Error: shapes, dtypes or a rule that do not fit together (top_k beyond
// the experts that can be chosen, groups that do not divide, sparsemixer with top_k other than 2).
void route_tokens(const OpContext& ctx, const RouteTokensArgs& args);

}  // namespace ladder
