// Whether the program holds machine code for a GPU: it is compiled for some architectures only
// (cmake/ladder.cmake).
#include "step1_layers/core/device_cuda.h"

namespace ladder::cuda {

namespace {
__global__ void nothing() {}
}  // namespace

bool compiled_for_current_device() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, nothing);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
    return false;
  }
  LADDER_CUDA_CHECK(status);
  return true;
}

}  // namespace ladder::cuda
