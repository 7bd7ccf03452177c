#pragma once
// What a runner needs to keep a GPU busy: events, which say when the work before them is done, and
// graphs, which replay a recorded sequence of launches with one call (CUDA programming guide, "CUDA Graphs").
// Launching a kernel costs the host 2 to 3 us, a decode step has hundreds, and a small model's GPU would wait
// for every one of them.
//
// A build without CUDA has the same classes; an event is then always done, and a graph cannot be captured.
#include <cstdint>
#include <functional>

namespace ladder {

// A point in a stream. The CPU, which has no streams, is always past it.
class DeviceEvent {
 public:
  DeviceEvent() = default;  // past, until it is recorded
  ~DeviceEvent();
  DeviceEvent(DeviceEvent&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  DeviceEvent& operator=(DeviceEvent&& other) noexcept;

  void record(void* stream);  // nullptr, the CPU: nothing to record
  void wait() const;          // until the stream has come here
  // Both recorded and past. 0 where there is no device.
  double seconds_since(const DeviceEvent& earlier) const;

 private:
  void* event_ = nullptr;  // a cudaEvent_t
};

class DeviceGraph {
 public:
  DeviceGraph() = default;
  ~DeviceGraph();
  DeviceGraph(DeviceGraph&& other) noexcept : graph_(other.graph_) { other.graph_ = nullptr; }
  DeviceGraph& operator=(DeviceGraph&& other) noexcept;

  // Records what `work` launches on the stream, without running it. `work` must not allocate, synchronise or
  // read device memory from the host, and has run once before: the first call of a kernel loads it. Error:
  // what CUDA has against the recording.
  void capture(void* stream, const std::function<void()>& work);
  void replay(void* stream) const;

 private:
  void* graph_ = nullptr;  // a cudaGraphExec_t
};

}  // namespace ladder
