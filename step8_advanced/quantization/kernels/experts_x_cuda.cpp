#include "step8_advanced/quantization/kernels/experts_x_cuda.h"

#include "step8_advanced/quantization/kernels/prepare_x_cuda.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/kernels/weight_rows.h"

namespace ladder {

namespace {

bool are_rounded(const ExpertMatrices& matrices) {
  return !matrices.activations || are_rounded_on_a_gpu(*matrices.activations);
}

}  // namespace

bool expert_rows_are_rounded_on_a_gpu(const QuantizedExpertsArgs& args) {
  return are_rounded(args.gate_up) && are_rounded(args.down);
}

RowsOfPairs prepared_rows(const OpContext& ctx, const ExpertMatrices& matrices, const Tensor& expert_ids,
                          const RowsOfPairs& from, Arena& arena) {
  const QuantizedWeight& weight = *matrices.weight;
  const DType dtype = from.rows.dtype();
  if (!matrices.activations && !weight.columns.defined()) return from;
  const bool stored_scales = matrices.activations && have_stored_scale(*matrices.activations);
  if (!stored_scales && !have_own_orders(weight)) {
    const RowsOfPairs to{arena.take({from.rows.dim(0), weight.k}, dtype), from.pairs_of_row};
    prepare_x_cuda(ctx, from.rows, weight.columns, matrices.activations, 1, to.rows);
    return to;
  }
  const RowsOfPairs to{arena.take({expert_ids.numel(), weight.k}, dtype), 1};
  const RowsOfExperts of_experts{expert_ids, stored_scales ? matrices.input_scales : Tensor(),
                                 from.pairs_of_row};
  prepare_x_cuda(ctx, from.rows, weight.columns, matrices.activations, 1, to.rows, &of_experts);
  return to;
}

}  // namespace ladder
