#include "step1_layers/sampling/token_bitmask.h"

#include <cmath>

#include "step1_layers/sampling/sampling_rows.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/sampling/sampling_cuda.h"
#endif

namespace ladder {

namespace {

// The words of a row's mask; nullptr: it has none.
const uint32_t* mask_of(const ApplyTokenBitmaskArgs& args, int64_t row) {
  const int32_t index = args.mask_index.data<int32_t>()[row];
  if (index < 0) return nullptr;
  return reinterpret_cast<const uint32_t*>(args.bitmask.data<int32_t>()) + index * args.bitmask.dim(1);
}

// >>> task 1.8.edits: forbid what a mask does not allow
void apply_token_bitmask_loop(const OpContext&, const ApplyTokenBitmaskArgs& args) {
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const uint32_t* mask = mask_of(args, row);
    if (mask == nullptr) continue;
    float* x = detail::row_of(args.logits, row);
    for (int64_t id = 0; id < args.logits.dim(1); ++id)
      if ((mask[id / 32] >> (id % 32) & 1) == 0) x[id] = -INFINITY;
  }
}
// <<< task 1.8.edits

void apply_token_bitmask_words(const OpContext&, const ApplyTokenBitmaskArgs& args) {
  const int64_t vocab = args.logits.dim(1);
  detail::for_each_row(args.logits, [&](int64_t row) {
    const uint32_t* mask = mask_of(args, row);
    if (mask == nullptr) return;
    float* x = detail::row_of(args.logits, row);
    for (int64_t first = 0; first < vocab; first += 32) {
      const uint32_t word = mask[first / 32];
      if (word == ~0u) continue;
      const int64_t count = std::min<int64_t>(32, vocab - first);
      if (word == 0) {
        std::fill_n(x + first, count, -INFINITY);
        continue;
      }
      for (int64_t i = 0; i < count; ++i)
        if ((word >> i & 1) == 0) x[first + i] = -INFINITY;
    }
  });
}

constexpr Variant<ApplyTokenBitmaskArgs> kVariants[] = {
    {.name = "loop", .idea = "token by token", .run = apply_token_bitmask_loop},
    {.name = "words",
     .idea = "32 tokens at a time: most words are all ones or all zeros; rows split among threads",
     .run = apply_token_bitmask_words},
#ifdef LADDER_HAS_CUDA
    {.name = "elementwise",
     .device = DeviceType::cuda,
     .idea = "four tokens per thread; logits are written and never read",
     .run = apply_token_bitmask_cuda},
#endif
};

}  // namespace

std::span<const Variant<ApplyTokenBitmaskArgs>> apply_token_bitmask_variants() {
  return kVariants;
}

void apply_token_bitmask(const OpContext& ctx, const ApplyTokenBitmaskArgs& args) {
  constexpr std::string_view op = "apply_token_bitmask";
  detail::check_logits(args.logits, op);
  detail::check_per_row(args.mask_index, args.logits, DType::i32, op);
  expect_shape(args.bitmask, {-1, bitmask_words(args.logits.dim(1))}, op);
  expect_dtype(args.bitmask, DType::i32, op);
  LADDER_CHECK(args.bitmask.is_contiguous(), "{}: masks must be adjacent", op);
  if (args.logits.device().is_cpu())
    for (int64_t row = 0; row < args.logits.dim(0); ++row) {
      const int32_t index = args.mask_index.data<int32_t>()[row];
      LADDER_CHECK(index < args.bitmask.dim(0), "{}: row {} names mask {} of {}", op, row, index,
                   args.bitmask.dim(0));
    }
  run_variant<ApplyTokenBitmaskArgs>(op, apply_token_bitmask_variants(), ctx, args);
}

}  // namespace ladder
