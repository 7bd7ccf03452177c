// The rung of quantized_matmul for few rows on a GPU: which launch, and x as it takes it.
#include <algorithm>
#include <optional>

#include "step1_layers/core/packed.h"
#include "step8_advanced/quantization/kernels/prepare_x_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"

namespace ladder {

namespace {

// Reading the weight once for every kMaxRowsStreamed rows takes less than writing it out, for so many rows.
constexpr int64_t kMaxRows = 4 * kMaxRowsStreamed;

void launch(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  switch (args.weight->type) {
    case WeightCodes::int4:
      return rows_stream_int4(ctx, args);
    case WeightCodes::int8:
      return rows_stream_int8(ctx, args);
    default:
      return rows_stream_fp8(ctx, args);
  }
}

}  // namespace

bool quantized_matmul_takes_rows_stream(const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  const bool prepared = args.activations || weight.columns.defined();
  return weight.records.bytes.defined() && dtype_size(args.x.dtype()) == 2 && args.x.dim(0) <= kMaxRows &&
         weight.k % 8 == 0 && (prepared || is_packed(args.x)) &&
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
  QuantizedMatmulArgs part = args;
  for (int64_t first = 0; first < x.dim(0); first += kMaxRowsStreamed) {
    const int64_t rows = std::min(kMaxRowsStreamed, x.dim(0) - first);
    part.x = x.narrow(0, first, rows);
    part.out = args.out.narrow(0, first, rows);
    launch(ctx, part);
  }
}

}  // namespace ladder
