#pragma once
// Keys and values of worker processes where their engine's process sees them too, so that it shows them to a connector
// (step4_runner/kv_cache_registry.h) as it would show those of its own threads, and a connector need not know of processes: it
// packs, sends, receives and unpacks for all ranks from one place, beside the scheduler.
//
//   CPU    the engine's process makes the memory, which a worker inherits
//   GPU    the worker makes it, when it has measured how much there is room for, and tells of it by a handle of the driver's
//          (gpu_kv_caches.h)
//
// Both find the same caches in it: layer behind layer (step4_runner/kv_cache_piece.h).
//
// Nobody locks anything. What a step's ranks have stored is there when its answer is: each rank stores a layer's keys before it
// gives its part of that layer to the others, and the rank that answers waits for all of those. What the engine's process has
// written before it hands on a step is there when the step begins. In between each block has one owner, as the scheduler says.
//
// vLLM's connectors run in the workers instead, and report to the scheduler's half: each rank then needs a listener and threads of
// its own, every request is told to all of them, and "finished" is what all have said. Here nothing of that is needed, and what is
// sent has one order for all ranks. The price: on GPUs the engine's process has a context on each of them, and one thread at
// each end of a channel launches the copies of all ranks.
#include <memory>
#include <span>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step2_model/model.h"
#include "step4_runner/runner_config.h"
#include "step7_parallel/workers/shared_memory.h"

namespace ladder {

// Bytes for the caches of a rank of this stage. `config` is resolved.
size_t shared_kv_bytes(const DecoderSpec& spec, const RunnerConfig& config, int stage);

// The caches in that memory, which lives as long as one of them, whoever maps it. Error: there is not room for them.
std::vector<KvCacheView> kv_caches_in(const std::shared_ptr<SharedMemory>& memory,
                                      std::span<const KvCacheSpec> specs, const RunnerConfig& config);

// A model that keeps its keys and values in these caches, and lets the runner allocate none.
std::unique_ptr<Model> with_kv_caches(std::unique_ptr<Model> model, std::vector<KvCacheView> caches);

}  // namespace ladder
