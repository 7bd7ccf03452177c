#include "step7_parallel/communicators/gpu/gpu_memory_handle.h"

#include <random>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// Equal in the threads of one process alone. A process id would not do: containers have their own.
uint64_t this_process() {
  static const uint64_t number = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return number;
}

}  // namespace

GpuMemoryHandle handle_of_gpu_memory(int device, void* address) {
  GpuMemoryHandle handle;
  handle.process = this_process();
  handle.address = address;
  handle.has_ipc =
      cudaIpcGetMemHandle(&handle.ipc, address) == cudaSuccess;  // matters to other processes only
  cudaGetLastError();
  LADDER_CUDA_CHECK(cudaDeviceGetPCIBusId(handle.bus, sizeof handle.bus, device));
  return handle;
}

int device_of(const GpuMemoryHandle& handle) {
  int device = -1;
  if (cudaDeviceGetByPCIBusId(&device, handle.bus) == cudaSuccess) return device;
  cudaGetLastError();
  return -1;
}

OpenedGpuMemory open_gpu_memory(const GpuMemoryHandle& handle, int device, std::string_view whose) {
  const int from = device_of(handle);
  LADDER_CHECK(from >= 0, "the GPU of {} ({}) is not visible here", whose, handle.bus);
  LADDER_CUDA_CHECK(cudaSetDevice(device));
  if (from != device) {
    int can = 0;
    LADDER_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, device, from));
    LADDER_CHECK(can != 0, "cuda:{} cannot access the memory of cuda:{}, that of {}", device, from, whose);
  }
  OpenedGpuMemory opened;
  if (handle.process != this_process()) {
    LADDER_CHECK(handle.has_ipc, "the driver gives no handle for the memory of {}", whose);
    LADDER_CUDA_CHECK(cudaIpcOpenMemHandle(&opened.address, handle.ipc, cudaIpcMemLazyEnablePeerAccess));
    opened.is_ipc = true;
    return opened;
  }
  if (from != device) {
    const cudaError_t status = cudaDeviceEnablePeerAccess(from, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();
    else
      LADDER_CUDA_CHECK(status);
  }
  opened.address = handle.address;
  return opened;
}

void close_gpu_memory(OpenedGpuMemory& memory) {
  if (memory.is_ipc) cudaIpcCloseMemHandle(memory.address);
  cudaGetLastError();
  memory = {};
}

}  // namespace ladder
