#include "step1_layers/core/device_cuda.h"

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {
constexpr double kMiB = 1 << 20;

// The driver keeps one number for a kernel and a GPU. Whoever set it to what his own context needs would take from the others,
// which may be about to launch with more: it is only ever raised.
bool allow_on_device(int gpu, const void* kernel, int64_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int64_t> allowed;
  const std::lock_guard lock(mutex);
  int64_t& most = allowed[{gpu, kernel}];
  if (bytes <= most) return false;
  LADDER_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  most = bytes;
  return true;
}

}  // namespace

void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // else the next launch would be blamed for it
  fail("{} failed at {}:{}: {} ({})", call, file, line, cudaGetErrorString(status), cudaGetErrorName(status));
}

CudaContext::CudaContext(int device_index) : index_(device_index) {
  const CudaDeviceInfo info = cuda::device_info(device_index);
  check_usable(info, device_name({DeviceType::cuda, device_index}));
  arch_ = kernel_arch(info);
  num_multiprocessors_ = info.num_multiprocessors;
  LADDER_CUDA_CHECK(cudaSetDevice(index_));
  workspace_ = cuda::allocate(index_, kWorkspaceBytes);
  constexpr int64_t kCounterBytes = kNumCounters * static_cast<int64_t>(sizeof(int));
  counters_ = cuda::allocate(index_, kCounterBytes);
  cuda::fill(counters_.get(), 0, kCounterBytes, nullptr);
  cudaStream_t stream = nullptr;
  LADDER_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  stream_ = {stream, [](void* own) { cudaStreamDestroy(static_cast<cudaStream_t>(own)); }};
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = cublasLtCreate(&handle);
  LADDER_CHECK(status == CUBLAS_STATUS_SUCCESS, "cublasLtCreate failed: {}", cublasLtGetStatusString(status));
  cublaslt_ = {handle, [](void* own) { cublasLtDestroy(static_cast<cublasLtHandle_t>(own)); }};
}

CudaContext::CudaContext(const CudaContext& whole, std::shared_ptr<void> stream, int num_multiprocessors)
    : index_(whole.index_),
      arch_(whole.arch_),
      num_multiprocessors_(num_multiprocessors),
      is_partition_(num_multiprocessors < whole.num_multiprocessors_),
      stream_(std::move(stream)),
      cublaslt_(whole.cublaslt_),
      workspace_(whole.workspace_),
      counters_(whole.counters_) {}

CudaContext::~CudaContext() {
  // Nothing can be reported from here, and the process may be ending because the device failed.
  cudaSetDevice(index_);
  matmul_plans_.reset();  // before the library they belong to
  cublaslt_.reset();
  stream_.reset();
}

OpContext CudaContext::op_context() const {
  OpContext ctx;
  ctx.device = {DeviceType::cuda, index_};
  ctx.device_arch = arch_;
  ctx.dependent_launch = arch_ >= 90;
  ctx.stream = stream_.get();
  ctx.cuda = this;
  return ctx;
}

bool CudaContext::allow_shared_bytes(const void* kernel, int64_t bytes) const {
  int64_t& known = shared_bytes_[kernel];
  if (bytes <= known) return false;
  known = bytes;
  return allow_on_device(index_, kernel, bytes);
}

namespace cuda {

std::shared_ptr<void> allocate(int index, int64_t bytes) {
  LADDER_CUDA_CHECK(cudaSetDevice(index));
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(bytes > 0 ? bytes : 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error: the caller may try again with less
    size_t free_bytes = 0, total_bytes = 0;
    LADDER_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    fail(
        "out of GPU memory: {:.1f} MiB wanted on cuda:{}, {:.1f} of {:.1f} MiB free; "
        "--gpu-memory-utilization, --num-kv-blocks, --kv-memory, --max-num-batched-tokens or --max-model-len "
        "lower what is needed",
        static_cast<double>(bytes) / kMiB, index, static_cast<double>(free_bytes) / kMiB,
        static_cast<double>(total_bytes) / kMiB);
  }
  LADDER_CUDA_CHECK(status);
  return {memory, [](void* pointer) { cudaFree(pointer); }};
}

std::shared_ptr<void> allocate_pinned(int64_t bytes) {
  void* memory = nullptr;
  LADDER_CUDA_CHECK(cudaMallocHost(&memory, static_cast<size_t>(bytes > 0 ? bytes : 1)));
  return {memory, [](void* pointer) { cudaFreeHost(pointer); }};
}

void copy(void* to, const void* from, int64_t bytes, void* stream) {
  if (stream) {
    LADDER_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault,
                                      static_cast<cudaStream_t>(stream)));
  } else {
    // From pageable memory cudaMemcpy returns before the bytes are there, and our streams do not wait for the
    // default one.
    LADDER_CUDA_CHECK(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault));
    LADDER_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }
}

void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t row_bytes,
               int64_t rows, void* stream) {
  if (row_bytes == 0 || rows == 0) return;
  const auto bytes = [](int64_t count) { return static_cast<size_t>(count); };
  LADDER_CUDA_CHECK(cudaMemcpy2DAsync(to, bytes(to_pitch), from, bytes(from_pitch), bytes(row_bytes),
                                      bytes(rows), cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
  if (!stream) LADDER_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void fill(void* memory, uint8_t value, int64_t bytes, void* stream) {
  if (stream) {
    LADDER_CUDA_CHECK(
        cudaMemsetAsync(memory, value, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)));
  } else {
    LADDER_CUDA_CHECK(cudaMemset(memory, value, static_cast<size_t>(bytes)));
    LADDER_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }
}

void synchronize(void* stream) {
  LADDER_CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

namespace {

std::string version_name(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Without a driver the runtime says that its version is too low.
std::string why_no_device(cudaError_t status) {
  if (status == cudaSuccess) return "no GPU";
  int driver = 0, runtime = 0;
  if (status != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess ||
      cudaRuntimeGetVersion(&runtime) != cudaSuccess)
    return cudaGetErrorString(status);
  if (driver == 0) return "no NVIDIA driver is installed";
  return fmt::format("the driver serves CUDA {}, this program was built with {}: expected a newer driver",
                     version_name(driver), version_name(runtime));
}

}  // namespace

int device_count(std::string* reason) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) count = 0;
  if (count == 0 && reason) *reason = why_no_device(status);
  cudaGetLastError();
  return count;
}

CudaDeviceInfo device_info(int index) {
  std::string reason;
  const int count = device_count(&reason);
  LADDER_CHECK(count > 0, "no GPU can be used: {}", reason);
  LADDER_CHECK(index >= 0 && index < count, "there is no cuda:{}: this machine has {} GPU(s)", index, count);
  cudaDeviceProp properties{};
  LADDER_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  CudaDeviceInfo info;
  info.name = properties.name;
  info.arch = properties.major * 10 + properties.minor;
  info.num_multiprocessors = properties.multiProcessorCount;
  info.l2_bytes = properties.l2CacheSize;
  info.shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  LADDER_CUDA_CHECK(cudaDriverGetVersion(&info.driver_version));
  LADDER_CUDA_CHECK(cudaRuntimeGetVersion(&info.runtime_version));
  LADDER_CUDA_CHECK(cudaSetDevice(index));
  size_t free_bytes = 0, total_bytes = 0;
  LADDER_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  info.free_bytes = static_cast<int64_t>(free_bytes);
  info.total_bytes = static_cast<int64_t>(total_bytes);
  info.has_kernels = compiled_for_current_device();
  return info;
}

}  // namespace cuda
}  // namespace ladder
