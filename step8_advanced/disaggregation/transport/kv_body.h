#pragma once
// A message's body where it lies: packed keys and values in the host's memory, or in that of a GPU. A view.
#include <cstddef>
#include <span>

#include "step1_layers/core/device.h"
#include "step1_layers/core/error.h"

namespace ladder {

struct KvBody {
  std::byte* data = nullptr;
  size_t size = 0;
  Device device;

  KvBody() = default;
  KvBody(std::byte* data, size_t size, Device device) : data(data), size(size), device(device) {}
  KvBody(std::span<std::byte> bytes) : data(bytes.data()), size(bytes.size()) {}  // of the host

  KvBody part(size_t offset, size_t count) const {
    LADDER_CHECK(offset <= size && count <= size - offset, "a body of {} bytes: {} from {} on", size, count,
                 offset);
    return {data + offset, count, device};
  }
  std::span<std::byte> on_host() const {
    LADDER_CHECK(device.type != DeviceType::cuda, "a body on {} is read as one of the host",
                 device_name(device));
    return {data, size};
  }
};

}  // namespace ladder
