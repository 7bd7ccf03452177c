#pragma once
// Where memory lives and work runs. Later steps add devices behind these few functions; nothing else in the
// project allocates or copies device memory by itself.
#include <cstdint>
#include <memory>
#include <string>

namespace ladder {

enum class DeviceType : uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool operator==(const Device&) const = default;
};

std::string device_name(Device device);  // "cpu", "cuda:0"

// 64-byte aligned memory, freed when the last owner lets go. Error: not enough memory (says how much was
// asked for).
std::shared_ptr<void> device_allocate(Device device, int64_t bytes);

}  // namespace ladder
