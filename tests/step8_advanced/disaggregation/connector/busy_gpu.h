#pragma once
// A GPU that somebody else uses all the time.
#include <functional>

#include "step1_layers/core/context.h"
#include "step1_layers/core/device.h"
#include "step4_runner/rank_start.h"

namespace ladder::testing {

// Fills memory again and again, a gigabyte in each kernel: a good part of a millisecond, as a layer of a step takes. Until `until()`.
inline void keep_busy(Device device, const std::function<bool()>& until) {
  std::shared_ptr<void> owner;
  const OpContext ctx = make_rank_context(device, owner);
  constexpr int64_t kBytes = int64_t{1} << 30;
  const auto memory = device_allocate(device, kBytes);
  while (!until()) {
    for (int i = 0; i < 8; ++i) device_fill(memory.get(), device, 0, kBytes, ctx.stream);
    device_synchronize(device, ctx.stream);
  }
}

}  // namespace ladder::testing
