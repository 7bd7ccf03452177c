#include "step7_parallel/context/copy_runs.h"

#include <cstring>

namespace ladder {
namespace {

void copy_one_by_one(const OpContext&, const CopyRunsArgs& args) {
  const int64_t element = dtype_size(args.from.tensor.dtype());
  const auto place = [element](const RunPlaces& places, int64_t part, int64_t row) {
    return static_cast<char*>(places.tensor.raw()) +
           (part * places.part_stride + row * places.row_stride) * element;
  };
  for (int64_t part = 0; part < args.parts; ++part)
    for (int64_t row = 0; row < args.rows; ++row)
      std::memcpy(place(args.to, part, row), place(args.from, part, row),
                  static_cast<size_t>(args.run * element));
}

constexpr Variant<CopyRunsArgs> kVariants[] = {
    {.name = "loop", .idea = "run by run", .run = copy_one_by_one},
#ifdef LADDER_HAS_CUDA
    {.name = "one_kernel",
     .device = DeviceType::cuda,
     .idea = "a thread per 16 bytes, where runs begin at such",
     .run = copy_runs_cuda},
#endif
};

// What a row or a part's row holds, behind the first `dims` dimensions.
int64_t values_behind(const Tensor& tensor, int dims) {
  int64_t values = 1;
  for (int i = dims; i < tensor.ndim(); ++i) values *= tensor.dim(i);
  return values;
}

}  // namespace

std::span<const Variant<CopyRunsArgs>> copy_runs_variants() {
  return kVariants;
}

void copy_runs(const OpContext& ctx, const CopyRunsArgs& args) {
  LADDER_CHECK(args.from.tensor.dtype() == args.to.tensor.dtype() &&
                   args.from.tensor.device() == ctx.device && args.to.tensor.device() == ctx.device,
               "copy_runs: {} on {} to {} on {}, expected one dtype, on {}", args.from.tensor.str(),
               device_name(args.from.tensor.device()), args.to.tensor.str(),
               device_name(args.to.tensor.device()), device_name(ctx.device));
  if (args.parts * args.rows * args.run > 0) run_variant("copy_runs", copy_runs_variants(), ctx, args);
}

void rows_to_every_part(const OpContext& ctx, const Tensor& rows, const Tensor& parts) {
  copy_runs(ctx, {.from = {rows, 0, rows.stride(0)},
                  .to = {parts, parts.stride(0), parts.stride(1)},
                  .parts = parts.dim(0),
                  .rows = parts.dim(1),
                  .run = values_behind(parts, 2)});
}

void split_rows(const OpContext& ctx, const Tensor& rows, const Tensor& parts) {
  const int64_t run = values_behind(parts, 2);
  copy_runs(ctx, {.from = {rows, run, rows.stride(0)},
                  .to = {parts, parts.stride(0), parts.stride(1)},
                  .parts = parts.dim(0),
                  .rows = parts.dim(1),
                  .run = run});
}

void join_rows(const OpContext& ctx, const Tensor& parts, const Tensor& rows) {
  const int64_t run = values_behind(parts, 2);
  copy_runs(ctx, {.from = {parts, parts.stride(0), parts.stride(1)},
                  .to = {rows, run, rows.stride(0)},
                  .parts = parts.dim(0),
                  .rows = parts.dim(1),
                  .run = run});
}

}  // namespace ladder
