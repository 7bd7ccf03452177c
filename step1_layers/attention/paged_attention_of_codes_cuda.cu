// Attention over codes for every type, head size and block size: the rung that the others are explained against.
#include "step1_layers/attention/kv_codes_cuda.cuh"
#include "step1_layers/attention/paged_attention_of_codes_cuda.cuh"

namespace ladder {

namespace {

// naive
// As the naive rung of paged_attention: a block computes one head of one query row, its warps take turns along the keys, and the
// lanes of a warp share a key's numbers. Which warp takes a key depends on its position alone: batch invariant.
constexpr int kThreads = 128, kWarps = kThreads / kWarp, kMaxDim = 256, kPerLane = kMaxDim / kWarp;

}  // namespace

// >>> task 8.6.cuda.attention: attention over codes on a GPU, a block for each head of a query row
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_of_codes_naive(AttentionOfCodes<T> a, KvCacheDType kept_as) {
  __shared__ float merged[kWarps][kMaxDim], largest_of[kWarps], sum_of[kWarps];
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x / a.heads;
  const int head = static_cast<int>(blockIdx.x % a.heads), kv_head = head / a.group;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (row >= a.query_start_loc[a.num_seqs]) return;  // num_tokens was a bound

  int64_t low = 0, high = a.num_seqs;  // the sequence with query_start_loc[low] <= row
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (a.query_start_loc[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  const int64_t num_keys = a.seq_lens[low] - a.causal * (a.query_start_loc[low + 1] - 1 - row);
  if (num_keys <= 0) return;  // a padding row
  const int32_t* table = a.block_tables + low * a.table_stride;

  float q[kPerLane], out[kPerLane] = {};
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + i * kWarp;
    q[i] = e < a.k_dim ? to_float(a.q[row * a.q_token + head * a.q_head + e]) * a.scale : 0.0f;
  }
  float largest = -INFINITY, sum = 0;
  for (int64_t j = warp; j < num_keys; j += kWarps) {
    const int64_t block = table[j / a.block_size], slot = j % a.block_size;
    const int64_t scales = (block * a.block_size + slot) * a.kv_heads + kv_head;
    const uint8_t* k = a.k_codes + block * a.k_block + slot * a.k_slot + kv_head * a.k_head;
    const uint8_t* v = a.v_codes + block * a.v_block + slot * a.v_slot + kv_head * a.v_head;
    const float2 k_scale = a.k_scales[scales], v_scale = a.v_scales[scales];
    float score = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (lane + i * kWarp < a.k_dim)
        score = fmaf(q[i], kv_number(kept_as, k, lane + i * kWarp, k_scale), score);
    score = warp_sum(score);
    const float new_largest = fmaxf(largest, score);
    const float correction = exp2f(largest - new_largest), weight = exp2f(score - new_largest);
    sum = sum * correction + weight;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (lane + i * kWarp < a.v_dim)
        out[i] = fmaf(weight, kv_number(kept_as, v, lane + i * kWarp, v_scale), out[i] * correction);
    largest = new_largest;
  }

#pragma unroll
  for (int i = 0; i < kPerLane; ++i) merged[warp][lane + i * kWarp] = out[i];
  if (lane == 0) {
    largest_of[warp] = largest;
    sum_of[warp] = sum;
  }
  __syncthreads();
  float total_largest = largest_of[0], total = 0, factor[kWarps];
  for (int w = 1; w < kWarps; ++w) total_largest = fmaxf(total_largest, largest_of[w]);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    factor[w] = exp2f(largest_of[w] - total_largest);  // 0 for a warp without keys
    total += sum_of[w] * factor[w];
  }
  for (int e = threadIdx.x; e < a.v_dim; e += kThreads) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) value += merged[w][e] * factor[w];
    a.out[row * a.out_token + head * a.out_head + e] = from_float<T>(value / total);
  }
  if (threadIdx.x == 0) a.store_lse(row, head, total_largest, total);
}

}  // namespace

void paged_attention_of_codes_cuda_naive(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  with_cuda_type(args.q.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto a = attention_of_codes_call<T>(args);
    launch_kernel(ctx, attention_of_codes_naive<T>, static_cast<unsigned>(a.num_tokens * a.heads), kThreads,
                  0, a, args.cache.kept_as);
  });
}

// <<< task 8.6.cuda.attention

bool paged_attention_of_codes_takes_naive(const PagedAttentionArgs& args) {
  return args.q.dim(2) <= kMaxDim && args.out.dim(2) <= kMaxDim;
}

}  // namespace ladder
