#pragma once
// When a GPU has stored a layer. Steps are launched ahead of the GPU, so an event stands behind each layer's attention, and a
// thread waits for one after the other and tells the listener (layer_by_layer.h):
//
//   rank's thread   | launches all layers and their events |
//   GPU             ... | layer 0 o layer 1 o layer 2 o MLP, LM head |
//   this thread                   ^ tells   ^ tells   ^ tells
//
// Which slots a layer has stored only the GPU knows: they come back with the step's first layer. A captured graph tells nothing;
// what its replay stores is told as a whole, when the step is collected. (Such steps are short: step4_runner/step_graphs.h.)
#include <cuda_runtime_api.h>

#include <condition_variable>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step8_advanced/disaggregation/connector/layer_by_layer.h"

namespace ladder {

class LayerEvents {
 public:
  // Of one rank.
  LayerEvents(KvLayerListener& listener, int rank, Device device);
  ~LayerEvents();
  LayerEvents(const LayerEvents&) = delete;

  // The rank's thread, when a layer's attention was launched. `slots`: the step's slot_mapping, which all its layers share.
  void launched(const OpContext& ctx, int64_t layer, const Tensor& slots);
  // Tells what has been stored by now. Called between a step's end and what follows from it: a block that the step has written
  // may be given to another request then, and must not be told as stored for that one.
  void catch_up();

 private:
  // In pinned memory, where the GPU writes.
  struct Slots {
    std::shared_ptr<void> memory;
    int64_t room = 0, count = 0;

    std::span<const int64_t> all() const {
      return {static_cast<const int64_t*>(memory.get()), static_cast<size_t>(count)};
    }
  };
  struct Layer {
    std::shared_ptr<CUevent_st> stored;
    int64_t layer = 0;
    std::shared_ptr<const Slots> slots;
  };

  std::shared_ptr<Slots> room_for(int64_t count);
  void tell_until_stopped();
  void tell_past_ones();  // under the lock

  KvLayerListener& listener_;
  const int rank_;
  const Device device_;

  // Of the rank's thread.
  int64_t last_layer_ = std::numeric_limits<int64_t>::max();
  std::shared_ptr<const Slots> slots_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<Layer> launched_;  // and not told
  std::vector<std::shared_ptr<Slots>> all_slots_;
  std::thread thread_;
};

}  // namespace ladder
