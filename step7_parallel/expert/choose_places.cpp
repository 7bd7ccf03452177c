#include "step7_parallel/expert/choose_places.h"

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

void choose_places_loop(const OpContext&, const ChoosePlacesArgs& args) {
  const int64_t rows = args.expert_ids.dim(0), top_k = args.expert_ids.dim(1);
  for (int64_t row = 0; row < rows; ++row) {
    int32_t* const ids = args.expert_ids.data<int32_t>() + row * top_k;
    const bool is_token = args.slots.defined() && args.slots.data<int64_t>()[row] >= 0;
    const bool counts = args.counts.defined() && is_token && row >= args.first_counted &&
                        (row - args.first_counted) % args.counted_step == 0;
    for (int64_t j = 0; j < top_k; ++j) {
      if (ids[j] < 0) continue;
      if (args.slots.defined() && !is_token) {
        ids[j] = -1;
        continue;
      }
      const Tensor& by_expert = args.places.defined() ? args.places : args.counts;
      LADDER_CHECK(!by_expert.defined() || ids[j] < by_expert.dim(0),
                   "choose_places: there is no expert {}, they are {}", ids[j], by_expert.dim(0));
      if (counts) ++args.counts.data<int64_t>()[ids[j]];
      if (!args.places.defined()) continue;
      const int32_t* const copies = args.places.data<int32_t>() + ids[j] * args.places.dim(1);
      ids[j] = copies[1 + (args.first_copy + row) % copies[0]];
    }
  }
}

}  // namespace

std::span<const Variant<ChoosePlacesArgs>> choose_places_variants() {
  static constexpr Variant<ChoosePlacesArgs> table[] = {
      {.name = "loop", .idea = "row after row", .run = choose_places_loop},
#ifdef LADDER_HAS_CUDA
      {.name = "naive",
       .device = DeviceType::cuda,
       .idea = "an id per thread, counted by atomics",
       .run = choose_places_cuda},
#endif
  };
  return table;
}

void choose_places(const OpContext& ctx, const ChoosePlacesArgs& args) {
  expect_shape(args.expert_ids, {-1, -1}, "choose_places: expert_ids");
  expect_dtype(args.expert_ids, DType::i32, "choose_places: expert_ids");
  if (args.slots.defined()) {
    expect_shape(args.slots, {args.expert_ids.dim(0)}, "choose_places: slots");
    expect_dtype(args.slots, DType::i64, "choose_places: slots");
  }
  if (args.places.defined()) {
    expect_shape(args.places, {-1, -1}, "choose_places: places");
    expect_dtype(args.places, DType::i32, "choose_places: places");
  }
  if (args.counts.defined()) {
    expect_shape(args.counts, {args.places.defined() ? args.places.dim(0) : -1}, "choose_places: counts");
    expect_dtype(args.counts, DType::i64, "choose_places: counts");
  }
  LADDER_CHECK(args.first_copy >= 0 && args.first_counted >= 0 && args.counted_step >= 1,
               "choose_places: expected copies and rows from 0 on, found {}, {} and every {}",
               args.first_copy, args.first_counted, args.counted_step);
  for (const Tensor* tensor : {&args.expert_ids, &args.slots, &args.places, &args.counts})
    LADDER_CHECK(!tensor->defined() || (tensor->device() == ctx.device && tensor->is_contiguous()),
                 "choose_places: expected tensors on {} without gaps, found {} on {}",
                 device_name(ctx.device), tensor->str(), device_name(tensor->device()));
  if (args.expert_ids.numel() > 0)
    run_variant<ChoosePlacesArgs>("choose_places", choose_places_variants(), ctx, args);
}

}  // namespace ladder
