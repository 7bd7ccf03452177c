#include "step1_layers/sampling/draw/draw.h"

#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/sample.h"
#include "step1_layers/sampling/sampling_rows.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/sampling/sampling_cuda.h"
#endif

namespace ladder {

namespace {

// >>> task 1.8.draw: the filters and the draw as a sequence of operators
void draw_sequence(const OpContext& ctx, const DrawArgs& args) {
  apply_temperature(ctx, args.logits, args.temperature);
  if (args.min_p.defined()) mask_min_p(ctx, args.logits, args.min_p);
  if (args.top_k.defined()) mask_top_k(ctx, args.logits, args.top_k);
  if (args.top_p.defined()) mask_top_p(ctx, args.logits, args.top_p);
  sample(ctx, {args.logits, args.temperature, args.seeds, args.output_index, args.ids});
}
// <<< task 1.8.draw

constexpr Variant<DrawArgs> kVariants[] = {
    {.name = "sequence", .idea = "one operator after the other", .run = draw_sequence},
#ifdef LADDER_HAS_CUDA
    {.name = "sequence",
     .device = DeviceType::cuda,
     .idea = "one operator after the other",
     .run = draw_sequence},
    {.name = "fused",
     .device = DeviceType::cuda,
     .idea = "a row read once, with filters kept in a cluster's shared memory; noise only where it matters",
     .min_arch = 90,
     .supports = draw_fits_cuda_fused,
     .run = draw_cuda_fused},
#endif
};

}  // namespace

std::span<const Variant<DrawArgs>> draw_variants() {
  return kVariants;
}

void draw(const OpContext& ctx, const DrawArgs& args) {
  constexpr std::string_view op = "draw";
  detail::check_logits(args.logits, op);
  detail::check_per_row(args.temperature, args.logits, DType::f32, op);
  if (args.min_p.defined()) detail::check_per_row(args.min_p, args.logits, DType::f32, op);
  if (args.top_k.defined()) detail::check_per_row(args.top_k, args.logits, DType::i32, op);
  if (args.top_p.defined()) detail::check_per_row(args.top_p, args.logits, DType::f32, op);
  detail::check_per_row(args.seeds, args.logits, DType::i64, op);
  detail::check_per_row(args.output_index, args.logits, DType::i64, op);
  detail::check_per_row(args.ids, args.logits, DType::i32, op);
  LADDER_CHECK(ctx.arena != nullptr, "{} needs an arena in the context", op);
  run_variant<DrawArgs>(op, draw_variants(), ctx, args);
}

}  // namespace ladder
