#include "step8_advanced/quantization/kernels/prepare_x_cuda.h"

#include "step8_advanced/quantization/kernels/row_grid.cuh"

namespace ladder {

namespace {

constexpr int kThreads = 256;

// RowsOfExperts, where expert_ids is not nullptr.
struct ExpertOfRow {
  const int32_t* expert_ids = nullptr;
  const float* scales = nullptr;
  int experts = 0, pairs_of_row = 1;
  int64_t order_stride = 0;  // from an expert's columns to the next one's; 0: all have the same

  // What row `row` of out has in place of those of all. False: it is nobody's.
  __device__ bool find(int64_t row, float& scale, const int32_t*& columns) const {
    if (expert_ids == nullptr) return true;
    const int expert = expert_ids[row];
    if (expert < 0 || expert >= experts) return false;
    if (scales != nullptr) scale = scales[expert];
    if (order_stride > 0) columns += expert * order_stride;
    return true;
  }
};

// A block per row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    prepare_rows(const T* x, int64_t x_stride, int64_t features, const int32_t* columns, Rounding rounding,
                 ExpertOfRow of_rows, int64_t k, T* out) {
  allow_next_kernel();
  wait_for_previous_kernel();
  if (!of_rows.find(blockIdx.x, rounding.scale, columns)) return;
  const T* row = x + blockIdx.x / of_rows.pairs_of_row * x_stride;
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

// What make_grid() (numbers/grid.h) makes of a group, for all that are_rounded_on_a_gpu() lets through.
struct GroupRounding {
  int64_t size;
  bool is_float, symmetric;
  ScaleFormat format;
  int bits;
  float global_scale;  // NVFP4's G
  float min_code, max_code;

  GroupRounding(const QuantizationArgs& args, float input_scale)
      : size(args.group_size),
        is_float(args.is_float),
        symmetric(args.symmetric),
        format(args.scale_format),
        bits(args.num_bits),
        global_scale(input_scale),
        min_code(static_cast<float>(args.min_code())),
        max_code(static_cast<float>(args.max_code())) {}

  // {scale, zero}
  __device__ float2 grid(float low, float high) const {
    const float absmax = fmaxf(-low, high), codes = max_code - min_code;
    float scale = is_float    ? absmax / (bits == 4 ? 6.0f : 448.0f)
                  : symmetric ? absmax / (codes / 2)
                              : (high - low) / codes;
    if (format == ScaleFormat::e4m3) {
      const float local = e4m3(scale * global_scale);
      return {(local > 0 ? local : 0.125f) / global_scale, 0};
    }
    const bool powers = format == ScaleFormat::e8m0;
    if (powers && absmax > 0) {
      int exponent = ilogbf(absmax);
      if (ldexpf(absmax, -exponent) + 0.25f >= 2) ++exponent;
      scale = ldexpf(1, min(max(exponent - (bits == 4 ? 2 : 8), -127), 127));
    }
    if (!(scale > 0)) scale = powers ? 1.0f : 0x1p-23f;
    if (is_float || symmetric) return {scale, 0};
    return {scale, rintf(fminf(fmaxf(min_code - low / scale, min_code), max_code))};
  }
  __device__ float round(float x, float2 grid) const {
    const float scaled = x / grid.x;
    if (is_float && bits == 4) return e2m1(scaled) * grid.x;
    if (is_float) return e4m3(scaled) * grid.x;
    return (rintf(fminf(fmaxf(scaled + grid.y, min_code), max_code)) - grid.y) * grid.x;
  }
  __device__ static float e4m3(float x) {
    return to_float(
        __half(__nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3), __NV_E4M3)));
  }
  // The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; of two the one with the even code.
  __device__ static float e2m1(float x) {
    const float a = fabsf(x);
    return copysignf(a <= 0.25f   ? 0.0f
                     : a < 0.75f  ? 0.5f
                     : a <= 1.25f ? 1.0f
                     : a < 1.75f  ? 1.5f
                     : a <= 2.5f  ? 2.0f
                     : a < 3.5f   ? 3.0f
                     : a <= 5     ? 4.0f
                                  : 6.0f,
                     x);
  }
};

// A block per row, a warp per group of its features: the grids of all groups in shared memory, then the row by them.
template <class T>
__global__ void __launch_bounds__(kThreads)
    prepare_groups(const T* x, int64_t x_stride, int64_t features, const int32_t* columns,
                   GroupRounding rounding, ExpertOfRow of_rows, int64_t k, T* out) {
  extern __shared__ float2 grids[];
  allow_next_kernel();
  wait_for_previous_kernel();
  if (!of_rows.find(blockIdx.x, rounding.global_scale, columns)) return;
  const T* row = x + blockIdx.x / of_rows.pairs_of_row * x_stride;
  bool is_bad = false;
  for (int64_t group = threadIdx.x / kWarp; group * rounding.size < features; group += kThreads / kWarp) {
    const int64_t begin = group * rounding.size;
    float low = 0, high = 0;
    for (int64_t i = begin + threadIdx.x % kWarp; i < min(begin + rounding.size, features); i += kWarp) {
      const float value = to_float(row[i]);
      is_bad = is_bad || !isfinite(value);
      low = fminf(low, value);
      high = fmaxf(high, value);
    }
    low = -warp_max(-low);
    high = warp_max(high);
    if (threadIdx.x % kWarp == 0) grids[group] = rounding.grid(low, high);
  }
  is_bad = __syncthreads_or(is_bad);
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    const int64_t from = columns != nullptr ? columns[i] : i;
    const float value = from < 0 ? 0.0f : rounding.round(to_float(row[from]), grids[from / rounding.size]);
    out[blockIdx.x * k + i] = from_float<T>(is_bad ? NAN : value);
  }
}

bool changes_x(const QuantizedMatmulArgs& args) {
  return args.activations || args.weight->columns.defined();
}

}  // namespace

void prepare_x_cuda(const OpContext& ctx, const Tensor& x, const Tensor& columns,
                    const std::optional<QuantizationArgs>& activations, float input_scale, const Tensor& out,
                    const RowsOfExperts* of_experts) {
  LADDER_CHECK(of_experts != nullptr || !columns.defined() || columns.ndim() == 1,
               "prepare_x_cuda: {} orders of columns, of rows of no experts", columns.dim(0));
  ExpertOfRow of_rows;
  if (of_experts != nullptr) {
    const bool own_orders = columns.defined() && columns.ndim() == 2;
    const Tensor& of_each = own_orders ? columns : of_experts->scales;
    of_rows = {cuda_data<int32_t>(of_experts->expert_ids), cuda_data<float>(of_experts->scales),
               static_cast<int>(of_each.dim(0)), of_experts->pairs_of_row,
               own_orders ? columns.stride(0) : 0};
  }
  const auto rows = static_cast<unsigned>(out.dim(0));
  with_cuda_type(x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if (activations && activations->strategy == ScaleStrategy::group) {
      const auto groups = static_cast<size_t>(ceil_div(x.dim(1), activations->group_size));
      launch_kernel(ctx, prepare_groups<T>, rows, kThreads, groups * sizeof(float2), cuda_data<T>(x),
                    x.stride(0), x.dim(1), cuda_data<int32_t>(columns),
                    GroupRounding(*activations, input_scale), of_rows, out.dim(1), cuda_data<T>(out));
      return;
    }
    launch_kernel(ctx, prepare_rows<T>, rows, kThreads, 0, cuda_data<T>(x), x.stride(0), x.dim(1),
                  cuda_data<int32_t>(columns), rounding_of(activations, input_scale), of_rows, out.dim(1),
                  cuda_data<T>(out));
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
