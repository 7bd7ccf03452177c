#pragma once
// Where memory lives and work runs. Nothing else in the project allocates or copies device memory by itself.
//
// A build without CUDA has the same functions; asking for a CUDA device is then an Error that says so.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace ladder {

enum class DeviceType : uint8_t { cpu, cuda, fake };  // fake: tests play a device (fake_device.h)

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool operator==(const Device&) const = default;
};

std::string device_name(Device device);  // "cpu", "cuda:0"

// 64-byte aligned memory (256 on CUDA), freed when the last owner lets go. Error: not enough memory (says how
// much was asked for, and on CUDA how much is free).
std::shared_ptr<void> device_allocate(Device device, int64_t bytes);

// Host memory that `device` copies to and from without a staging buffer, and that an asynchronous copy needs.
std::shared_ptr<void> pinned_allocate(Device device, int64_t bytes);

// Copies between any two devices, ordered on `stream` (OpContext::stream; nullptr: the copy is done when the
// call returns).
void device_copy(void* to, Device to_device, const void* from, Device from_device, int64_t bytes,
                 void* stream = nullptr);
// `rows` pieces of `row_bytes`, which begin `to_pitch` and `from_pitch` bytes apart.
void device_copy_rows(void* to, Device to_device, int64_t to_pitch, const void* from, Device from_device,
                      int64_t from_pitch, int64_t row_bytes, int64_t rows, void* stream = nullptr);
void device_fill(void* memory, Device device, uint8_t value, int64_t bytes, void* stream = nullptr);
void device_synchronize(Device device, void* stream);  // waits for all work of the stream; the CPU has none

constexpr int kOldestCudaArch = 75;  // GPUs of a lower compute capability (times 10) are refused

struct CudaDeviceInfo {
  std::string name;          // "NVIDIA H200"
  int arch = 0;              // compute capability times 10: 90
  bool has_kernels = false;  // this program was compiled for it
  int64_t shared_bytes = 0;  // of shared memory that a block may have
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  int num_multiprocessors = 0;
  int64_t l2_bytes = 0;
  int driver_version = 0;   // the newest CUDA that the driver serves: 13000 is 13.0
  int runtime_version = 0;  // the CUDA runtime that this program runs with
};

// A GPU is usable if it is not too old and the program was compiled for it. The error begins with `what`.
bool usable(const CudaDeviceInfo& info);
void check_usable(const CudaDeviceInfo& info, std::string_view what);
// Which rungs it can run, as a compute capability times 10 (Variant::min_arch). Those of 9.0 are a Hopper's:
// many are in instructions that no later GPU has (wgmma, sm_90a), and there they would compute nothing.
int kernel_arch(const CudaDeviceInfo& info);

// 0 where there is no GPU, no driver, or no CUDA in the build; `reason`, if given, then says which.
int cuda_device_count(std::string* reason = nullptr);
CudaDeviceInfo cuda_device_info(int index);

}  // namespace ladder
