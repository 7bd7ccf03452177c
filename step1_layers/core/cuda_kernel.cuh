#pragma once
// What the kernels of all operators share: element types, 16-byte accesses, sums over warps and blocks.
// Only .cu files include this.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Calls fn with a value of the CUDA type of the dtype, as with_float_type (dtype.h) does on the CPU.
template <class Fn>
void with_cuda_type(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::f32:
      return fn(float{});
    case DType::bf16:
      return fn(__nv_bfloat16{});
    case DType::f16:
      return fn(__half{});
    default:
      fail_not_floating(dtype, "a CUDA kernel");
  }
}

// Programmatic dependent launch (CUDA programming guide, "Programmatic Dependent Launch and Synchronization";
// compute capability 9.0). Between two kernels of a stream the GPU drains, and the next one's blocks start
// from nothing: a microsecond, which is a third of a small kernel. A kernel launched here may instead be set
// up, and do what does not depend on its predecessor (prefetch weights, compute addresses), while the
// predecessor still runs.
//
//   __global__ void kernel(...) {
//     allow_next_kernel();         // the next kernel may be set up from now on
//     ... touch nothing that a preceding kernel writes, write nothing that one reads ...
//     wait_for_previous_kernel();  // all preceding kernels have ended, their writes are visible
//     ... the work ...
//   }
//
// Every thread of every kernel launched here must call wait_for_previous_kernel() before it reads or writes
// global memory that another kernel touches, on every path: waiting for a kernel
// then is waiting for all that it waited for.
__device__ inline void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
__device__ inline void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Of a kernel whose blocks form clusters (sm_90): how many. The code for an older GPU, which no variant
// launches, goes without: its compiler refuses the attribute.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define LADDER_CLUSTER_OF(blocks)
#else
#define LADDER_CLUSTER_OF(blocks) __cluster_dims__(blocks)
#endif

// kernel<<<grid, block, shared_bytes>>>(args...) on the context's stream, dependent where
// ctx.dependent_launch says so.
template <class... Params, class... Args>
void launch_kernel(const OpContext& ctx, void (*kernel)(Params...), dim3 grid, dim3 block,
                   size_t shared_bytes, const Args&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(ctx);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = ctx.dependent_launch ? 1 : 0;
  LADDER_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

template <class T>
T* cuda_data(const Tensor& tensor) {
  return static_cast<T*>(tensor.raw());
}

template <class T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline float to_float(__half x) {
  return __half2float(x);
}
template <class T>
__device__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(x);
  else
    return __float2bfloat16_rn(x);
}

// Sixteen bytes of adjacent elements: one load or store instruction.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  T value[kSize];
};

template <class T>
__device__ Pack<T> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}
template <class T>
__device__ void store_pack(T* to, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(to) = pack;
}
template <class T>
__device__ Pack<T> zero_pack() {
  Pack<T> pack;
  *reinterpret_cast<uint4*>(&pack) = uint4{0, 0, 0, 0};
  return pack;
}

// Sums and maxima over groups of `lanes` neighbouring lanes (a power of two); every lane gets the result. The
// order is fixed, so the same values give the same bits.
template <int lanes = kWarp>
__device__ float warp_sum(float x) {
#pragma unroll
  for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset, lanes);
  return x;
}
template <int lanes = kWarp>
__device__ float warp_max(float x) {
#pragma unroll
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset, lanes));
  return x;
}

// Over all threads of a block of whole warps; every thread gets the result. It may be called again at once.
template <class T, class Combine>
__device__ T block_reduce(T x, T neutral, Combine&& combine) {
  __shared__ T partial[kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, offset));
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  __syncthreads();  // readers of the call before are done
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  x = lane < warps ? partial[lane] : neutral;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}
__device__ inline float block_sum(float x) {
  return block_reduce(x, 0.0f, [](float a, float b) { return a + b; });
}
__device__ inline float block_max(float x) {
  return block_reduce(x, -INFINITY, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace ladder
