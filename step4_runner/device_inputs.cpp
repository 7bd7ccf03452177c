#include "step4_runner/device_inputs.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#ifdef LADDER_CUDA
#include "step4_runner/unpack_inputs_cuda.h"
#endif

namespace ladder {

DeviceInputs::DeviceInputs(Device device, const BatchConfig& config) : device_(device) {
  sampled_ids_ = Tensor::zeros({config.max_num_seqs}, DType::i32, device);
  if (device.is_cpu()) return;
  const int64_t rows = config.max_num_batched_tokens, seqs = config.max_num_seqs;
  input_ids_ = Tensor::zeros({rows}, DType::i32, device);
  positions_ = Tensor::zeros({rows}, DType::i32, device);
  slot_mapping_ = Tensor::zeros({rows}, DType::i64, device);
  query_start_loc_ = Tensor::zeros({seqs + 1}, DType::i32, device);
  seq_lens_ = Tensor::zeros({seqs}, DType::i32, device);
  block_tables_ = Tensor::zeros({seqs, config.max_blocks_per_seq()}, DType::i32, device);
  logits_indices_ = Tensor::zeros({seqs}, DType::i32, device);
}

void DeviceInputs::view(int64_t rows, int64_t num_seqs) {
  input_ids_view_ = input_ids_.rows(rows);
  positions_view_ = positions_.rows(rows);
  metadata_.slot_mapping = slot_mapping_.rows(rows);
  metadata_.query_start_loc = query_start_loc_.rows(num_seqs + 1);
  metadata_.seq_lens = seq_lens_.rows(num_seqs);
  metadata_.block_tables = block_tables_.rows(num_seqs);
  metadata_.num_seqs = num_seqs;
}

void DeviceInputs::view_padded(int64_t rows, int64_t num_seqs, int64_t max_query_len, int64_t max_seq_len) {
  view(rows, num_seqs);
  metadata_.num_tokens = rows;
  metadata_.max_query_len = max_query_len;
  metadata_.max_seq_len = max_seq_len;
}

int64_t DeviceInputs::upload_bytes(const Batch& batch, int64_t rows) const {
  constexpr int64_t kPieces = 8;
  int64_t entries = 0;
  for (const TableUpdate& update : batch.table_updates()) entries += update.end - update.begin;
  const auto updates = static_cast<int64_t>(batch.table_updates().size());
  // Ids, positions and slots of a row; starts, lengths and logits rows of a sequence.
  return rows * (4 + 4 + 8 + 3 * 4) + updates * 12 + (entries + 1) * 4 + kPieces * StepUpload::kAlignment;
}

// >>> task 4.5: stage a step's rows, spare rows and table changes
void DeviceInputs::load(const Batch& batch, StepUpload& upload) {
  const int64_t rows = batch.input_ids().dim(0);
  if (device_.is_cpu()) {
    input_ids_view_ = batch.input_ids();
    positions_view_ = batch.positions();
    metadata_ = batch.attention();
    const auto indices = upload.take<int32_t>(std::ssize(batch.logits_indices()));
    std::copy(batch.logits_indices().begin(), batch.logits_indices().end(), indices.host);
    logits_indices_view_ = indices.device;
    return;
  }
  load_padded(batch, rows, batch.attention().num_seqs, upload);
  view(rows, batch.attention().num_seqs);
  metadata_.num_tokens = batch.attention().num_tokens;
  metadata_.max_query_len = batch.attention().max_query_len;
  metadata_.max_seq_len = batch.attention().max_seq_len;
}

void DeviceInputs::load_padded(const Batch& batch, int64_t rows, int64_t num_seqs, StepUpload& upload) {
  const AttentionMetadata& host = batch.attention();
  const auto padded = [&]<class T>(const Tensor& from, int64_t count, T filler) {
    const auto staged = upload.take<T>(count);
    const int64_t known = std::min(from.dim(0), count);
    std::copy_n(from.data<T>(), known, staged.host);
    std::fill(staged.host + known, staged.host + count, filler);
    return staged.device;
  };
  staged_.input_ids = padded(batch.input_ids(), rows, int32_t{0});
  staged_.positions = padded(batch.positions(), rows, int32_t{0});
  staged_.slot_mapping = padded(host.slot_mapping, rows, int64_t{-1});
  staged_.seq_lens = padded(host.seq_lens, num_seqs, int32_t{0});
  const auto starts = upload.take<int32_t>(num_seqs + 1);
  std::copy_n(host.query_start_loc.data<int32_t>(), host.num_seqs + 1, starts.host);
  for (int64_t i = host.num_seqs + 1; i <= num_seqs; ++i)
    starts.host[i] = std::min(starts.host[i - 1] + 1, static_cast<int32_t>(rows));
  staged_.query_start_loc = starts.device;
  const auto indices = batch.logits_indices();
  const auto logits_rows = upload.take<int32_t>(std::ssize(indices));
  std::copy(indices.begin(), indices.end(), logits_rows.host);
  staged_.logits_indices = logits_rows.device;
  logits_indices_view_ = logits_indices_.rows(std::ssize(indices));

  int64_t entries = 0;
  for (const TableUpdate& update : batch.table_updates()) entries += update.end - update.begin;
  const auto num_updates = static_cast<int64_t>(batch.table_updates().size());
  const auto updates = upload.take<int32_t>(num_updates * 3 + 1);  // and where the last one ends
  const auto values = upload.take<int32_t>(entries);
  int32_t* out = updates.host;
  int32_t entry = 0;
  for (const TableUpdate& update : batch.table_updates()) {
    *out++ = entry;
    *out++ = static_cast<int32_t>(update.row);
    *out++ = static_cast<int32_t>(update.begin);
    const int32_t* row = host.block_tables.data<int32_t>() + update.row * host.block_tables.stride(0);
    std::copy(row + update.begin, row + update.end, values.host + entry);
    entry += static_cast<int32_t>(update.end - update.begin);
  }
  *out = entry;
  staged_.table_updates = updates.device;
  staged_.table_entries = values.device;
}
// <<< task 4.5

void DeviceInputs::unpack([[maybe_unused]] const OpContext& ctx) {
  if (device_.is_cpu()) return;
#ifdef LADDER_CUDA
  UnpackInputsArgs args;
  args.input_ids = staged_.input_ids;
  args.positions = staged_.positions;
  args.slot_mapping = staged_.slot_mapping;
  args.query_start_loc = staged_.query_start_loc;
  args.seq_lens = staged_.seq_lens;
  args.logits_indices = staged_.logits_indices;
  args.table_updates = staged_.table_updates;
  args.table_entries = staged_.table_entries;
  args.sampled_ids = sampled_ids_;
  args.to_input_ids = input_ids_;
  args.to_positions = positions_;
  args.to_slot_mapping = slot_mapping_;
  args.to_query_start_loc = query_start_loc_;
  args.to_seq_lens = seq_lens_;
  args.to_logits_indices = logits_indices_;
  args.to_block_tables = block_tables_;
  unpack_inputs_cuda(ctx, args);
#endif
}

}  // namespace ladder
