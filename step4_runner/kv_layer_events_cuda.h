#pragma once
// When a GPU has stored a layer. Steps are launched ahead of the GPU, so an event stands behind each layer's attention, and a
// thread waits for one after the other and tells the listener (kv_layer_listener.h):
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
#include "step4_runner/kv_layer_listener.h"

namespace ladder {

class KvLayerEvents {
 public:
  // Of one rank.
  KvLayerEvents(KvLayerListener& listener, int rank, Device device);
  ~KvLayerEvents();
  KvLayerEvents(const KvLayerEvents&) = delete;

  // The rank's thread, when a layer's attention was launched. `slots`: the step's slot_mapping, which all its layers share.
  void launched(const OpContext& ctx, int64_t layer, const Tensor& slots);
  // As TellingRanks' (telling_ranks.h).
  void catch_up();

 private:
  // In pinned memory, where the GPU writes.
  struct Slots {
    std::shared_ptr<void> memory;
    int64_t room = 0, count = 0;
    int64_t launch = 0;  // KvLayerListener::current_launch()

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
