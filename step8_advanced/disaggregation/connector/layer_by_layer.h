#pragma once
// Layer by layer: what a layer has stored is on its way while the next layers are computed.
//
//   engine's thread    begin_step(): these sequences, these blocks
//   a rank's thread    | layer 0 | layer 1 | layer 2 | ...    each ends with save_kv_layer()
//   reader's thread              | layer 0 | layer 1 | ...    waits for a layer, packs it, sends it
//
// On a GPU the rank's thread is far ahead of what is stored: events say when it is (layer_events_cuda.h), and another thread tells.
//
// The decoder and the runner know nothing of it: an attention around each layer's own says what it has stored, and an executor
// around the engine's own what a step is about to do. Without them nothing is called. vLLM: save_kv_layer() and
// wait_for_layer_load() in vllm/distributed/kv_transfer/kv_connector/v1/base.py; the second has no counterpart here, since a
// sequence begins when all layers of what it loads have come.
#include <cstdint>
#include <span>

#include "step3_sequence/scheduler_output.h"
#include "step6_engine/engine_makers.h"

namespace ladder {

class KvLayerListener {
 public:
  virtual ~KvLayerListener() = default;
  virtual bool wants_layers() const = 0;  // else nothing below is called
  // The engine's thread, before any rank begins with this step.
  virtual void begin_step(const SchedulerOutput& step) = 0;
  // The rank's thread, after the layer's attention, or on a GPU one that waits for that: this step's keys and values are where slot_mapping says. `rank`: tensor rank
  // + stage * tensor_parallel_size. -1 is no slot.
  virtual void save_kv_layer(int rank, int64_t layer, std::span<const int64_t> slots) = 0;
};

// Makes what `inner` makes, whose ranks are threads of this process; where the engine's ExecutorOptions::runner_makers.kv_caches
// are a listener that wants it, they tell it their layers. Error: they are several on GPUs.
ExecutorMaker tells_layers(ExecutorMaker inner);

}  // namespace ladder
