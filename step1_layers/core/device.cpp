#include "step1_layers/core/device.h"

#include <cstdlib>

#include "step1_layers/core/error.h"

namespace ladder {

std::string device_name(Device device) {
  return device.is_cpu() ? "cpu" : fmt::format("cuda:{}", device.index);
}

std::shared_ptr<void> device_allocate(Device device, int64_t bytes) {
  LADDER_CHECK(device.is_cpu(), "this build has no device {}", device_name(device));
  constexpr int64_t kAlignment = 64;
  LADDER_CHECK(bytes >= 0 && bytes <= INT64_MAX - kAlignment, "cannot allocate {} bytes", bytes);
  // aligned_alloc wants a multiple of the alignment; at least one line, so that an empty tensor has an
  // address too.
  int64_t rounded = bytes == 0 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
  LADDER_CHECK(memory != nullptr, "out of memory: {:.1f} MiB wanted on {}",
               static_cast<double>(bytes) / (1 << 20), device_name(device));
  return {memory, std::free};
}

}  // namespace ladder
