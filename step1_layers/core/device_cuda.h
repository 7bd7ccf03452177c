#pragma once
// The CUDA side of device.h, what a CUDA context holds, and how CUDA errors surface. Plain C++: kernels are
// in .cu files.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "step1_layers/core/context.h"

namespace ladder {

// Error naming the call and where it stands. Every CUDA call goes through it; a kernel launch is followed by
// LADDER_CUDA_CHECK(cudaGetLastError()).
void check_cuda(cudaError_t status, const char* call, const char* file, int line);
#define LADDER_CUDA_CHECK(call) ::ladder::check_cuda((call), #call, __FILE__, __LINE__)

// The resources of one rank's work on one GPU: a stream, the matrix library's handle, and its workspace. They
// are made once, travel in OpContext, and are freed with this object.
class CudaContext {
 public:
  explicit CudaContext(int device_index);  // Error: no such GPU, or one that is too old
  // The same rank's on some of the GPU's multiprocessors (sm_partition_cuda.h): `stream`, a cudaStream_t that is kept as long as
  // this object, runs on so many. Workspace, counters and handle are those of `whole`: only one of the two may have work on the
  // GPU at a time.
  CudaContext(const CudaContext& whole, std::shared_ptr<void> stream, int num_multiprocessors);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  // device, device_arch, stream and cuda are filled in; the caller adds the arena and the rest.
  OpContext op_context() const;
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.get()); }
  void* cublaslt() const { return cublaslt_.get(); }  // a cublasLtHandle_t
  void* workspace() const { return workspace_.get(); }
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
  // Zero before and after every kernel: for blocks that count how many have finished, or send each other
  // results.
  int* counters() const { return static_cast<int*>(counters_.get()); }
  static constexpr int64_t kNumCounters = int64_t{1} << 19;
  // That the stream's kernels run on.
  int num_multiprocessors() const { return num_multiprocessors_; }
  bool is_partition() const { return is_partition_; }  // it has not all of the GPU's
  // Room for what the matrix library has said about the shapes met so far; its rung of matmul fills it.
  std::shared_ptr<void>& matmul_plans() const { return matmul_plans_; }
  // Lets blocks of `kernel` (a __global__ function) take so many bytes of dynamic shared memory, where more
  // than 48 KiB need the driver's leave. It is asked when they are more than ever before, as every call of it
  // costs the host a good part of a launch. True: it was asked now.
  bool allow_shared_bytes(const void* kernel, int64_t bytes) const;

 private:
  int index_ = 0;
  int arch_ = 0;
  int num_multiprocessors_ = 0;
  bool is_partition_ = false;
  std::shared_ptr<void> stream_, cublaslt_;
  std::shared_ptr<void> workspace_;
  std::shared_ptr<void> counters_;
  mutable std::shared_ptr<void> matmul_plans_;
  mutable std::unordered_map<const void*, int64_t> shared_bytes_;  // allowed so far, of every kernel
};

namespace cuda {
std::shared_ptr<void> allocate(int index, int64_t bytes);
std::shared_ptr<void> allocate_pinned(int64_t bytes);
void copy(void* to, const void* from, int64_t bytes, void* stream);
void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t row_bytes,
               int64_t rows, void* stream);
void fill(void* memory, uint8_t value, int64_t bytes, void* stream);
void synchronize(void* stream);
int device_count(std::string* reason);
CudaDeviceInfo device_info(int index);
bool compiled_for_current_device();
}  // namespace cuda

inline cudaStream_t stream_of(const OpContext& ctx) {
  return static_cast<cudaStream_t>(ctx.stream);
}

}  // namespace ladder
