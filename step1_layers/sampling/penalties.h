#pragma once
// Task 1.8: penalties on tokens that a sequence has already used, in place on the logits.
//
//   repetition (Keskar et al., 2019, arXiv 1909.05858), over prompt and output, as Hugging Face applies it:
//     logit > 0: logit / repetition,   otherwise: logit * repetition
//   then frequency and presence (the OpenAI API's), over the output:
//     logit -= frequency * count + presence * (count > 0)
//
// The tokens come as one list for the whole batch: row r owns entries [row_start[r], row_start[r + 1]), each
// a different token of its prompt or output. The cost follows the tokens used, not the vocabulary.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct ApplyPenaltiesArgs {
  Tensor logits;         // f32 [rows, vocab], updated in place
  Tensor row_start;      // i32 [rows + 1]
  Tensor token_ids;      // i32 [entries]: in a row every id at most once, each in [0, vocab)
  Tensor output_counts;  // i32 [entries]: how often the token stands in the output; 0: in the prompt only
  Tensor repetition;     // f32 [rows], > 0; 1: off
  Tensor presence;       // f32 [rows]; 0: off
  Tensor frequency;      // f32 [rows]; 0: off
};

std::span<const Variant<ApplyPenaltiesArgs>> apply_penalties_variants();

// Error: shapes or dtypes that do not fit together, a token id outside the vocabulary; on a GPU, whose ids
// the host does not read, such an entry is passed over.
void apply_penalties(const OpContext& ctx, const ApplyPenaltiesArgs& args);

}  // namespace ladder
