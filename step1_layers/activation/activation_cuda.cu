#include "step1_layers/activation/activation_cuda.h"
#include "step1_layers/core/packed.h"
#include "step1_layers/core/packs.cuh"

namespace ladder {

namespace {

constexpr int kThreads = 256;

// The 16-bit types round away what the fast exponential and reciprocal lose; float keeps the accurate ones.
template <class T>
__device__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) return 1.0f / (1.0f + expf(-x));
  float y = 1.0f + __expf(-x);
#ifdef __CUDA_ARCH__
  asm("rcp.approx.f32 %0, %0;" : "+f"(y));
  return y;
#else  // the emulator
  return 1.0f / y;
#endif
}

template <class T>
struct Silu {
  __device__ float operator()(float x) const { return x * sigmoid<T>(x); }
};
template <class T>
struct GeluTanh {  // (1 + tanh u) / 2 = sigmoid(2u), which does not cancel
  __device__ float operator()(float x) const {
    return x * sigmoid<T>(1.5957691216f * (x + 0.044715f * x * x * x));
  }
};
template <class T>
struct GeluErf {
  __device__ float operator()(float x) const { return 0.5f * x * erfcf(-0.7071067812f * x); }
};
template <class T>
struct Relu {
  __device__ float operator()(float x) const { return x < 0 ? 0 : x; }
};

// naive
// Any shape and stride. A thread computes one element. Neighbouring threads read neighbouring elements, so a
// warp's accesses merge, but every instruction moves two or four bytes only.
//
// vectorized
// Rows of whole 16-byte packs (packed.h), fewer than 2^31 packs in all. A pack per thread and operand: eight
// times the bytes of the rung below (bf16) for an eighth of its instructions, and the division that finds the
// row is paid once for eight elements, in 32 bits. Small blocks: what is in flight at one time lies close
// together, and a few tokens still reach many multiprocessors.
constexpr int kPackedThreads = 128;
// >>> task 1.2.cuda: activations on the GPU, an element per thread and sixteen bytes per access
template <bool gated, class T, class Activation>
__global__ void activation_naive(const T* x, int64_t x_stride, T* out, int64_t out_stride, int64_t rows,
                                 int64_t width, Activation activation) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * width) return;
  const int64_t row = i / width, column = i % width;
  const T* from = x + row * x_stride + column;
  float y = activation(to_float(from[0]));
  if constexpr (gated) y *= to_float(from[width]);
  out[row * out_stride + column] = from_float<T>(y);
}

template <bool gated, class T, class Activation>
__global__ void __launch_bounds__(kPackedThreads)
    activation_packed(const T* x, int64_t x_stride, T* out, int64_t out_stride, uint32_t total,
                      uint32_t packs_per_row, Activation activation) {
  constexpr int kSize = Pack<T>::kSize;
  allow_next_kernel();
  const uint32_t i = blockIdx.x * kPackedThreads + threadIdx.x;
  const uint32_t row = i / packs_per_row, column = i % packs_per_row * kSize;
  const T* from = x + row * x_stride + column;
  wait_for_previous_kernel();
  if (i >= total) return;
  const Pack<T> first = load_pack(from);
  Pack<T> second;
  if constexpr (gated) second = load_pack(from + int64_t{packs_per_row} * kSize);
  float y[kSize], up[kSize];
  to_floats(first, y);
#pragma unroll
  for (int k = 0; k < kSize; ++k) y[k] = activation(y[k]);
  if constexpr (gated) {
    to_floats(second, up);
#pragma unroll
    for (int k = 0; k < kSize; ++k) y[k] *= up[k];
  }
  store_pack(out + row * out_stride + column, from_floats<T>(y));
}

template <bool gated, template <class> class Activation>
void launch_naive(const OpContext& ctx, const Tensor& x, const Tensor& out) {
  if (out.numel() == 0) return;
  with_cuda_type(out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(out.numel(), kThreads));
    activation_naive<gated><<<blocks, kThreads, 0, stream_of(ctx)>>>(cuda_data<const T>(x), x.stride(0),
                                                                     cuda_data<T>(out), out.stride(0),
                                                                     out.dim(0), out.dim(1), Activation<T>{});
  });
  LADDER_CUDA_CHECK(cudaGetLastError());
}

template <bool gated, template <class> class Activation>
void launch_packed(const OpContext& ctx, const Tensor& x, const Tensor& out) {
  if (out.numel() == 0) return;
  with_cuda_type(out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto total = static_cast<uint32_t>(out.numel() / Pack<T>::kSize);
    const auto packs_per_row = static_cast<uint32_t>(out.dim(1) / Pack<T>::kSize);
    const uint32_t blocks = ceil_div<uint32_t>(total, kPackedThreads);
    launch_kernel(ctx, activation_packed<gated, T, Activation<T>>, blocks, kPackedThreads, 0,
                  cuda_data<const T>(x), x.stride(0), cuda_data<T>(out), out.stride(0), total, packs_per_row,
                  Activation<T>{});
  });
}
// <<< task 1.2.cuda

bool packed(const Tensor& x, const Tensor& out) {
  return is_packed(x) && is_packed(out) && out.nbytes() / 16 < int64_t{1} << 31;
}

}  // namespace

void silu_and_mul_cuda(const OpContext& ctx, const SiluAndMulArgs& args) {
  launch_naive<true, Silu>(ctx, args.gate_up, args.out);
}
void silu_and_mul_cuda_packed(const OpContext& ctx, const SiluAndMulArgs& args) {
  launch_packed<true, Silu>(ctx, args.gate_up, args.out);
}
bool silu_and_mul_is_packed(const SiluAndMulArgs& args) {
  return packed(args.gate_up, args.out);
}

void gelu_and_mul_cuda(const OpContext& ctx, const GeluAndMulArgs& args) {
  if (args.kind == GeluKind::tanh)
    launch_naive<true, GeluTanh>(ctx, args.gate_up, args.out);
  else
    launch_naive<true, GeluErf>(ctx, args.gate_up, args.out);
}
void gelu_and_mul_cuda_packed(const OpContext& ctx, const GeluAndMulArgs& args) {
  if (args.kind == GeluKind::tanh)
    launch_packed<true, GeluTanh>(ctx, args.gate_up, args.out);
  else
    launch_packed<true, GeluErf>(ctx, args.gate_up, args.out);
}
bool gelu_and_mul_is_packed(const GeluAndMulArgs& args) {
  return packed(args.gate_up, args.out);
}

void gelu_cuda(const OpContext& ctx, const GeluArgs& args) {
  if (args.kind == GeluKind::tanh)
    launch_naive<false, GeluTanh>(ctx, args.x, args.out);
  else
    launch_naive<false, GeluErf>(ctx, args.x, args.out);
}
void gelu_cuda_packed(const OpContext& ctx, const GeluArgs& args) {
  if (args.kind == GeluKind::tanh)
    launch_packed<false, GeluTanh>(ctx, args.x, args.out);
  else
    launch_packed<false, GeluErf>(ctx, args.x, args.out);
}
bool gelu_is_packed(const GeluArgs& args) {
  return packed(args.x, args.out);
}

void relu_cuda(const OpContext& ctx, const ReluArgs& args) {
  launch_naive<false, Relu>(ctx, args.x, args.out);
}
void relu_cuda_packed(const OpContext& ctx, const ReluArgs& args) {
  launch_packed<false, Relu>(ctx, args.x, args.out);
}
bool relu_is_packed(const ReluArgs& args) {
  return packed(args.x, args.out);
}

}  // namespace ladder
