#pragma once
// Launching a kernel on the emulated device: done when the call returns.
#include <cuda_runtime_api.h>

#include <tuple>

#include "lab/emulator/kernel.h"

namespace ladder_emulator {

// Calls thread(call) once for every thread of the grid. [call, + bytes): the kernel and its parameters, which it may
// read besides memory of the device. What the emulator has to report becomes the error of the launch.
cudaError_t run_grid(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, const void* call,
                     size_t bytes, void (*thread)(const void* call));
// The name of a kernel by its address.
const char* kernel_name(const void* kernel);

// `kernel` lies with its arguments, and so among what the threads may read.
template <class Kernel, class... Args>
LADDER_EMULATOR_FUNCTION cudaError_t launch(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
                                            Kernel kernel, Args... args) {
  const std::tuple<Kernel, Args...> call(kernel, args...);
  return run_grid(name, grid, block, shared_bytes, &call, sizeof(call), [](const void* of_thread) {
    std::apply([](const auto& function, const auto&... values) { function(values...); },
               *static_cast<const std::tuple<Kernel, Args...>*>(of_thread));
  });
}

// kernel<<<grid, block, shared_bytes, stream>>>(args...); its error is cudaGetLastError()'s.
class Launch {
 public:
  Launch(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t = nullptr)
      : kernel_(kernel), grid_(grid), block_(block), shared_bytes_(shared_bytes) {}
  template <class Kernel, class... Args>
  void run(Kernel kernel, Args... args) {
    launch(kernel_, grid_, block_, shared_bytes_, kernel, args...);
  }

 private:
  const char* kernel_;
  dim3 grid_, block_;
  size_t shared_bytes_;
};

}  // namespace ladder_emulator

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args... args) {
  return ladder_emulator::launch(ladder_emulator::kernel_name(reinterpret_cast<const void*>(kernel)),
                                 config->gridDim, config->blockDim, config->dynamicSmemBytes, kernel,
                                 static_cast<Params>(args)...);
}
