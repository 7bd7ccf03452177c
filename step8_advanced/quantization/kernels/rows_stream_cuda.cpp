// The rung of quantized_matmul for few rows on a GPU, and the fused product: which launch, and x as it takes it.
#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"

#include <algorithm>
#include <optional>

#include "step1_layers/core/packed.h"
#include "step1_layers/core/task_not_implemented.h"
#include "step8_advanced/quantization/kernels/eight_bit_codes.h"
#include "step8_advanced/quantization/kernels/eight_bit_rows_cuda.h"
#include "step8_advanced/quantization/kernels/prepare_x_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder {

namespace {

// Reading the weight once for every kMaxRowsStreamed rows takes less than writing it out, for so many rows; and less than the
// product of many rows (records_wgmma_cuda.cu), where that serves the weight, for half as many.
int64_t max_rows(const QuantizedWeight& weight, const Tensor& x) {
  const bool has_other = quantized_matmul_takes_wgmma({.x = x, .weight = &weight});
  return (has_other ? 2 : 4) * kMaxRowsStreamed;
}

void launch(const OpContext& ctx, const QuantizedRowsStreamArgs& args) {
  switch (args.weight->type) {
    case WeightCodes::int4:
      return rows_stream_int4(ctx, args);
    case WeightCodes::int8:
      return rows_stream_int8(ctx, args);
    default:
      return rows_stream_fp8(ctx, args);
  }
}

// x, normed, is rounded by the product's blocks or by a kernel before.
void product_of_codes(const OpContext& ctx, const QuantizedRowsStreamArgs& args) {
  if (rows_stream_8bit_takes(args.x.dim(0), args.weight->k)) return rows_stream_8bit(ctx, args);
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  const RowCodes x =
      quantized_rows(ctx, arena, args.x, *args.activations, args.input_scale, {args.norm_weight, args.eps});
  wgmma_8bit_of_codes(ctx, {args.x, args.weight, args.activations, args.input_scale, args.bias, args.out}, x,
                      args.epilogue);
}

// More need wgmma_8bit, which is a task of the course.
bool takes_rows_of_codes(const Tensor& x) {
  return rows_stream_8bit_takes(x.dim(0), x.dim(1)) ||
         (x.dim(0) <= kMaxRowsOfCodes && !is_unwritten("quantized_matmul", "wgmma_8bit"));
}

bool takes_records(const QuantizedWeight& weight, const Tensor& x) {
  return weight.records.bytes.defined() && dtype_size(x.dtype()) == 2 && weight.k % 8 == 0 &&
         x.dim(0) <= max_rows(weight, x);
}

}  // namespace

void quantized_rows_stream(const OpContext& ctx, const QuantizedRowsStreamArgs& args) {
  if (args.activations) return product_of_codes(ctx, args);
  QuantizedRowsStreamArgs part = args;
  for (int64_t first = 0; first < args.x.dim(0); first += kMaxRowsStreamed) {
    const int64_t rows = std::min(kMaxRowsStreamed, args.x.dim(0) - first);
    part.x = args.x.narrow(0, first, rows);
    part.out = args.out.narrow(0, first, rows);
    launch(ctx, part);
  }
}

bool quantized_rows_stream_takes(const QuantizedRowsStreamArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  const int64_t rows = args.x.dim(0);
  const bool takes_x =
      args.activations
          ? takes_eight_bit_codes(weight, args.activations, args.x) && takes_rows_of_codes(args.x)
          : takes_records(weight, args.x) && is_packed(args.x) && !weight.columns.defined();
  if (!takes_x || (args.epilogue == Epilogue::silu_and_mul && weight.n % (2 * kRecordRows) != 0))
    return false;
  if (!args.norm_weight.defined()) return true;
  return is_packed(args.norm_weight) &&
         (args.activations ? weight.k <= kMaxNormedColumns
                           : rows <= kMaxNormedRows && rows * weight.k <= kMaxNormed);
}

bool quantized_matmul_takes_rows_stream(const QuantizedMatmulArgs& args) {
  const bool prepared = args.activations || args.weight->columns.defined();
  return takes_records(*args.weight, args.x) && (prepared || is_packed(args.x)) &&
         (!args.activations || are_rounded_on_a_gpu(*args.activations));
}

int64_t quantized_matmul_rows_stream_workspace(const QuantizedMatmulArgs& args) {
  return prepared_x_workspace(args);
}

void quantized_matmul_rows_stream(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  const Tensor x = prepared_x(ctx, args, arena);
  quantized_rows_stream(ctx, {{.x = x, .out = args.out}, args.weight, args.bias});
}

}  // namespace ladder
