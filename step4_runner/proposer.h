#pragma once
// The seam for speculative decoding: what proposes tokens, several of which the model then verifies in one
// step.
//
//   tokens of a sequence    t0 t1 t2 t3                   propose()  ->  drafts d0 d1
//   the step after that     computes t3 d0 d1: three rows, and what a row samples says whether the draft
//                           after it was right
//
// An n-gram lookup in the sequence's own tokens is a proposer; so are a small model, and heads on the model's
// hidden states. The program brings one by RunnerMakers::proposer (executor_options.h). An executor that
// verifies no drafts refuses a maker at the start; LocalExecutor is one.
#include <cstdint>
#include <span>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step3_sequence/sampling_params.h"
#include "step3_sequence/scheduler_output.h"

namespace ladder {

struct ProposerSequence {
  SequenceId id = 0;
  std::span<const int32_t> token_ids;  // prompt and output, every token verified
  int64_t num_prompt_tokens = 0;
  const SamplingParams* sampling = nullptr;
  int64_t max_drafts = 0;  // what the step's budget, max_tokens and max_model_len leave room for
  Tensor hidden_states;  // [tokens that the last step computed and kept, hidden_size], after the final norm;
                         // undefined unless the proposer needs them
};

class Proposer {
 public:
  virtual ~Proposer() = default;
  virtual bool needs_hidden_states() const { return false; }
  // For each sequence, in their order, at most max_drafts tokens that may follow its last one; none is an
  // answer. Called once per step, for the sequences that got a token in it.
  virtual std::vector<std::vector<int32_t>> propose(const OpContext& ctx,
                                                    std::span<const ProposerSequence> sequences) = 0;
};

}  // namespace ladder
