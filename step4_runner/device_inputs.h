#pragma once
// Task 4.5: the inputs of a step where the kernels read them.
//
// On the CPU these are the batch's own buffers. On a GPU they are buffers that never move, so that captured
// graphs may know their addresses: load() stages what the batch laid out (step_io.h), and after the copy
// unpack() launches one kernel that spreads it over the buffers. The block tables stay on the device, only
// what changed travels. Where an input id is a placeholder the kernel puts in the token that the step before
// has sampled, on the device: the host need not have seen it.
#include <cstdint>
#include <span>

#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step4_runner/batch.h"
#include "step4_runner/step_io.h"

namespace ladder {

class DeviceInputs {
 public:
  DeviceInputs(Device device, const BatchConfig& config);

  // Bytes that load_padded() stages; load() stages no more.
  int64_t upload_bytes(const Batch& batch, int64_t rows, int64_t num_seqs) const;
  // Stages the step's rows.
  void load(const Batch& batch, StepUpload& upload);
  // Stages a step for a captured graph of `rows` rows and `num_seqs` sequences. Spare rows are in no slot,
  // spare sequences have no keys; they take a spare row each, as long as there are any.
  void load_padded(const Batch& batch, int64_t rows, int64_t num_seqs, StepUpload& upload);
  void unpack(const OpContext& ctx);  // after the copy

  // What the step reads; on a GPU views of buffers that stay where they are.
  const Tensor& input_ids() const { return input_ids_view_; }
  const Tensor& positions() const { return positions_view_; }
  const AttentionMetadata& attention() const { return metadata_; }
  const Tensor& logits_indices() const { return logits_indices_view_; }  // i32
  // Sampled tokens of this step, i32 [rows]; the next step's placeholders are filled from here.
  Tensor sampled_ids(int64_t rows) const { return sampled_ids_.rows(rows); }

  // The views of such a step, whose host numbers are bounds: for capturing.
  void view_padded(int64_t rows, int64_t num_seqs, int64_t max_query_len, int64_t max_seq_len);

 private:
  void view(int64_t rows, int64_t num_seqs);

  Device device_;
  Tensor input_ids_, positions_, slot_mapping_, query_start_loc_, seq_lens_, block_tables_, logits_indices_;
  Tensor sampled_ids_;
  Tensor input_ids_view_, positions_view_, logits_indices_view_;
  AttentionMetadata metadata_;

  // What load() stages, as unpack_inputs.h says.
  struct Pieces {
    StepUpload::Staged<int32_t> input_ids, positions;
    StepUpload::Staged<int64_t> slot_mapping;
    StepUpload::Staged<int32_t> query_start_loc, seq_lens, logits_indices, table_updates, table_entries;
  };
  // visit(piece, count) for every piece of such a step: for measuring and for taking them.
  template <class Visit>
  static void for_each_piece(Pieces& pieces, const Batch& batch, int64_t rows, int64_t num_seqs, Visit visit);
  Pieces staged_;
};

}  // namespace ladder
