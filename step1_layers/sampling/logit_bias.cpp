#include "step1_layers/sampling/logit_bias.h"

#include <cmath>

#include "step1_layers/sampling/sampling_rows.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/sampling/sampling_cuda.h"
#endif

namespace ladder {

namespace {

// >>> task 1.8.edits: the biases of one row
void bias_row(const ApplyLogitBiasArgs& args, int64_t row) {
  const int32_t* starts = args.row_start.data<int32_t>();
  float* x = detail::row_of(args.logits, row);
  for (int64_t entry = starts[row]; entry < starts[row + 1]; ++entry) {
    float& logit = x[args.token_ids.data<int32_t>()[entry]];
    const float bias = args.biases.data<float>()[entry];
    logit = bias == -INFINITY ? -INFINITY : logit + bias;  // +inf - inf would be NaN
  }
}
// <<< task 1.8.edits

void apply_logit_bias_loop(const OpContext&, const ApplyLogitBiasArgs& args) {
  for (int64_t row = 0; row < args.logits.dim(0); ++row) bias_row(args, row);
}

void apply_logit_bias_threads(const OpContext&, const ApplyLogitBiasArgs& args) {
  parallel_for(args.logits.dim(0), 1 + 4096 * args.logits.dim(0) / (1 + args.token_ids.dim(0)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row) bias_row(args, row);
               });
}

constexpr Variant<ApplyLogitBiasArgs> kVariants[] = {
    {.name = "loop", .idea = "row after row, entry after entry", .run = apply_logit_bias_loop},
    {.name = "threads", .idea = "rows split among threads", .run = apply_logit_bias_threads},
#ifdef LADDER_HAS_CUDA
    {.name = "row_per_block",
     .device = DeviceType::cuda,
     .idea = "a thread per entry",
     .run = apply_logit_bias_cuda},
#endif
};

}  // namespace

std::span<const Variant<ApplyLogitBiasArgs>> apply_logit_bias_variants() {
  return kVariants;
}

void apply_logit_bias(const OpContext& ctx, const ApplyLogitBiasArgs& args) {
  constexpr std::string_view op = "apply_logit_bias";
  detail::check_logits(args.logits, op);
  detail::check_entries(args.logits, args.row_start, args.token_ids, op);
  expect_shape(args.biases, {args.token_ids.dim(0)}, op);
  expect_dtype(args.biases, DType::f32, op);
  run_variant<ApplyLogitBiasArgs>(op, apply_logit_bias_variants(), ctx, args);
}

}  // namespace ladder
