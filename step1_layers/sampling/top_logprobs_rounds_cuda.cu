// Log probabilities of the chosen and of the k best tokens by one block per row.
#include "step1_layers/sampling/argmax_cuda.cuh"
#include "step1_layers/sampling/row_sum_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

using namespace row_sum;

// rounds
// Any shape. A block owns a row. Each of the k best takes one more pass over the row, which is in L2 after
// the first: the best of the tokens that come after the one found before.
__global__ void __launch_bounds__(kThreads)
    top_logprobs_kernel(const float* logits, int64_t stride, int64_t vocab, const int32_t* chosen,
                        float* chosen_logprobs, int32_t* top_ids, float* top_logprobs, int64_t k,
                        const int32_t* selected_ids, float* selected_logprobs, int64_t num_selected) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  const float* x = logits + row * stride;
  const RowSum sum = row_sum_online(x, vocab);
  const float log_sum = logf(sum.sum);
  auto logprob_of = [&](int32_t id) { return id >= 0 && id < vocab ? x[id] - sum.largest - log_sum : NAN; };
  if (threadIdx.x == 0) chosen_logprobs[row] = logprob_of(chosen[row]);
  for (int64_t i = row * num_selected + threadIdx.x; i < (row + 1) * num_selected; i += kThreads)
    selected_logprobs[i] = logprob_of(selected_ids[i]);
  Best last{INFINITY, -1};
  for (int64_t i = 0; i < k; ++i) {
    Best best = no_best();
    if (i < vocab)
      for (int64_t id = threadIdx.x; id < vocab; id += kThreads) {
        const Best candidate{x[id], static_cast<int32_t>(id)};
        const bool is_after =
            candidate.value < last.value || (candidate.value == last.value && candidate.id > last.id);
        if (is_after) best = better(best, candidate);
      }
    best = block_best(best);
    if (threadIdx.x == 0) {
      top_ids[row * k + i] = best.id == INT_MAX ? -1 : best.id;
      top_logprobs[row * k + i] = best.value - sum.largest - log_sum;
    }
    last = best;
  }
}

}  // namespace

void top_logprobs_cuda(const OpContext& ctx, const TopLogprobsArgs& args) {
  if (args.logits.dim(0) == 0) return;
  launch_kernel(ctx, top_logprobs_kernel, static_cast<unsigned>(args.logits.dim(0)), kThreads, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), args.logits.dim(1),
                cuda_data<int32_t>(args.chosen), cuda_data<float>(args.chosen_logprobs),
                cuda_data<int32_t>(args.top_ids), cuda_data<float>(args.top_logprobs), args.num_top(),
                cuda_data<int32_t>(args.selected_ids), cuda_data<float>(args.selected_logprobs),
                args.num_selected());
}

}  // namespace ladder
