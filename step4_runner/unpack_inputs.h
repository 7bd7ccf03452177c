#pragma once
// Task 4.5: spreads a step's staged inputs over the buffers that the model reads.
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

struct UnpackInputsArgs {
  // Staged, all i32 but the slots (i64).
  Tensor input_ids;        // [rows]; -1 - i: the i-th of sampled_ids, or token 0 where that is kInvalidToken
  Tensor positions;        // [rows]
  Tensor slot_mapping;     // [rows]
  Tensor query_start_loc;  // [seqs + 1]
  Tensor seq_lens;         // [seqs]
  Tensor logits_indices;   // [logits rows]
  Tensor table_updates;    // [3 * updates + 1]: per update its first entry in table_entries, row and first
                           // column; at the end the number of entries
  Tensor table_entries;
  Tensor sampled_ids;  // of the step before: not written before that step is done
  // At least as long each; block tables [seqs, max_blocks].
  Tensor to_input_ids, to_positions, to_slot_mapping, to_query_start_loc, to_seq_lens, to_logits_indices;
  Tensor to_block_tables;
};

void unpack_inputs_cpu(const UnpackInputsArgs& args);
void unpack_inputs_cuda(const OpContext& ctx, const UnpackInputsArgs& args);

}  // namespace ladder
