#include "step8_advanced/quantization/kernels/prepare_x_cuda.h"

#include "step8_advanced/quantization/kernels/row_grid.cuh"

namespace ladder {

namespace {

constexpr int kThreads = 256;

// A block per row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    prepare_rows(const T* x, int64_t x_stride, int64_t features, const int32_t* columns, Rounding rounding,
                 int64_t k, T* out) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const T* row = x + blockIdx.x * x_stride;
  RowExtent extent;
  if (rounding.rounds) {
    for (int64_t i = threadIdx.x; i < features; i += kThreads) extent.add(rounding, to_float(row[i]));
    extent.gather_block(rounding);
  }
  const RowGrid grid(rounding, extent);
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    const int64_t from = columns != nullptr ? columns[i] : i;
    float value = from < 0 ? 0.0f : to_float(row[from]);
    if (rounding.rounds) value = extent.is_bad() ? NAN : grid.round(rounding, value);
    out[blockIdx.x * k + i] = from_float<T>(value);
  }
}

bool changes_x(const QuantizedMatmulArgs& args) {
  return args.activations || args.weight->columns.defined();
}

}  // namespace

void prepare_x_cuda(const OpContext& ctx, const Tensor& x, const Tensor& columns,
                    const std::optional<QuantizationArgs>& activations, float input_scale,
                    const Tensor& out) {
  with_cuda_type(x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    launch_kernel(ctx, prepare_rows<T>, static_cast<unsigned>(x.dim(0)), kThreads, 0, cuda_data<T>(x),
                  x.stride(0), x.dim(1), cuda_data<int32_t>(columns), rounding_of(activations, input_scale),
                  out.dim(1), cuda_data<T>(out));
  });
}

Tensor prepared_x(const OpContext& ctx, const QuantizedMatmulArgs& args, Arena& arena) {
  if (!changes_x(args)) return args.x;
  const Tensor out = arena.take({args.x.dim(0), args.weight->k}, args.x.dtype());
  prepare_x_cuda(ctx, args.x, args.weight->columns, args.activations, args.input_scale, out);
  return out;
}

int64_t prepared_x_workspace(const QuantizedMatmulArgs& args) {
  return changes_x(args) ? args.x.dim(0) * args.weight->k * dtype_size(args.x.dtype()) : 0;
}

}  // namespace ladder
