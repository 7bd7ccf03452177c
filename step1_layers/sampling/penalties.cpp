#include "step1_layers/sampling/penalties.h"

#include "step1_layers/sampling/sampling_rows.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/sampling/sampling_cuda.h"
#endif

namespace ladder {

namespace {

// >>> task 1.8.edits: repetition, frequency and presence penalties of one row
void penalize_row(const ApplyPenaltiesArgs& args, int64_t row) {
  const int32_t* starts = args.row_start.data<int32_t>();
  const float repetition = args.repetition.data<float>()[row];
  const float presence = args.presence.data<float>()[row];
  const float frequency = args.frequency.data<float>()[row];
  float* x = detail::row_of(args.logits, row);
  for (int64_t entry = starts[row]; entry < starts[row + 1]; ++entry) {
    float& logit = x[args.token_ids.data<int32_t>()[entry]];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    const int32_t count = args.output_counts.data<int32_t>()[entry];
    if (count > 0) logit -= frequency * static_cast<float>(count) + presence;
  }
}
// <<< task 1.8.edits

void apply_penalties_loop(const OpContext&, const ApplyPenaltiesArgs& args) {
  for (int64_t row = 0; row < args.logits.dim(0); ++row) penalize_row(args, row);
}

void apply_penalties_threads(const OpContext&, const ApplyPenaltiesArgs& args) {
  parallel_for(args.logits.dim(0), 1 + 4096 * args.logits.dim(0) / (1 + args.token_ids.dim(0)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row) penalize_row(args, row);
               });
}

constexpr Variant<ApplyPenaltiesArgs> kVariants[] = {
    {.name = "loop", .idea = "row after row, used token after used token", .run = apply_penalties_loop},
    {.name = "threads", .idea = "rows split among threads", .run = apply_penalties_threads},
#ifdef LADDER_HAS_CUDA
    {.name = "row_per_block",
     .device = DeviceType::cuda,
     .idea = "a thread per used token",
     .run = apply_penalties_cuda},
#endif
};

}  // namespace

std::span<const Variant<ApplyPenaltiesArgs>> apply_penalties_variants() {
  return kVariants;
}

void apply_penalties(const OpContext& ctx, const ApplyPenaltiesArgs& args) {
  constexpr std::string_view op = "apply_penalties";
  detail::check_logits(args.logits, op);
  for (const Tensor* values : {&args.repetition, &args.presence, &args.frequency})
    detail::check_per_row(*values, args.logits, DType::f32, op);
  detail::check_entries(args.logits, args.row_start, args.token_ids, op);
  expect_shape(args.output_counts, {args.token_ids.dim(0)}, op);
  expect_dtype(args.output_counts, DType::i32, op);
  run_variant<ApplyPenaltiesArgs>(op, apply_penalties_variants(), ctx, args);
}

}  // namespace ladder
