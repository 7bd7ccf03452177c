#include "step4_runner/device_inputs.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/core/fake_device.h"
#include "step4_runner/unpack_inputs.h"

namespace ladder {

DeviceInputs::DeviceInputs(Device device, const BatchConfig& config) : device_(device) {
  sampled_ids_ = Tensor::zeros({config.max_num_seqs}, DType::i32, device);
  if (device_.is_cpu()) return;
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

template <class Visit>
void DeviceInputs::for_each_piece(Pieces& pieces, const Batch& batch, int64_t rows, int64_t num_seqs,
                                  Visit visit) {
  int64_t entries = 0;
  for (const TableUpdate& update : batch.table_updates()) entries += update.end - update.begin;
  visit(pieces.input_ids, rows);
  visit(pieces.positions, rows);
  visit(pieces.slot_mapping, rows);
  visit(pieces.query_start_loc, num_seqs + 1);
  visit(pieces.seq_lens, num_seqs);
  visit(pieces.logits_indices, std::ssize(batch.logits_indices()));
  visit(pieces.table_updates, 3 * std::ssize(batch.table_updates()) + 1);  // and where the last one ends
  visit(pieces.table_entries, entries);
}

int64_t DeviceInputs::upload_bytes(const Batch& batch, int64_t rows, int64_t num_seqs) const {
  int64_t bytes = 0;
  Pieces pieces;
  for_each_piece(pieces, batch, rows, num_seqs, [&]<class T>(StepUpload::Staged<T>&, int64_t count) {
    bytes += StepUpload::bytes_of<T>(count);
  });
  return bytes;
}

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

// >>> task 4.5.inputs: stage a step's rows, spare rows and table changes
void DeviceInputs::load_padded(const Batch& batch, int64_t rows, int64_t num_seqs, StepUpload& upload) {
  const AttentionMetadata& host = batch.attention();
  for_each_piece(staged_, batch, rows, num_seqs, [&]<class T>(StepUpload::Staged<T>& piece, int64_t count) {
    piece = upload.take<T>(count);
  });
  const auto padded = []<class T>(const Tensor& from, const StepUpload::Staged<T>& to, T filler) {
    const int64_t count = to.device.dim(0), known = std::min(from.dim(0), count);
    std::copy_n(from.data<T>(), known, to.host);
    std::fill(to.host + known, to.host + count, filler);
  };
  padded(batch.input_ids(), staged_.input_ids, int32_t{0});
  padded(batch.positions(), staged_.positions, int32_t{0});
  padded(host.slot_mapping, staged_.slot_mapping, int64_t{-1});
  padded(host.seq_lens, staged_.seq_lens, int32_t{0});
  int32_t* starts = staged_.query_start_loc.host;
  std::copy_n(host.query_start_loc.data<int32_t>(), host.num_seqs + 1, starts);
  for (int64_t i = host.num_seqs + 1; i <= num_seqs; ++i)
    starts[i] = std::min(starts[i - 1] + 1, static_cast<int32_t>(rows));
  const auto indices = batch.logits_indices();
  std::copy(indices.begin(), indices.end(), staged_.logits_indices.host);
  logits_indices_view_ = logits_indices_.rows(std::ssize(indices));

  int32_t* out = staged_.table_updates.host;
  int32_t entry = 0;
  for (const TableUpdate& update : batch.table_updates()) {
    *out++ = entry;
    *out++ = static_cast<int32_t>(update.row);
    *out++ = static_cast<int32_t>(update.begin);
    const int32_t* row = host.block_tables.data<int32_t>() + update.row * host.block_tables.stride(0);
    std::copy(row + update.begin, row + update.end, staged_.table_entries.host + entry);
    entry += static_cast<int32_t>(update.end - update.begin);
  }
  *out = entry;
}
// <<< task 4.5.inputs

void DeviceInputs::unpack(const OpContext& ctx) {
  if (device_.is_cpu()) return;
  UnpackInputsArgs args;
  args.input_ids = staged_.input_ids.device;
  args.positions = staged_.positions.device;
  args.slot_mapping = staged_.slot_mapping.device;
  args.query_start_loc = staged_.query_start_loc.device;
  args.seq_lens = staged_.seq_lens.device;
  args.logits_indices = staged_.logits_indices.device;
  args.table_updates = staged_.table_updates.device;
  args.table_entries = staged_.table_entries.device;
  args.sampled_ids = sampled_ids_;
  args.to_input_ids = input_ids_;
  args.to_positions = positions_;
  args.to_slot_mapping = slot_mapping_;
  args.to_query_start_loc = query_start_loc_;
  args.to_seq_lens = seq_lens_;
  args.to_logits_indices = logits_indices_;
  args.to_block_tables = block_tables_;
#ifdef LADDER_HAS_CUDA
  if (device_.type == DeviceType::cuda) return unpack_inputs_cuda(ctx, args);
#endif
  fake_launch(ctx, "unpack_inputs", [args](const OpContext&) { unpack_inputs_cpu(args); });
}

}  // namespace ladder
