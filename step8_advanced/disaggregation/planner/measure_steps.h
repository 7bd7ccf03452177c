#pragma once
// The steps of an engine at hand, measured: the rows of the table that a plan is made from (step_times.h).
//
//   a prompt of 16, 64, 256, ... tokens, alone           what its tokens cost, and their pairs
//   1, 4, 16, ... answers side by side, behind short     what a sequence costs, and each token before it
//   prompts and behind long ones
//
// What a row computes is counted from the scheduler's own steps, so a prompt that is cut, or an answer that is preempted, is
// what it is. A step lasts from the end of the one before to its own, which is right for steps that overlap, too.
#include "step6_engine/engine.h"
#include "step8_advanced/disaggregation/planner/step_times.h"

namespace ladder {

struct MeasuredSizes {
  int64_t longest_prompt = 4096;  // no more than a sequence may have, and the cache holds
  int64_t most_sequences = 64;    // likewise
  // Of the prompts of a row of answers together, which take their time and are not what is measured.
  int64_t most_prompt_tokens = 8192;
  int num_runs = 3;  // of each row, of whose times the median counts
};

// Of an engine without other requests and without a prefix cache. `seed`: of its prompts' tokens.
MeasuredEngine measure_steps(Engine& engine, int tensor_parallel_size, const MeasuredSizes& sizes = {},
                             uint64_t seed = 0);

}  // namespace ladder
