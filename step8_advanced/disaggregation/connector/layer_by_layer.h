#pragma once
// Layer by layer: what a layer has stored is on its way while the next layers are computed.
//
//   engine's thread    begin_step(): these sequences, these blocks
//   a rank             | layer 0 | layer 1 | layer 2 | ...    each ends with save_kv_layer()
//   reader's thread              | layer 0 | layer 1 | ...    waits for a layer, packs it, sends it
//
// A rank that is a thread tells by an attention around each layer's own (step4_runner/telling_ranks.h), one that is a process by a
// ring (step7_parallel/workers/told_layers.h), and an executor around the engine's own says what a step is about to do. vLLM's
// wait_for_layer_load() has no counterpart here, since a sequence begins when all layers of what it loads have come.
#include "step6_engine/engine_makers.h"

namespace ladder {

// Makes what `inner` makes; where the engine's ExecutorOptions::runner_makers.kv_caches are a KvLayerListener that wants it, it hears
// of its steps and layers. Error: ranks that are threads are several on GPUs.
ExecutorMaker tells_layers(ExecutorMaker inner);

}  // namespace ladder
