#pragma once
// What one of several replicas on a machine is run with: GPUs of its own, or a share of the CPU's cores and memory.
//
//   --data-parallel-size 2 --tensor-parallel-size 2 --device cuda:0    replica 0: cuda:0, cuda:1    replica 1: cuda:2, cuda:3
//   --data-parallel-size 2 on a CPU of 8 cores                         replica 0: 4 threads, half of the memory    ...
#include "step6_engine/load_engine.h"

namespace ladder {

// Of replica `local` of those on this machine. On the CPU a number of threads is a share of what `options` says, or of the
// cores, and so is a KV cache whose size is not given; a size that is given is each replica's. Error: as
// resolved_runner_config(), for the share of the memory.
EngineOptions options_of_replica(const EngineOptions& options, const DecoderSpec& spec, int local,
                                 int num_local, MachineMemory memory);

// Error, naming the flags: fewer GPUs than ranks of all replicas on this machine.
void expect_a_gpu_for_each_replica(const RunnerConfig& config, int num_local);

}  // namespace ladder
