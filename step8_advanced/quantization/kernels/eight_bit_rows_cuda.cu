#include "step8_advanced/quantization/kernels/eight_bit_rows_cuda.h"

#include "step8_advanced/quantization/kernels/row_grid.cuh"
#include "step8_advanced/quantization/kernels/scaled_sum.cuh"

namespace ladder {

namespace {

constexpr int kThreads = 256, kThreadsOfRow = 512;
constexpr int kSums = 4;  // of a thread

constexpr int kMostHeld = 4;  // packs of a row in registers

// As the operator (rms_norm.h): in f32, rounded to T. Packs past the end are zeros and stay so.
template <class T, int held>
__device__ void norm(Pack<T> (&x)[held], const Pack<T> (&weight)[held], int k, float eps) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < held; ++i)
#pragma unroll
    for (int e = 0; e < Pack<T>::kSize; ++e) {
      const float value = to_float(x[i].value[e]);
      sum = fmaf(value, value, sum);
    }
  const float scale = rsqrtf(__fdividef(block_sum(sum), static_cast<float>(k)) + eps);
#pragma unroll
  for (int i = 0; i < held; ++i)
#pragma unroll
    for (int e = 0; e < Pack<T>::kSize; ++e)
      x[i].value[e] = from_float<T>(to_float(x[i].value[e]) * scale * to_float(weight[i].value[e]));
}

template <class T, int held>
__device__ void load_held(Pack<T> (&packs)[held], const T* row, int k) {
#pragma unroll
  for (int i = 0; i < held; ++i) {
    const int at = static_cast<int>(threadIdx.x + i * kThreadsOfRow) * Pack<T>::kSize;
    packs[i] = at < k ? load_pack(row + at) : zero_pack<T>();
  }
}

// A block per row. A thread has every kThreadsOfRow-th pack of it: the first kHeld in registers, the rest of a longer row, which is
// not normed, it reads again. Of registers it takes so few that it finds room beside a block of the product before.
template <class T, bool is_float, int kHeld>
__global__ void __launch_bounds__(kThreadsOfRow, 2)
    quantize_rows(const T* x, int64_t x_stride, int k, const T* norm_weight, float eps, Rounding rounding,
                  uint8_t* codes, float* scales) {
  allow_next_kernel();  // its blocks fill their rings meanwhile
  constexpr int kPack = Pack<T>::kSize, kStep = kThreadsOfRow * kPack;
  static_assert(kMostHeld * kStep == kMaxNormedColumns);
  Pack<T> held[kHeld], weight[kHeld];
  if (norm_weight != nullptr) load_held(weight, norm_weight, k);
  wait_for_previous_kernel();
  const T* row = x + blockIdx.x * x_stride;
  const int first = threadIdx.x * kPack;
  load_held(held, row, k);
  if (norm_weight != nullptr) norm(held, weight, k, eps);
  RowMagnitude<T> magnitude;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) magnitude.add(held[i]);
  for (int i = first + kHeld * kStep; i < k; i += kStep) magnitude.add(load_pack(row + i));
  RowExtent extent;
  extent.high = block_max(magnitude.of_thread(rounding));
  extent.low = -extent.high;
  const RowGrid grid(rounding, extent);
  const bool bad = extent.is_bad();
  if (threadIdx.x == 0) scales[blockIdx.x] = bad ? NAN : grid.scale;
  const auto store = [&](const Pack<T>& pack, int i) {
    *reinterpret_cast<uint2*>(codes + static_cast<int64_t>(blockIdx.x) * k + i) =
        codes_of<is_float>(pack, rounding, grid, bad);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (first + i * kStep < k) store(held[i], first + i * kStep);
  for (int i = first + kHeld * kStep; i < k; i += kStep) store(load_pack(row + i), i);
}

// blockIdx.x: the row; a thread has kSums neighbours.
template <class Sum, class Bias, class Out>
__global__ void __launch_bounds__(kThreads)
    scale_sums(const Sum* sums, const float* row_scales, const float* weight_scales, const Bias* bias, int n,
               Out* out, int64_t out_stride) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int j = (blockIdx.y * kThreads + threadIdx.x) * kSums;
  if (j >= n) return;
  const Pack<Sum> from = load_pack(sums + static_cast<int64_t>(blockIdx.x) * n + j);
  const Pack<float> scales = load_pack(weight_scales + j);
  const float row_scale = row_scales[blockIdx.x];
  Out* to = out + blockIdx.x * out_stride + j;
  alignas(16) Out values[kSums];
#pragma unroll
  for (int c = 0; c < kSums; ++c) {
    values[c] = scaled_sum<Out>(from.value[c], scales.value[c], row_scale,
                                bias != nullptr ? to_float(bias[j + c]) : 0.0f);
  }
  using Words = std::conditional_t<sizeof(Out) == 2, uint2, uint4>;
  *reinterpret_cast<Words*>(to) = *reinterpret_cast<const Words*>(values);
}

template <class Fn>
void with_16_bit_type(DType dtype, Fn&& fn) {
  if (dtype == DType::f16)
    fn(__half{});
  else
    fn(__nv_bfloat16{});
}

}  // namespace

void quantize_rows_cuda(const OpContext& ctx, const Tensor& x, const QuantizationArgs& activations,
                        float input_scale, const RowCodes& to, const RowNorm& norm) {
  with_16_bit_type(x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const bool short_rows = x.dim(1) <= kThreadsOfRow * Pack<T>::kSize;
    const auto kernel = activations.is_float
                            ? short_rows ? quantize_rows<T, true, 1> : quantize_rows<T, true, kMostHeld>
                        : short_rows ? quantize_rows<T, false, 1>
                                     : quantize_rows<T, false, kMostHeld>;
    launch_kernel(ctx, kernel, static_cast<unsigned>(x.dim(0)), kThreadsOfRow, 0, cuda_data<T>(x),
                  x.stride(0), static_cast<int>(x.dim(1)), cuda_data<T>(norm.weight),
                  static_cast<float>(norm.eps), rounding_of(activations, input_scale),
                  cuda_data<uint8_t>(to.codes), cuda_data<float>(to.scales));
  });
}

RowCodes quantized_rows(const OpContext& ctx, Arena& arena, const Tensor& x,
                        const QuantizationArgs& activations, float input_scale, const RowNorm& norm) {
  const RowCodes rows{arena.take(x.shape(), DType::u8), arena.take({x.dim(0)}, DType::f32)};
  quantize_rows_cuda(ctx, x, activations, input_scale, rows, norm);
  return rows;
}

void scale_sums_cuda(const OpContext& ctx, const Tensor& sums, const Tensor& row_scales,
                     const Tensor& weight_scales, const Tensor& bias, const Tensor& out) {
  const int n = static_cast<int>(sums.dim(1));
  const dim3 grid(static_cast<unsigned>(sums.dim(0)), static_cast<unsigned>(ceil_div(n, kThreads * kSums)));
  const auto launch = [&](auto sum, auto bias_type, auto out_type) {
    using Sum = decltype(sum);
    using Bias = decltype(bias_type);
    using Out = decltype(out_type);
    launch_kernel(ctx, scale_sums<Sum, Bias, Out>, grid, kThreads, 0, cuda_data<Sum>(sums),
                  cuda_data<float>(row_scales), cuda_data<float>(weight_scales), cuda_data<Bias>(bias), n,
                  cuda_data<Out>(out), out.stride(0));
  };
  with_cuda_type(out.dtype(), [&](auto out_type) {
    with_16_bit_type(bias.defined() ? bias.dtype() : DType::bf16, [&](auto bias_type) {
      if (sums.dtype() == DType::i32)
        launch(int32_t{}, bias_type, out_type);
      else
        launch(float{}, bias_type, out_type);
    });
  });
}

}  // namespace ladder
