// The router on a GPU.
#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/moe/moe_cuda.h"

namespace ladder {

namespace {

constexpr int kMaxExperts = 1024, kMaxGroups = 64;

struct Route {
  const float *logits, *bias;  // bias: nullptr where there is none
  int64_t logits_stride;
  int32_t* expert_ids;
  float* weights;
  int64_t ids_stride, weights_stride;
  int experts, top_k, num_groups, topk_groups;
  bool sigmoid, normalize, best_of_group;
  float scaling_factor, jitter;
};

// Whether an expert with this key is taken before another one: of equal keys the lower number.
__device__ bool comes_before(float key, int id, float other_key, int other_id) {
  return key > other_key || (key == other_key && id < other_id);
}

// block
// At most 1024 experts. A block per token, a thread per expert: a thread reads all keys in shared memory, counts those
// that come before its own, and so knows its place without a loop over the places, a sort or an atomic.
// What the thread's expert is chosen by: -infinity where its group is not among the best.
__device__ float key_of(const Route& route, float* keys, float* group_scores, float key) {
  const int expert = static_cast<int>(threadIdx.x);
  if (route.num_groups == 1) return key;
  const int size = route.experts / route.num_groups;
  if (expert < route.experts) keys[expert] = key;
  __syncthreads();
  if (expert < route.num_groups) {
    float best = -INFINITY, second = -INFINITY;
    for (int i = expert * size; i < (expert + 1) * size; ++i) {
      second = fmaxf(second, fminf(best, keys[i]));
      best = fmaxf(best, keys[i]);
    }
    group_scores[expert] = route.best_of_group || size == 1 ? best : best + second;
  }
  __syncthreads();
  const int group = min(expert, route.experts - 1) / size;
  int before = 0;
  for (int other = 0; other < route.num_groups; ++other)
    before += comes_before(group_scores[other], other, group_scores[group], group);
  return before < route.topk_groups ? key : -INFINITY;
}

__global__ void route_block(Route route) {
  __shared__ float keys[kMaxExperts], chosen[kMaxExperts], group_scores[kMaxGroups];
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t token = blockIdx.x;
  const int expert = static_cast<int>(threadIdx.x);
  const bool exists = expert < route.experts;
  float logit = exists ? route.logits[token * route.logits_stride + expert] : -INFINITY;
  if (logit != logit) logit = -INFINITY;  // a NaN is never the best

  float score;
  if (route.sigmoid) {
    score = 1.0f / (1.0f + expf(-logit));
  } else {
    const float largest = block_max(logit);
    const float power = exists ? expf(logit - largest) : 0.0f;
    score = power / block_sum(power);
  }
  const float biased = exists && route.bias != nullptr ? score + route.bias[expert] : score;
  const float key = key_of(route, keys, group_scores, exists ? biased : -INFINITY);
  __syncthreads();
  if (exists) keys[expert] = key;
  __syncthreads();

  int place = route.top_k;
  if (exists) {
    place = 0;
    for (int other = 0; other < route.experts; ++other)
      place += comes_before(keys[other], other, key, expert);
  }
  if (place < route.top_k) {
    chosen[place] = score;
    route.expert_ids[token * route.ids_stride + place] = expert;
  }
  __syncthreads();
  if (expert >= route.top_k) return;
  float weight = chosen[expert];
  if (route.normalize) {
    float sum = route.sigmoid ? 1e-20f : 0.0f;
    for (int i = 0; i < route.top_k; ++i) sum += chosen[i];
    weight /= sum;
  }
  route.weights[token * route.weights_stride + expert] = weight * route.scaling_factor;
}

// sparsemixer: the best, weighed among those near it; then once more without it.
__global__ void route_sparsemixer(Route route) {
  __shared__ int best;
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t token = blockIdx.x;
  const int expert = static_cast<int>(threadIdx.x);
  const float logit = expert < route.experts ? route.logits[token * route.logits_stride + expert] : -INFINITY;
  float left = logit == logit ? logit : -INFINITY;  // a NaN is never the best
  for (int place = 0; place < 2; ++place) {
    const float largest = block_max(left);
    if (expert == 0) best = route.experts;
    __syncthreads();
    if (left == largest && expert < route.experts) atomicMin(&best, expert);
    const bool near = (largest - logit) / fmaxf(fabsf(logit), largest) <= 2.0f * route.jitter;
    const float sum = block_sum(near && left > -INFINITY ? expf(left - largest) : 0.0f);  // and a barrier
    if (expert == best) {
      route.expert_ids[token * route.ids_stride + place] = expert;
      route.weights[token * route.weights_stride + place] = route.scaling_factor / sum;
      left = -INFINITY;
    }
    __syncthreads();  // all have read `best`
  }
}

}  // namespace

void route_tokens_cuda(const OpContext& ctx, const RouteTokensArgs& args) {
  const RouterRule& rule = args.rule;
  const Route route{.logits = cuda_data<float>(args.logits),
                    .bias = cuda_data<float>(args.correction_bias),
                    .logits_stride = args.logits.stride(0),
                    .expert_ids = cuda_data<int32_t>(args.expert_ids),
                    .weights = cuda_data<float>(args.weights),
                    .ids_stride = args.expert_ids.stride(0),
                    .weights_stride = args.weights.stride(0),
                    .experts = static_cast<int>(args.logits.dim(1)),
                    .top_k = static_cast<int>(rule.top_k),
                    .num_groups = static_cast<int>(rule.num_groups),
                    .topk_groups = static_cast<int>(rule.topk_groups),
                    .sigmoid = rule.score == RouterScore::sigmoid,
                    .normalize = rule.normalize,
                    .best_of_group = rule.group_score == GroupScore::best,
                    .scaling_factor = static_cast<float>(rule.scaling_factor),
                    .jitter = static_cast<float>(rule.jitter)};
  const auto tokens = static_cast<unsigned>(args.logits.dim(0));
  const auto threads = static_cast<unsigned>(ceil_div(route.experts, kWarp) * kWarp);
  launch_kernel(ctx, rule.score == RouterScore::sparsemixer ? route_sparsemixer : route_block, tokens,
                threads, 0, route);
}

bool route_tokens_cuda_takes(const RouteTokensArgs& args) {
  return args.logits.dim(1) <= kMaxExperts && args.rule.num_groups <= kMaxGroups;
}

}  // namespace ladder
