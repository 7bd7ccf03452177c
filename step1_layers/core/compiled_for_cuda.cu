// Whether the program holds machine code for a GPU: it is compiled for some architectures only
// (cmake/dependencies.cmake).
#include "step1_layers/core/device_cuda.h"

namespace ladder::cuda {

namespace {

constexpr int kHopper = 90, kThreadsOfHopper = 96;

// How many threads a block may have tells the host which code the driver has taken.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__global__ void __launch_bounds__(kThreadsOfHopper) nothing() {}
#else
__global__ void nothing() {}
#endif

}  // namespace

bool compiled_for_current_device() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, nothing);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
    return false;
  }
  LADDER_CUDA_CHECK(status);
  // A Hopper also runs what its driver makes of an older GPU's PTX, in which the rungs of 9.0 are empty.
  return attributes.binaryVersion != kHopper || attributes.maxThreadsPerBlock == kThreadsOfHopper;
}

}  // namespace ladder::cuda
