#pragma once
// The worker's half of a connector, beside kv_cache_registry.h: layer by layer what a step has stored, while its next layers are
// computed. Where nobody wants to hear it, nothing is called and a layer costs what it did.
//
//   engine's thread    begin_step(): these sequences, these blocks
//   a rank's thread    | layer 0 | layer 1 | layer 2 | ...    each ends with save_kv_layer()
//
// vLLM: save_kv_layer() in vllm/distributed/kv_transfer/kv_connector/v1/base.py.
#include <cstdint>
#include <span>

#include "step3_sequence/scheduler_output.h"

namespace ladder {

class KvLayerListener {
 public:
  virtual ~KvLayerListener() = default;
  virtual bool wants_layers() const = 0;  // else nothing below is called
  // Before any rank begins with this step.
  virtual void begin_step(const SchedulerOutput& step) = 0;
  // The rank's thread, as it launches a step's first layer: what save_kv_layer() gets as `launch` with all layers of that step.
  // For whoever hears of a layer when the rank may be with another step.
  virtual int64_t current_launch() const { return 0; }
  // The rank's thread, after the layer's attention, or on a GPU one that waits for that: this step's keys and values are where
  // slot_mapping says. `rank`: tensor rank + stage * tensor_parallel_size. -1 is no slot.
  virtual void save_kv_layer(int rank, int64_t layer, int64_t launch, std::span<const int64_t> slots) = 0;
};

}  // namespace ladder
