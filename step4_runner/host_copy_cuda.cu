#include "step4_runner/host_copy.h"

#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/error.h"

namespace ladder {

namespace {

constexpr int kThreads = 256;

dim3 blocks_for(int64_t count) {
  return dim3(static_cast<unsigned>(ceil_div<int64_t>(count, kThreads)));
}

}  // namespace

// >>> task 4.5.cuda: kernels that copy between pinned memory and the device's
// The way over the bus takes a microsecond or two, in which the preceding kernel still runs.
static __global__ void __launch_bounds__(kThreads)
    copy_from_host_kernel(const uint4* from, uint4* to, int64_t count) {
  allow_next_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  uint4 word{};
  if (i < count) word = from[i];
  wait_for_previous_kernel();  // the step before has read what is overwritten
  if (i < count) to[i] = word;
}

static __global__ void __launch_bounds__(kThreads)
    copy_to_host_kernel(const uint32_t* from, uint32_t* to, int64_t count) {
  allow_next_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_previous_kernel();
  if (i < count) to[i] = from[i];
}

void copy_from_host_cuda(const OpContext& ctx, void* to, const void* from, int64_t bytes) {
  const int64_t count = ceil_div<int64_t>(bytes, sizeof(uint4));
  if (count == 0) return;
  launch_kernel(ctx, copy_from_host_kernel, blocks_for(count), dim3(kThreads), 0,
                static_cast<const uint4*>(from), static_cast<uint4*>(to), count);
}

void copy_to_host_cuda(const OpContext& ctx, void* to, const void* from, int64_t bytes) {
  LADDER_CHECK(bytes % 4 == 0, "{} bytes come back from a step: not whole words", bytes);
  const auto count = bytes / static_cast<int64_t>(sizeof(uint32_t));
  if (count == 0) return;
  launch_kernel(ctx, copy_to_host_kernel, blocks_for(count), dim3(kThreads), 0,
                static_cast<const uint32_t*>(from), static_cast<uint32_t*>(to), count);
}
// <<< task 4.5.cuda

}  // namespace ladder
