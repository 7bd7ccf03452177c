// Log probabilities of the chosen and of the k best tokens by a cluster of blocks per row.
#include "step1_layers/sampling/candidates_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

using namespace cluster_row;

struct TopRows {
  const float* logits;
  int64_t stride, vocab, k, num_selected;
  const int32_t* chosen;
  float* chosen_logprobs;
  int32_t* top_ids;
  float* top_logprobs;
  const int32_t* selected_ids;
  float* selected_logprobs;
};

// What a block has found in its piece.
struct TopState {
  float largest, sum;  // of e^(x - largest)
  int candidates;
};

struct Shared {
  Candidates candidates;
  TopState states[kBlocks];
  Best found[2][kBlocks];  // a block may write the next round while another reads this one
  bool done;
};

// One of the k best after the other: the best of those that follow the last one.
__device__ void top_by_rounds(Shared& s, const TopRows& rows, const float* x, const Row& row, int64_t index,
                              float log_sum) {
  Best last{INFINITY, -1};
  for (int64_t i = 0; i < rows.k; ++i) {
    Best best = no_best();
    for (int64_t id = row.begin + threadIdx.x; id < row.end && i < rows.vocab; id += kThreads) {
      const Best candidate{x[id], static_cast<int32_t>(id)};
      if (candidate.value < last.value || (candidate.value == last.value && candidate.id > last.id))
        best = better(best, candidate);
    }
    share_with_cluster(block_best(best), s.found[i % 2]);
    last = no_best();
    for (const Best& one : s.found[i % 2]) last = better(last, one);
    if (cluster_rank() == 0 && threadIdx.x == 0) {
      rows.top_ids[index * rows.k + i] = last.id == INT_MAX ? -1 : last.id;
      rows.top_logprobs[index * rows.k + i] = last.value - row.largest - log_sum;
    }
  }
}

// The k best from the candidates of all blocks, by the first block; false where these are too many, or too
// few because the others are -inf.
__device__ bool top_from_candidates(Shared& s, const TopRows& rows, const Row& row, int64_t index,
                                    float log_sum) {
  int counts[kBlocks];
#pragma unroll
  for (int rank = 0; rank < kBlocks; ++rank) counts[rank] = s.states[rank].candidates;
  const int count = sort_candidates(s.candidates, row, counts, rows.k);
  if (count > kList || count < rows.k) return false;
  if (threadIdx.x < rows.k) {
    const Best best = s.candidates.sorted[threadIdx.x];
    rows.top_ids[index * rows.k + threadIdx.x] = best.id;
    rows.top_logprobs[index * rows.k + threadIdx.x] = best.value - row.largest - log_sum;
  }
  return true;
}

// cluster
// Any shape. Eight blocks own a row and read it once for largest and sum. With a small k they list the few
// tokens that can be among the k best, and the first one sorts them, where the rung below passes over the row
// k times. The split of a row depends on its width alone: batch invariant.
__global__ void __launch_bounds__(kThreads, 3) LADDER_CLUSTER_OF(kBlocks) top_logprobs_cluster(TopRows rows) {
  __shared__ Shared s;
  allow_next_kernel();
  cluster_arrive();
  wait_for_previous_kernel();
  const int64_t index = blockIdx.x / kBlocks;
  const float* x = rows.logits + index * rows.stride;
  const int64_t begin = min(cluster_rank() * piece_size<>(rows.vocab), rows.vocab);
  const int64_t end = min(begin + piece_size<>(rows.vocab), rows.vocab);

  // Relative to the largest value that a thread has seen (Milakov and Gimelshein, 2018, arXiv 1805.02867).
  float mine = -INFINITY, sum = 0;
  for_each_group<kThreads, 4>(x, begin, end, [&](int, int64_t, const float(&values)[kGroup]) {
    const float largest = fmaxf(mine, fmaxf(fmaxf(values[0], values[1]), fmaxf(values[2], values[3])));
    if (largest == -INFINITY) return;
    if (largest > mine) sum *= expf(mine - largest);
    for (float value : values) sum += expf(value - largest);
    mine = largest;
  });
  Row row{.piece = nullptr, .groups = 0, .begin = begin, .end = end, .largest = block_max(mine)};
  sum = block_sum(mine == -INFINITY ? 0.0f : sum * expf(mine - row.largest));
  bool lists = rows.k > 0 && rows.k <= kSmallK;
  if (lists)
    list_candidates(s.candidates, row, {mine}, rows.k, [&](int64_t first, float(&values)[kGroup]) {
      load_group(x, first, end, is_aligned(x), values);
    });
  cluster_wait();
  share_with_cluster(TopState{row.largest, sum, lists ? s.candidates.count : 0}, s.states);
  for (const TopState& state : s.states) {
    row.largest = fmaxf(row.largest, state.largest);
    lists = lists && state.candidates <= kList;
  }
  sum = 0;
  for (const TopState& state : s.states)
    if (state.largest > -INFINITY) sum += state.sum * expf(state.largest - row.largest);
  const float log_sum = logf(sum);
  if (cluster_rank() == 0) {
    auto logprob_of = [&](int32_t id) {
      return id >= 0 && id < rows.vocab ? x[id] - row.largest - log_sum : NAN;
    };
    if (threadIdx.x == 0) rows.chosen_logprobs[index] = logprob_of(rows.chosen[index]);
    for (int64_t i = threadIdx.x; i < rows.num_selected; i += kThreads) {
      const int64_t at = index * rows.num_selected + i;
      rows.selected_logprobs[at] = logprob_of(rows.selected_ids[at]);
    }
  }
  if (lists) {
    if (cluster_rank() == 0) {
      const bool done = top_from_candidates(s, rows, row, index, log_sum);
      if (threadIdx.x < kBlocks) *in_block(&s.done, static_cast<int>(threadIdx.x)) = done;
    }
    cluster_sync();
    if (s.done) return;
  }
  top_by_rounds(s, rows, x, row, index, log_sum);
}

}  // namespace

void top_logprobs_cuda_cluster(const OpContext& ctx, const TopLogprobsArgs& args) {
  if (args.logits.dim(0) == 0) return;
  launch_kernel(ctx, top_logprobs_cluster, static_cast<unsigned>(args.logits.dim(0) * kBlocks), kThreads, 0,
                TopRows{.logits = cuda_data<float>(args.logits),
                        .stride = args.logits.stride(0),
                        .vocab = args.logits.dim(1),
                        .k = args.num_top(),
                        .num_selected = args.num_selected(),
                        .chosen = cuda_data<int32_t>(args.chosen),
                        .chosen_logprobs = cuda_data<float>(args.chosen_logprobs),
                        .top_ids = cuda_data<int32_t>(args.top_ids),
                        .top_logprobs = cuda_data<float>(args.top_logprobs),
                        .selected_ids = cuda_data<int32_t>(args.selected_ids),
                        .selected_logprobs = cuda_data<float>(args.selected_logprobs)});
}

}  // namespace ladder
