#pragma once
// Keys and values of a worker on a GPU, seen by its engine's process too (shared_kv_caches.h): one CUDA IPC handle tells of the
// piece of memory that they lie in (step4_runner/kv_cache_piece.h).
//
// What a worker has told of it never frees: memory that another process has open must not be freed, and the process' end does it.
// A worker that dies leaves the memory to whoever has it open, until that lets go of it: a copy that is under way ends as if nothing
// had happened, and the engine has failed by then.
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step4_runner/runner_config.h"

namespace ladder {

// By the worker: the handle's bytes, for WorkerReady. They stay, and so does the memory, until this process ends.
std::string show_gpu_kv_caches(std::span<const KvCacheView> caches);

// By the engine's process: the caches, on the same GPU. `config`: with the blocks that there are. Error, naming `whose` they are:
// the driver gives or opens no handle, as between containers that have not one IPC namespace; the GPU is not visible here.
std::vector<KvCacheView> open_gpu_kv_caches(const std::string& handle, std::span<const KvCacheSpec> specs,
                                            const RunnerConfig& config, std::string_view whose);

}  // namespace ladder
