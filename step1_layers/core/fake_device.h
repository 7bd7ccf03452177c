#pragma once
// A device that is played on the host, so that what the engine does with a GPU can be tested on any machine.
//
// Its memory is the host's and the CPU's kernels serve it, but nothing is done when it is launched: launches and
// copies are put into a stream, which does them when it likes, at the latest when somebody waits. The stream is
// the test's (tests/support/recording_stream.h), so a test sees every copy, launch and wait, and whoever reads a
// result too early, or overwrites what is still to be read, gets wrong numbers, as on a GPU.
//
// The engine's own code has only these few branches for it; on a CPU or a GPU none of them is taken.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/core/context.h"

namespace ladder {

class FakeStream {
 public:
  struct Launch {
    std::string name;            // the operator's, or one of the copies' below
    int64_t bytes = 0;           // of a copy
    std::function<void()> work;  // holds its arguments as they were at the launch
  };
  static constexpr std::string_view kFromHost = "copy_from_host", kToHost = "copy_to_host", kCopy = "copy";

  virtual ~FakeStream() = default;
  virtual void launch(Launch launch) = 0;  // done some time after what was launched before
  virtual int64_t record() = 0;            // an event: all that was launched so far
  virtual void wait(int64_t event) = 0;    // until that is done
  virtual void synchronize() = 0;          // until all is done
  // What `work` launches, none of it done. Waiting is an Error meanwhile.
  virtual std::vector<Launch> capture(const std::function<void()>& work) = 0;
  virtual void replay(const std::vector<Launch>& graph) = 0;  // launches it all
};

inline FakeStream& fake_stream(const OpContext& ctx) {
  return *static_cast<FakeStream*>(ctx.stream);
}

// Whose kernels serve the device.
inline DeviceType kernel_device(Device device) {
  return device.type == DeviceType::fake ? DeviceType::cpu : device.type;
}

// Launches work of the CPU; it gets a context of the CPU, with scratch memory of its own.
void fake_launch(const OpContext& ctx, std::string_view name, std::function<void(const OpContext&)> work);

// The fake device's part of device.h. Without a stream they are done at once, whatever else is under way.
void fake_copy(void* to, Device to_device, const void* from, Device from_device, int64_t bytes, void* stream);
void fake_fill(void* memory, uint8_t value, int64_t bytes, void* stream);

}  // namespace ladder
