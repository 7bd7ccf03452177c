#pragma once
// What a runner needs to keep a GPU busy: events, which say when the work before them is done, and
// graphs, which replay a recorded sequence of launches with one call (CUDA programming guide, "CUDA Graphs").
// Launching a kernel costs the host 2 to 3 us, a decode step has hundreds, and a small model's GPU would wait
// for every one of them.
//
// The CPU, which has no streams, has the same classes: an event is always past, and a graph cannot be captured.
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/fake_device.h"

namespace ladder {

// A point in a stream.
class DeviceEvent {
 public:
  DeviceEvent() = default;  // past, until it is recorded
  ~DeviceEvent();
  DeviceEvent(DeviceEvent&& other) noexcept { *this = std::move(other); }
  DeviceEvent& operator=(DeviceEvent&& other) noexcept;

  void record(const OpContext& ctx);  // on its stream; the CPU: nothing to record
  void wait() const;                  // until the stream has come here; on any thread
  // Both recorded and past. 0 where there is no GPU.
  double seconds_since(const DeviceEvent& earlier) const;

 private:
  void use_gpu() const;
  void record_cuda(void* stream);
  void wait_cuda() const;
  double seconds_since_cuda(const DeviceEvent& earlier) const;

  void* event_ = nullptr;       // a cudaEvent_t
  int gpu_ = 0;                 // that it was recorded on
  FakeStream* fake_ = nullptr;  // or one of a fake device
  int64_t fake_event_ = 0;
};

class DeviceGraph {
 public:
  DeviceGraph() = default;
  ~DeviceGraph();
  DeviceGraph(DeviceGraph&& other) noexcept { *this = std::move(other); }
  DeviceGraph& operator=(DeviceGraph&& other) noexcept;

  // Records what `work` launches on the stream, without running it. `work` must not allocate, synchronise or
  // read device memory from the host, and has run once before: the first call of a kernel loads it. Error:
  // what CUDA has against the recording.
  void capture(const OpContext& ctx, const std::function<void()>& work);
  void replay(const OpContext& ctx) const;

 private:
  void capture_cuda(void* stream, const std::function<void()>& work);
  void replay_cuda(void* stream) const;

  void* graph_ = nullptr;                     // a cudaGraphExec_t
  std::vector<FakeStream::Launch> launches_;  // or a fake device's
};

}  // namespace ladder
