#pragma once
// A step's inputs, as far as a rank's share of it goes (step_share.h). The host plans which rows those are; positions, token
// ids, slots and block tables it need not know, so they are picked where they lie, as one kernel.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"
#include "step7_parallel/context/step_share.h"

namespace ladder {

struct ShareInputsArgs {
  // The step's, i32 but for the slots (i64).
  Tensor input_ids;        // [rows of the step], or undefined: a stage that gets hidden states
  Tensor positions;        // [rows of the step]
  Tensor slot_mapping;     // [>= rows]
  Tensor query_start_loc;  // [seqs + 1]
  Tensor seq_lens;         // [seqs]
  Tensor block_tables;     // [seqs, >= columns]
  // The rank's: rows, all_rows, sequences and ends are read.
  Tensor rows, all_rows, sequences, ends;
  // Written.
  Tensor to_input_ids;     // [rows]; undefined where input_ids is
  Tensor to_positions;     // [rows]
  Tensor to_slot_mapping;  // i64 [all_rows]: the slot of each, -1 where there is none
  Tensor to_local_slots;   // i64 [at most all_rows]: 0, 1, 2, ...
  Tensor to_seq_lens;      // [spans]: keys that the span's last row sees
  Tensor to_block_tables;  // [spans, columns]: the sequence's
};

std::span<const Variant<ShareInputsArgs>> share_inputs_variants();

// The next kernel may read what this one writes before it waits (kv_cache.h).
void share_inputs(const OpContext& ctx, const ShareInputsArgs& args);

#ifdef LADDER_HAS_CUDA
void share_inputs_cuda(const OpContext& ctx, const ShareInputsArgs& args);
#endif

}  // namespace ladder
