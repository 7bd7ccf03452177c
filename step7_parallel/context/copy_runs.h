#pragma once
// Values that lie together, moved from where they stand part by part to where they stand row by row, or the other way: the
// heads of several ranks in one tensor, and each rank's in one of its own.
//
//   row by row     [rows, parts, run]     row 0: part 0, part 1; row 1: part 0, part 1
//   part by part   [parts, rows, run]     part 0: row 0, row 1; part 1: row 0, row 1
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

// Where the runs of one side begin, in elements from the tensor's first. A part_stride of 0: all parts are the same.
struct RunPlaces {
  Tensor tensor;  // any dtype, the same on both sides; its shape does not matter
  int64_t part_stride = 0, row_stride = 0;
};

struct CopyRunsArgs {
  RunPlaces from, to;
  int64_t parts = 0, rows = 0, run = 0;
};

std::span<const Variant<CopyRunsArgs>> copy_runs_variants();

// Both sides on ctx.device.
void copy_runs(const OpContext& ctx, const CopyRunsArgs& args);

// [rows, ...] of heads that lie together into [parts, rows, ...]: whole rows to every part, or to each its part of a row.
void rows_to_every_part(const OpContext& ctx, const Tensor& rows, const Tensor& parts);
void split_rows(const OpContext& ctx, const Tensor& rows, const Tensor& parts);
// And back: each row of all parts' values.
void join_rows(const OpContext& ctx, const Tensor& parts, const Tensor& rows);

#ifdef LADDER_HAS_CUDA
void copy_runs_cuda(const OpContext& ctx, const CopyRunsArgs& args);
#endif

}  // namespace ladder
