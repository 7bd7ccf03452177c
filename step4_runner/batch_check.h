#pragma once
// Do the ranks of a grid compute the same batch?
//
// Each lays it out for itself, from the steps that it was given. A rank that was given another step, or laid it out
// otherwise, sums what does not belong together, and all that is to be seen is nonsense. So in debug builds
// (RunnerConfig::check_batches) each rank makes checksums of what decides a step:
//
//   stage 0    rank 0  ==  rank 1     the tensor ranks of a stage gather those of all
//                |           |
//   stage 1    rank 2  ==  rank 3     a stage sends its own to the next: before its hidden states, for which that one
//                                     waits anyway
//
// and where several context ranks share out a step's rows (rank_grid.h), those gather theirs too.
#include <cstdint>

#include "step1_layers/core/context.h"
#include "step4_runner/batch.h"

namespace ladder {

struct BatchChecksums {
  int64_t step = 0;          // the scheduler's number, as it is
  int64_t sequences = 0;     // their ids in batch order, how many tokens each has computed and computes now
  int64_t tokens = 0;        // the input ids
  int64_t block_tables = 0;  // of these sequences
  int64_t sampling = 0;      // seed, temperature, top_k, ... of these sequences
};
// Of a batch that is prepared.
BatchChecksums checksums_of(int64_t step, const Batch& batch);

// On the CPU. All tensor and context ranks of a stage call it, and all stages. Error, on every rank of a stage in which ranks
// differ, and on that of two stages which comes later: the step, who differs, and in what.
void compare_batches(const OpContext& ctx, const BatchChecksums& mine);

}  // namespace ladder
