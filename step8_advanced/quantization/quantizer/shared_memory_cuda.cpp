#include "step8_advanced/quantization/quantizer/shared_memory_cuda.h"

#include <cuda_runtime.h>

#include <memory>

#include "step1_layers/core/error.h"

namespace ladder {

Tensor move_to_shared_memory(Tensor& tensor) {
  void* memory = nullptr;
  const cudaError_t status = cudaMallocManaged(&memory, static_cast<size_t>(tensor.nbytes()));
  LADDER_CHECK(status == cudaSuccess, "{} of memory that the CPU and {} share: {}", tensor.str(),
               device_name(tensor.device()), cudaGetErrorString(status));
  const std::shared_ptr<void> owner(memory, [](void* pointer) { cudaFree(pointer); });
  const Tensor of_cpu = Tensor::wrap(memory, tensor.shape(), tensor.dtype(), Device{}, owner);
  of_cpu.copy_from(tensor);
  tensor = Tensor::wrap(memory, tensor.shape(), tensor.dtype(), tensor.device(), owner);
  return of_cpu;
}

}  // namespace ladder
