// cuda_runtime_api.h for the emulated device: a GPU of compute capability 7.5, whose memory is the host's.
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <string>

#include "lab/emulator/grid.h"
#include "lab/emulator/launch.h"

namespace ladder_emulator {

namespace {

constexpr size_t kGuard = 4096;  // what an index a little too large meets, on both sides

cudaError_t last_error = cudaSuccess;

}  // namespace

cudaError_t run_grid(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, const void* call,
                     size_t bytes, void (*thread)(const void* call)) {
  if (!ladder_emulator::grid().run(kernel, grid, block, shared_bytes, call, bytes, thread))
    last_error = cudaErrorLaunchFailure;
  return last_error;
}

}  // namespace ladder_emulator

using namespace ladder_emulator;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  strcpy(properties->name, "emulated");
  properties->major = 7;
  properties->minor = 5;
  properties->multiProcessorCount = 4;
  properties->l2CacheSize = 4 << 20;
  properties->sharedMemPerBlockOptin = 64 << 10;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 12040;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 12040;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const size_t rounded = (bytes + 255) / 256 * 256;
  auto* block = static_cast<char*>(aligned_alloc(256, kGuard + rounded + kGuard));
  if (block == nullptr) return cudaErrorMemoryAllocation;
  *memory = block + kGuard;
  ladder_emulator::memory().add(*memory, bytes, Space::global);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  ladder_emulator::memory().remove(memory);
  free(static_cast<char*>(memory) - kGuard);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  memmove(to, from, bytes);
  ladder_emulator::memory().set_known(to, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t) {
  for (size_t row = 0; row < height; ++row)
    cudaMemcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
               width, kind);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  memset(memory, value, bytes);
  ladder_emulator::memory().set_known(memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(memory, value, bytes);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  static char one;  // not nullptr, which means: wait
  *stream = reinterpret_cast<cudaStream_t>(&one);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t status) {
  if (status == cudaErrorLaunchFailure) {
    static std::string text;
    text = "\n" + ladder_emulator::grid().reports() + "\n";
    return text.c_str();
  }
  return status == cudaErrorMemoryAllocation ? "out of memory" : "an error";
}
const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaErrorLaunchFailure ? "found by the emulator" : "a CUDA error";
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, void (*)()) {
  return cudaSuccess;
}
