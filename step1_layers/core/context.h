#pragma once
// What an operator needs besides its tensors. There is no global state: device, stream, scratch memory and
// kernel choice all travel in this struct, from the runner down to the kernels.
#include <map>
#include <string>
#include <string_view>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/device.h"

namespace ladder {

struct ParallelContext;  // step1_layers/distributed/communicator.h
class CudaContext;       // step1_layers/core/device_cuda.h

struct OpContext {
  Device device;
  int device_arch = 0;  // CUDA: kernel_arch() of the GPU
  // CUDA: the cudaStream_t that every launch and every collective is ordered on; fake: a FakeStream.
  void* stream = nullptr;
  const CudaContext* cuda = nullptr;          // CUDA: library handles and workspace
  Arena* arena = nullptr;                     // scratch memory; see arena.h
  const ParallelContext* parallel = nullptr;  // nullptr: one rank
  // f32 promises results that are bitwise independent of the batch, so it is served by batch-invariant
  // variants only.
  bool batch_invariant = false;
  // CUDA: kernels may be launched before the previous one has ended (cuda_kernel.cuh, launch_kernel).
  bool dependent_launch = false;
  // --kernel op=variant; an empty map forces nothing.
  std::map<std::string, std::string, std::less<>> kernels;

  std::string_view forced_kernel(std::string_view op) const {
    if (kernels.empty()) return {};
    auto it = kernels.find(op);
    return it == kernels.end() ? std::string_view{} : std::string_view(it->second);
  }
};

}  // namespace ladder
