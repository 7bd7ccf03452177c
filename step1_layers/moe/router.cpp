#include "step1_layers/moe/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/moe/moe_cuda.h"
#endif

namespace ladder {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// One token's row of each tensor.
struct TokenRoute {
  const float *logits, *bias;  // bias: nullptr where there is none
  int32_t* expert_ids;
  float* weights;
};

}  // namespace

// >>> task 1.9.router: scores, groups, the best experts of a token and their weights
namespace {

// Of equal keys the lower number comes first.
bool comes_before(float key, int64_t id, float other_key, int64_t other_id) {
  return key > other_key || (key == other_key && id < other_id);
}

// The best of all that come after (key, id) in that order.
int64_t next_best(std::span<const float> keys, float key, int64_t id) {
  int64_t best = -1;
  for (int64_t i = 0; i < std::ssize(keys); ++i)
    if (comes_before(key, id, keys[i], i) && (best < 0 || comes_before(keys[i], i, keys[best], best)))
      best = i;
  return best;
}

// The best `count` of keys, in their order; `ids` has room for them.
template <class Id>
void take_best(std::span<const float> keys, int64_t count, Id* ids) {
  float key = std::numeric_limits<float>::infinity();
  int64_t id = -1;
  for (int64_t i = 0; i < count; ++i) {
    id = next_best(keys, key, id);
    key = keys[id];
    ids[i] = static_cast<Id>(id);
  }
}

float group_score(std::span<const float> keys, GroupScore rule) {
  int64_t best[2];
  if (rule == GroupScore::best || keys.size() == 1) return *std::max_element(keys.begin(), keys.end());
  take_best(keys, 2, best);
  return keys[best[0]] + keys[best[1]];
}

// Experts outside of the best groups can no longer be chosen.
void mask_groups(const RouterRule& rule, std::span<float> keys, std::span<float> group_scores) {
  const int64_t size = std::ssize(keys) / rule.num_groups;
  for (int64_t group = 0; group < rule.num_groups; ++group)
    group_scores[group] = group_score(keys.subspan(group * size, size), rule.group_score);
  for (int64_t group = 0; group < rule.num_groups; ++group) {
    int64_t before = 0;
    for (int64_t other = 0; other < rule.num_groups; ++other)
      before += comes_before(group_scores[other], other, group_scores[group], group);
    if (before >= rule.topk_groups) std::fill_n(keys.begin() + group * size, size, kNever);
  }
}

void softmax(std::span<float> scores) {
  const float largest = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (float& score : scores) sum += score = std::exp(score - largest);
  for (float& score : scores) score /= sum;
}

// scores, keys and group_scores: room for as many values as there are experts.
void route_token(const RouterRule& rule, const TokenRoute& token, std::span<float> scores,
                 std::span<float> keys, std::span<float> group_scores) {
  for (size_t e = 0; e < scores.size(); ++e)
    scores[e] = std::isnan(token.logits[e]) ? kNever : token.logits[e];
  if (rule.score == RouterScore::sigmoid)
    for (float& score : scores) score = 1.0f / (1.0f + std::exp(-score));
  else
    softmax(scores);
  for (size_t e = 0; e < keys.size(); ++e)
    keys[e] = scores[e] + (token.bias != nullptr ? token.bias[e] : 0.0f);
  if (rule.num_groups > 1) mask_groups(rule, keys, group_scores);
  take_best(std::span<const float>(keys), rule.top_k, token.expert_ids);

  float sum = rule.score == RouterScore::sigmoid ? 1e-20f : 0.0f;  // scores of a sigmoid may all be 0
  for (int64_t i = 0; i < rule.top_k; ++i) sum += scores[token.expert_ids[i]];
  for (int64_t i = 0; i < rule.top_k; ++i) {
    const float weight = scores[token.expert_ids[i]];
    token.weights[i] = (rule.normalize ? weight / sum : weight) * static_cast<float>(rule.scaling_factor);
  }
}

// The best, weighed among those near it; then once more without it. So the two weights do not add up to 1.
void route_sparsemixer(const RouterRule& rule, const TokenRoute& token, std::span<float> left) {
  for (size_t e = 0; e < left.size(); ++e) left[e] = std::isnan(token.logits[e]) ? kNever : token.logits[e];
  for (int64_t i = 0; i < 2; ++i) {
    take_best(std::span<const float>(left), 1, token.expert_ids + i);
    const float largest = left[token.expert_ids[i]];
    float sum = 0;
    for (size_t e = 0; e < left.size(); ++e) {
      const float logit = token.logits[e];
      const bool near =
          (largest - logit) / std::max(std::abs(logit), largest) <= 2 * static_cast<float>(rule.jitter);
      if (near && left[e] > kNever) sum += std::exp(logit - largest);
    }
    token.weights[i] = static_cast<float>(rule.scaling_factor) / sum;
    left[token.expert_ids[i]] = kNever;
  }
}

void route_tokens_loop(const OpContext& ctx, const RouteTokensArgs& args) {
  const int64_t tokens = args.logits.dim(0), experts = args.logits.dim(1);
  Arena own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own;
  ArenaScope scope(arena);
  const Tensor scratch = arena.take({num_threads(), 3, experts}, DType::f32);
  const int64_t threads = scratch.dim(0);
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      auto room = [&](int64_t i) {
        return std::span(scratch.data<float>() + (thread * 3 + i) * experts, static_cast<size_t>(experts));
      };
      for (int64_t t = tokens * thread / threads; t < tokens * (thread + 1) / threads; ++t) {
        const TokenRoute token{args.logits.data<float>() + t * args.logits.stride(0),
                               args.correction_bias.defined() ? args.correction_bias.data<float>() : nullptr,
                               args.expert_ids.data<int32_t>() + t * args.expert_ids.stride(0),
                               args.weights.data<float>() + t * args.weights.stride(0)};
        if (args.rule.score == RouterScore::sparsemixer)
          route_sparsemixer(args.rule, token, room(0));
        else
          route_token(args.rule, token, room(0), room(1), room(2));
      }
    }
  });
}

}  // namespace
// <<< task 1.9.router

std::span<const Variant<RouteTokensArgs>> route_tokens_variants() {
  static constexpr Variant<RouteTokensArgs> table[] = {
      {.name = "loop",
       .idea = "token after token, the best expert again and again",
       .run = route_tokens_loop},
#ifdef LADDER_HAS_CUDA
      {.name = "block",
       .device = DeviceType::cuda,
       .idea = "a thread per expert, which counts those before its own",
       .supports = route_tokens_cuda_takes,
       .run = route_tokens_cuda},
#endif
  };
  return table;
}

namespace {

void check_rule(const RouterRule& rule, int64_t experts, bool biased) {
  LADDER_CHECK(rule.top_k >= 1 && rule.top_k <= experts, "route_tokens: {} of {} experts", rule.top_k,
               experts);
  LADDER_CHECK(rule.num_groups >= 1 && experts % rule.num_groups == 0,
               "route_tokens: {} experts cannot be split into {} groups", experts, rule.num_groups);
  const int64_t choosable = rule.topk_groups * (experts / rule.num_groups);
  LADDER_CHECK(rule.topk_groups >= 1 && rule.topk_groups <= rule.num_groups && rule.top_k <= choosable,
               "route_tokens: {} experts of the best {} of {} groups of {}", rule.top_k, rule.topk_groups,
               rule.num_groups, experts / rule.num_groups);
  LADDER_CHECK(!biased || rule.score == RouterScore::sigmoid,
               "route_tokens: a correction bias goes with sigmoid scores only");
  if (rule.score == RouterScore::sparsemixer)
    LADDER_CHECK(rule.top_k == 2 && rule.num_groups == 1 && !rule.normalize,
                 "route_tokens: sparsemixer takes two experts, without groups and with weights of its own");
}

// A matrix whose rows have adjacent elements.
void check_rows(const Tensor& tensor, int64_t rows, int64_t columns, DType dtype, std::string_view what) {
  expect_shape(tensor, {rows, columns}, what);
  expect_dtype(tensor, dtype, what);
  LADDER_CHECK(columns <= 1 || tensor.stride(1) == 1, "{}: the elements of a row must be adjacent", what);
}

}  // namespace

void route_tokens(const OpContext& ctx, const RouteTokensArgs& args) {
  expect_shape(args.logits, {-1, -1}, "route_tokens: logits");
  const int64_t tokens = args.logits.dim(0), experts = args.logits.dim(1), top_k = args.rule.top_k;
  check_rule(args.rule, experts, args.correction_bias.defined());
  check_rows(args.logits, tokens, experts, DType::f32, "route_tokens: logits");
  check_rows(args.expert_ids, tokens, top_k, DType::i32, "route_tokens: expert_ids");
  check_rows(args.weights, tokens, top_k, DType::f32, "route_tokens: weights");
  if (args.correction_bias.defined()) {
    expect_shape(args.correction_bias, {experts}, "route_tokens: correction_bias");
    expect_dtype(args.correction_bias, DType::f32, "route_tokens: correction_bias");
  }
  if (tokens > 0) run_variant<RouteTokensArgs>("route_tokens", route_tokens_variants(), ctx, args);
}

}  // namespace ladder
