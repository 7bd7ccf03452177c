#include "step7_parallel/context/lse_merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "step1_layers/core/error.h"

namespace ladder {

// >>> task 7.10.merge: two partial results into one
void merge_by_lse(const Tensor& out, const Tensor& lse, const Tensor& part_out, const Tensor& part_lse) {
  LADDER_CHECK(out.ndim() == 3 && out.shape() == part_out.shape(), "partial outputs of {} and {}", out.str(),
               part_out.str());
  LADDER_CHECK(lse.shape() == Shape({out.dim(0), out.dim(1)}) && lse.shape() == part_lse.shape(),
               "log-sum-exp of {} and {} for {}", lse.str(), part_lse.str(), out.str());
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const int64_t dim = out.dim(2);
  float *o = out.data<float>(), *l = lse.data<float>();
  const float *part_o = part_out.data<float>(), *part_l = part_lse.data<float>();
  for (int64_t row = 0; row < lse.numel(); ++row, o += dim, part_o += dim) {
    const float a = std::isfinite(l[row]) ? l[row] : kNothing;
    const float b = std::isfinite(part_l[row]) ? part_l[row] : kNothing;
    const float most = std::max(a, b);
    if (most == kNothing) {
      std::fill_n(o, dim, 0.0f);
      l[row] = kNothing;
      continue;
    }
    const float total = most + std::log(std::exp(a - most) + std::exp(b - most));
    const float weight_a = std::exp(a - total), weight_b = std::exp(b - total);
    for (int64_t i = 0; i < dim; ++i)
      o[i] = (weight_a > 0 ? weight_a * o[i] : 0) + (weight_b > 0 ? weight_b * part_o[i] : 0);
    l[row] = total;
  }
}
// <<< task 7.10.merge

namespace {

void merge_part_by_part(const OpContext&, const LseMergeArgs& args) {
  Tensor out = args.onto, lse = args.onto_lse;
  if (!args.onto.defined()) {
    out = Tensor::zeros(args.out.shape(), DType::f32);
    lse = Tensor::empty({args.out.dim(0), args.out.dim(1)}, DType::f32);
    std::fill_n(lse.data<float>(), lse.numel(), -std::numeric_limits<float>::infinity());
  } else if (args.onto.raw() != args.out.raw()) {
    out = args.onto.clone();
    lse = args.onto_lse.clone();
  }
  for (int64_t part = 0; part < args.parts.dim(0); ++part)
    merge_by_lse(out, lse, args.parts.select(0, part).to(DType::f32), args.part_lse.select(0, part).clone());
  if (out.raw() == args.out.raw()) return;
  args.out.copy_from(out.to(args.out.dtype()));
  if (args.lse.defined()) args.lse.copy_from(lse);
}

constexpr Variant<LseMergeArgs> kVariants[] = {
    {.name = "part_by_part", .idea = "one part after the other", .run = merge_part_by_part},
#ifdef LADDER_HAS_CUDA
    {.name = "one_kernel",
     .device = DeviceType::cuda,
     .idea = "a warp weighs all parts of a row's head, then reads each value once",
     .run = lse_merge_cuda},
#endif
};

void check_merge(const OpContext& ctx, const LseMergeArgs& args) {
  expect_shape(args.parts, {-1, -1, -1, -1}, "merge_parts: parts");
  const int64_t parts = args.parts.dim(0), rows = args.parts.dim(1), heads = args.parts.dim(2),
                dim = args.parts.dim(3);
  expect_shape(args.part_lse, {parts, rows, heads}, "merge_parts: part_lse");
  expect_shape(args.out, {rows, heads, dim}, "merge_parts: out");
  expect_dtype(args.part_lse, DType::f32, "merge_parts: part_lse");
  if (args.lse.defined()) {
    expect_shape(args.lse, {rows, heads}, "merge_parts: lse");
    expect_dtype(args.lse, DType::f32, "merge_parts: lse");
  }
  if (args.onto.defined()) {
    expect_shape(args.onto, {rows, heads, dim}, "merge_parts: onto");
    expect_shape(args.onto_lse, {rows, heads}, "merge_parts: onto_lse");
    for (const Tensor* tensor : {&args.onto, &args.onto_lse})
      LADDER_CHECK(tensor->dtype() == DType::f32 && tensor->is_contiguous(),
                   "merge_parts: expected contiguous f32 results to merge onto, got {}", tensor->str());
    LADDER_CHECK(
        (args.onto.raw() == args.out.raw()) == (args.lse.defined() && args.onto_lse.raw() == args.lse.raw()),
        "merge_parts: onto {} is the result, and onto_lse is not, or the other way round", args.onto.str());
  }
  const auto lie_together = [](const Tensor& tensor, int inner) {  // the last `inner` dimensions
    int64_t stride = 1;
    for (int i = tensor.ndim(); i-- > tensor.ndim() - inner; stride *= tensor.dim(i))
      if (tensor.dim(i) > 1 && tensor.stride(i) != stride) return false;
    return true;
  };
  LADDER_CHECK(lie_together(args.parts, 2) && lie_together(args.part_lse, 1) && lie_together(args.out, 2) &&
                   (!args.lse.defined() || lie_together(args.lse, 1)),
               "merge_parts: expected the values of a row side by side, of {} into {}", args.parts.str(),
               args.out.str());
  for (const Tensor* tensor : {&args.parts, &args.part_lse, &args.out, &args.lse, &args.onto, &args.onto_lse})
    LADDER_CHECK(!tensor->defined() || tensor->device() == ctx.device,
                 "merge_parts: {} is on {}, expected {}", tensor->str(), device_name(tensor->device()),
                 device_name(ctx.device));
}

}  // namespace

std::span<const Variant<LseMergeArgs>> lse_merge_variants() {
  return kVariants;
}

void merge_parts(const OpContext& ctx, const LseMergeArgs& args) {
  check_merge(ctx, args);
  run_variant("lse_merge", lse_merge_variants(), ctx, args);
}

}  // namespace ladder
