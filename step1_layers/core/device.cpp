#include "step1_layers/core/device.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/fake_device.h"

#ifdef LADDER_HAS_CUDA
#include "step1_layers/core/device_cuda.h"
#endif

namespace ladder {

namespace {

[[noreturn]] [[maybe_unused]] void fail_no_cuda() {
  fail("this build of ladder has no CUDA");
}

std::shared_ptr<void> cpu_allocate(int64_t bytes) {
  constexpr int64_t kLine = 64, kLargePage = int64_t{2} << 20;
  // Linux promises more memory than there is and kills the process that uses it: refuse that here.
  LADDER_CHECK(bytes >= 0, "cannot allocate {} bytes", bytes);
  LADDER_CHECK(bytes <= physical_memory_bytes(), "out of memory: {:.1f} MiB wanted on cpu, which has {:.1f}",
               static_cast<double>(bytes) / (1 << 20),
               static_cast<double>(physical_memory_bytes()) / (1 << 20));
  // aligned_alloc wants a multiple of the alignment; at least one line, so that an empty tensor has an
  // address too.
  const int64_t alignment = bytes >= 2 * kLargePage ? kLargePage : kLine;
  const int64_t rounded = std::max((bytes + alignment - 1) / alignment, int64_t{1}) * alignment;
  void* memory = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded));
  LADDER_CHECK(memory != nullptr, "out of memory: {:.1f} MiB wanted on cpu",
               static_cast<double>(bytes) / (1 << 20));
#ifdef __linux__
  // Weights are read from end to end for every token. On 2 MiB pages the same reads miss the address
  // translation cache far less often: 14.5 became 16.8 GB/s for one thread of a Xeon of 2023. Only a hint,
  // and only for whole large pages, so that a tensor's last page does not occupy more than it holds.
  if (alignment == kLargePage) {
    madvise(memory, static_cast<size_t>(bytes / kLargePage * kLargePage), MADV_HUGEPAGE);
  }
#endif
  return {memory, std::free};
}

}  // namespace

std::string device_name(Device device) {
  if (device.is_cpu()) return "cpu";
  return fmt::format("{}:{}", device.type == DeviceType::cuda ? "cuda" : "fake", device.index);
}

std::shared_ptr<void> device_allocate(Device device, int64_t bytes) {
  if (device.type != DeviceType::cuda) return cpu_allocate(bytes);
#ifdef LADDER_HAS_CUDA
  return cuda::allocate(device.index, bytes);
#else
  fail_no_cuda();
#endif
}

std::shared_ptr<void> pinned_allocate(Device device, int64_t bytes) {
  if (device.type != DeviceType::cuda) return cpu_allocate(bytes);
#ifdef LADDER_HAS_CUDA
  // A thread that has not chosen a GPU would make a context on the first one, hundreds of megabytes there; at the end too.
  LADDER_CUDA_CHECK(cudaSetDevice(device.index));
  std::shared_ptr<void> memory = cuda::allocate_pinned(bytes);
  void* const address = memory.get();
  return {address, [memory = std::move(memory), device](void*) mutable {
            cudaSetDevice(device.index);
            memory.reset();
          }};
#else
  fail_no_cuda();
#endif
}

void device_copy(void* to, Device to_device, const void* from, Device from_device, int64_t bytes,
                 [[maybe_unused]] void* stream) {
  if (to_device.is_cpu() && from_device.is_cpu()) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  if (to_device.type == DeviceType::fake || from_device.type == DeviceType::fake)
    return fake_copy(to, to_device, from, from_device, bytes, stream);
#ifdef LADDER_HAS_CUDA
  cuda::copy(to, from, bytes, stream);
#else
  fail_no_cuda();
#endif
}

void device_copy_rows(void* to, Device to_device, int64_t to_pitch, const void* from, Device from_device,
                      int64_t from_pitch, int64_t row_bytes, int64_t rows, void* stream) {
#ifdef LADDER_HAS_CUDA
  if (to_device.type == DeviceType::cuda || from_device.type == DeviceType::cuda)
    return cuda::copy_rows(to, to_pitch, from, from_pitch, row_bytes, rows, stream);
#endif
  for (int64_t row = 0; row < rows; ++row)
    device_copy(static_cast<char*>(to) + row * to_pitch, to_device,
                static_cast<const char*>(from) + row * from_pitch, from_device, row_bytes, stream);
}

void device_fill(void* memory, Device device, uint8_t value, int64_t bytes, [[maybe_unused]] void* stream) {
  if (device.is_cpu()) {
    std::memset(memory, value, static_cast<size_t>(bytes));
    return;
  }
  if (device.type == DeviceType::fake) return fake_fill(memory, value, bytes, stream);
#ifdef LADDER_HAS_CUDA
  cuda::fill(memory, value, bytes, stream);
#else
  fail_no_cuda();
#endif
}

void device_synchronize(Device device, [[maybe_unused]] void* stream) {
  if (device.is_cpu()) return;
  if (device.type == DeviceType::fake) return static_cast<FakeStream*>(stream)->synchronize();
#ifdef LADDER_HAS_CUDA
  cuda::synchronize(stream);
#endif
}

int kernel_arch(const CudaDeviceInfo& info) {
  constexpr int kHopper = 90;
  return info.arch == kHopper ? kHopper : std::min(info.arch, kHopper - 1);
}

bool usable(const CudaDeviceInfo& info) {
  return info.arch >= kOldestCudaArch && info.has_kernels;
}

void check_usable(const CudaDeviceInfo& info, std::string_view what) {
  LADDER_CHECK(info.arch >= kOldestCudaArch, "{}: {} has compute capability {}.{}, expected {}.{} or newer",
               what, info.name, info.arch / 10, info.arch % 10, kOldestCudaArch / 10, kOldestCudaArch % 10);
  LADDER_CHECK(info.has_kernels,
               "{}: this build has no kernels for {}, expected one with -DCMAKE_CUDA_ARCHITECTURES={}", what,
               info.name, info.arch);
}

int cuda_device_count(std::string* reason) {
#ifdef LADDER_HAS_CUDA
  return cuda::device_count(reason);
#else
  if (reason) *reason = "this build of ladder has no CUDA";
  return 0;
#endif
}

CudaDeviceInfo cuda_device_info([[maybe_unused]] int index) {
#ifdef LADDER_HAS_CUDA
  return cuda::device_info(index);
#else
  fail_no_cuda();
#endif
}

}  // namespace ladder
