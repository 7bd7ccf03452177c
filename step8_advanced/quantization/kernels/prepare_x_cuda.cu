#include "step8_advanced/quantization/kernels/prepare_x_cuda.h"

#include <cuda_fp8.h>

#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

namespace {

constexpr int kThreads = 256;

struct Rounding {
  bool rounds = false, dynamic = false, is_float = false, symmetric = false;
  float scale = 1;  // of static activations
  float min_code = 0, max_code = 0;
};

Rounding rounding_of(const std::optional<QuantizationArgs>& args, float input_scale) {
  if (!args) return {};
  return {.rounds = true,
          .dynamic = args->dynamic,
          .is_float = args->is_float,
          .symmetric = args->symmetric,
          .scale = input_scale,
          .min_code = static_cast<float>(args->min_code()),
          .max_code = static_cast<float>(args->max_code())};
}

// make_grid() and nearest_code() of numbers/grid.h.
struct RowGrid {
  float scale, zero = 0;

  __device__ RowGrid(const Rounding& rounding, float low, float high) : scale(rounding.scale) {
    if (!rounding.dynamic) return;
    const float absmax = fmaxf(-low, high), codes = rounding.max_code - rounding.min_code;
    scale = rounding.is_float    ? absmax / 448
            : rounding.symmetric ? absmax / (codes / 2)
                                 : (high - low) / codes;
    if (!(scale > 0)) scale = 0x1p-23f;
    if (!rounding.is_float && !rounding.symmetric)
      zero = rintf(fminf(fmaxf(rounding.min_code - low / scale, rounding.min_code), rounding.max_code));
  }

  __device__ float round(const Rounding& rounding, float x) const {
    const float scaled = x / scale;
    if (rounding.is_float)
      return to_float(__half(__nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3),
                                                     __NV_E4M3))) *
             scale;
    return (rintf(fminf(fmaxf(scaled + zero, rounding.min_code), rounding.max_code)) - zero) * scale;
  }
};

// A block per row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    prepare_rows(const T* x, int64_t x_stride, int64_t features, const int32_t* columns, Rounding rounding,
                 int64_t k, T* out) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const T* row = x + blockIdx.x * x_stride;
  float low = 0, high = 0, bad = 0;
  if (rounding.rounds) {
    for (int64_t i = threadIdx.x; i < features; i += kThreads) {
      const float value = to_float(row[i]);
      if (isnan(value) || (rounding.dynamic && isinf(value))) bad = 1;
      low = fminf(low, value);
      high = fmaxf(high, value);
    }
    low = -block_max(-low);
    high = block_max(high);
    bad = block_max(bad);
  }
  const RowGrid grid(rounding, low, high);
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    const int64_t from = columns != nullptr ? columns[i] : i;
    float value = from < 0 ? 0.0f : to_float(row[from]);
    if (rounding.rounds) value = bad != 0 ? NAN : grid.round(rounding, value);
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
