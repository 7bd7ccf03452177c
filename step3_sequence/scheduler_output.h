#pragma once
// What the scheduler sends the runner for one step: which sequences compute how many tokens, what changed since
// the last step. Plain, pointer-free and serialisable: the runner may be in another process. The runner keeps
// its own copy of every running sequence's state (a persistent batch) and applies these changes to it.
#include <cstdint>
#include <string>
#include <vector>

#include "step3_sequence/sampling_params.h"

namespace ladder {

using SequenceId = int64_t;

// A sequence that the runner sees for the first time, or again after a preemption (its KV was dropped).
struct NewSequence {
  SequenceId id = 0;
  // Its prompt is that of this sequence, which the runner knows or which is new before it in this step: the
  // completions of one request do not send it again. -1: none.
  SequenceId prompt_of = -1;
  // The prompt, unless it is another's; and for a resumed sequence the output so far.
  std::vector<int32_t> token_ids;
  int64_t num_prompt_tokens = 0;
  SamplingParams sampling;  // `seed` is set by then
  std::vector<int32_t> block_table;
  int64_t num_computed_tokens = 0;  // tokens whose K and V are already in the cache (prefix hits)
};

// A sequence that the runner knows: only what changed.
struct ContinuedSequence {
  SequenceId id = 0;
  std::vector<int32_t> new_block_ids;  // appended to its table
  int64_t num_computed_tokens = 0;
};

// How many tokens a sequence computes in this step: [num_computed_tokens, num_computed_tokens + num_tokens).
// The step yields a sampled token for it exactly when that reaches its last known token.
struct ScheduledSequence {
  SequenceId id = 0;
  int64_t num_tokens = 0;
  std::vector<int32_t> draft_token_ids;  // speculation: proposed tokens to be verified in this step
};

// The runner applies the changes in this order: `finished` and `preempted` are forgotten, `new_sequences` are
// set up, `continued` are updated (one entry for every scheduled sequence that is not new), then `scheduled`
// is computed.
struct SchedulerOutput {
  int64_t step = 0;
  std::vector<ScheduledSequence> scheduled;  // in batch order; their num_tokens sum to total_num_tokens
  std::vector<NewSequence> new_sequences;
  std::vector<ContinuedSequence> continued;
  std::vector<SequenceId> finished;   // since the last step: the runner forgets them
  std::vector<SequenceId> preempted;  // likewise; they come back as new
  int64_t total_num_tokens = 0;
  // The static baseline: rows of slot -1 that are computed beside the scheduled tokens, and ignored.
  int64_t num_static_padding_rows = 0;

  bool empty() const { return scheduled.empty(); }
};

}  // namespace ladder
