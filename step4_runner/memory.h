#pragma once
// Where the memory goes, said before anything is allocated. kv_cache_size.h decides the cache's part of it.
//
//   weights      what the checkpoint's parameters take on all ranks, tables and repacked copies included
//   kv           the blocks of the KV cache, all layers
//   activations  the scratch arena at its largest step; the warm-up run measures it
//   other        the program itself, its libraries, the tokenizer, the buffers of the batch
#include <cstdint>

#include "step2_model/decoder/decoder_spec.h"
#include "step4_runner/rank_grid.h"
#include "step4_runner/runner_config.h"

namespace ladder {

struct MachineMemory {
  int64_t total = 0;      // bytes this process may use: physical memory, or its control group's limit
  int64_t available = 0;  // of these, free now without swapping
};

MachineMemory machine_memory();
MachineMemory memory_of(Device device);  // the machine's, or the GPU's

// Bytes.
struct MemoryPlan {
  int64_t weights = 0;
  int64_t kv = 0;
  int64_t activations = 0;
  int64_t other = 0;

  int64_t total() const { return weights + kv + activations + other; }
};

// K and V of one token: all layers and ranks, and what a rank of a stage holds of a token that it has.
int64_t kv_bytes_per_token(const DecoderSpec& spec, const RunnerConfig& config);
int64_t rank_kv_bytes_per_token(const DecoderSpec& spec, const RunnerConfig& config, int stage);

// What this model and this (resolved) configuration will use at their peak: one rank, and all ranks together.
MemoryPlan predict_rank_memory(const DecoderSpec& spec, const RunnerConfig& config, GridPlace place);
MemoryPlan predict_memory(const DecoderSpec& spec, const RunnerConfig& config);

}  // namespace ladder
