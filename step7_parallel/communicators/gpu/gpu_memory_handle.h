#pragma once
// Memory of a GPU told to somebody else on this machine, who addresses it: another process by a CUDA IPC handle, a thread of
// this process, which cannot open its own process' handle, by its address.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

namespace ladder {

struct GpuMemoryHandle {  // travels as bytes
  uint64_t process = 0;
  void* address = nullptr;
  cudaIpcMemHandle_t ipc = {};
  bool has_ipc = false;
  char bus[24] = {};  // the GPU's PCI address: processes may number GPUs differently
};

// Small allocations share a block of the driver's, and a handle is one of the block: what is told is a multiple of this, and
// so a block of its own.
inline constexpr int64_t kGpuMemoryBlock = int64_t{2} << 20;

// Of memory on this device, an allocation of cudaMalloc's.
GpuMemoryHandle handle_of_gpu_memory(int device, void* address);
// The handle's GPU as it is numbered here; -1: it is not visible here.
int device_of(const GpuMemoryHandle& handle);

struct OpenedGpuMemory {
  void* address = nullptr;
  bool is_ipc = false;
};
// As the device sees it. Error: it cannot, and why; `whose` names the other. That what is read through it is what lies there has
// yet to be tried: drivers have reported peer access that did not work (vLLM issue 2728).
OpenedGpuMemory open_gpu_memory(const GpuMemoryHandle& handle, int device, std::string_view whose);
// Before the owner frees it. On the device that opened it.
void close_gpu_memory(OpenedGpuMemory& memory);

}  // namespace ladder
