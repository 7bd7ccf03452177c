#include "step1_layers/core/sm_partition_cuda.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

constexpr int kSince = 12050;  // CUDA 12.5: cuGreenCtxStreamCreate; the others came with 12.4

template <class Function>
void find(Function& function, const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault, &result);
  if (status != cudaSuccess) cudaGetLastError();
  if (status == cudaSuccess && result == cudaDriverEntryPointSuccess)
    function = reinterpret_cast<Function>(found);
}

void check(CUresult status, const char* call, int gpu) {
  LADDER_CHECK(status == CUDA_SUCCESS,
               "multiprocessors of cuda:{} cannot be shared out: {} failed: CUresult {}", gpu, call,
               static_cast<int>(status));
}

// A stream of a green context, which ends with it.
std::shared_ptr<void> make_stream(const GreenContextDriver& driver, CUdevResource share, int gpu,
                                  int priority) {
  CUdevResourceDesc description = nullptr;
  check(driver.describe(&description, &share, 1), "cuDevResourceGenerateDesc", gpu);
  CUgreenCtx green = nullptr;
  check(driver.create(&green, description, gpu, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate", gpu);
  const std::shared_ptr<void> owner(
      green, [destroy = driver.destroy](void* own) { destroy(static_cast<CUgreenCtx>(own)); });
  CUstream stream = nullptr;
  check(driver.create_stream(&stream, green, CU_STREAM_NON_BLOCKING, priority), "cuGreenCtxStreamCreate",
        gpu);
  return {stream, [owner](void* own) { cudaStreamDestroy(static_cast<cudaStream_t>(own)); }};
}

int highest_priority() {
  int lowest = 0, highest = 0;
  LADDER_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  return highest;
}

}  // namespace

GreenContextDriver find_green_context_driver() {
  GreenContextDriver driver;
  LADDER_CUDA_CHECK(cudaDriverGetVersion(&driver.driver_version));
  find(driver.get_resource, "cuDeviceGetDevResource");
  find(driver.split, "cuDevSmResourceSplitByCount");
  find(driver.describe, "cuDevResourceGenerateDesc");
  find(driver.create, "cuGreenCtxCreate");
  find(driver.destroy, "cuGreenCtxDestroy");
  find(driver.create_stream, "cuGreenCtxStreamCreate");
  return driver;
}

void expect_green_contexts(const GreenContextDriver& driver) {
  const auto has = [&](auto function, const char* name) {
    LADDER_CHECK(
        function != nullptr,
        "multiprocessors cannot be shared out: the driver, which serves CUDA {}.{}, has no {}: expected one of CUDA "
        "12.5 or later",
        driver.driver_version / 1000, driver.driver_version % 1000 / 10, name);
  };
  has(driver.get_resource, "cuDeviceGetDevResource");
  has(driver.split, "cuDevSmResourceSplitByCount");
  has(driver.describe, "cuDevResourceGenerateDesc");
  has(driver.create, "cuGreenCtxCreate");
  has(driver.destroy, "cuGreenCtxDestroy");
  has(driver.create_stream, "cuGreenCtxStreamCreate");
}

std::vector<SmSplit> split_multiprocessors(const CudaContext& first, const CudaContext& second,
                                           std::span<const int> first_sms, const GreenContextDriver& driver) {
  expect_green_contexts(driver);
  const int gpu = first.op_context().device.index;
  LADDER_CUDA_CHECK(cudaSetDevice(gpu));
  CUdevResource all{};
  check(driver.get_resource(gpu, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource", gpu);
  std::vector<SmSplit> splits;
  for (const int wanted : first_sms) {
    LADDER_CHECK(wanted > 0 && wanted < static_cast<int>(all.sm.smCount),
                 "--sm-partition {}: cuda:{} has {} multiprocessors, and both kinds of steps need some",
                 wanted, gpu, all.sm.smCount);
    CUdevResource share{}, rest{};
    unsigned int count = 1;
    check(driver.split(&share, &count, &all, &rest, 0, static_cast<unsigned int>(wanted)),
          "cuDevSmResourceSplitByCount", gpu);
    LADDER_CHECK(
        count == 1 && rest.type == CU_DEV_RESOURCE_TYPE_SM && rest.sm.smCount > 0,
        "--sm-partition {}: cuda:{} has {} multiprocessors in groups of {}, which leaves none for the other kind of steps",
        wanted, gpu, all.sm.smCount, all.sm.smCoscheduledAlignment);
    const int first_count = static_cast<int>(share.sm.smCount),
              second_count = static_cast<int>(rest.sm.smCount);
    if (!splits.empty() && splits.back().first->num_multiprocessors() == first_count) continue;
    SmSplit& split = splits.emplace_back();
    split.first = std::make_shared<CudaContext>(first, make_stream(driver, share, gpu, highest_priority()),
                                                first_count);
    split.second = std::make_shared<CudaContext>(second, make_stream(driver, rest, gpu, 0), second_count);
  }
  return splits;
}

std::shared_ptr<CudaContext> with_priority(const CudaContext& whole) {
  LADDER_CUDA_CHECK(cudaSetDevice(whole.op_context().device.index));
  cudaStream_t stream = nullptr;
  LADDER_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest_priority()));
  return std::make_shared<CudaContext>(
      whole,
      std::shared_ptr<void>(stream, [](void* own) { cudaStreamDestroy(static_cast<cudaStream_t>(own)); }),
      whole.num_multiprocessors());
}

}  // namespace ladder
