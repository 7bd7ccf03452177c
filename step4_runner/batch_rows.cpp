// Task 4.1.rows: the rows of a step, laid out flat, and the tokens that it yields.
#include <algorithm>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step4_runner/batch.h"

namespace ladder {

// >>> task 4.1.rows: lay this step's rows out flat; placeholders for the tokens it samples
void Batch::update_table_row(int64_t row, const BatchSequence& sequence) {
  TableRow& held = table_rows_[static_cast<size_t>(row)];
  if (held.serial != sequence.serial) held = {sequence.serial, 0};
  const auto num_blocks = static_cast<int64_t>(sequence.block_table.size());
  if (held.num_blocks == num_blocks) return;
  table_updates_.push_back({row, held.num_blocks, num_blocks});
  std::copy(sequence.block_table.begin() + held.num_blocks, sequence.block_table.end(),
            block_tables_.data<int32_t>() + row * config_.max_blocks_per_seq() + held.num_blocks);
  held.num_blocks = num_blocks;
}

void Batch::lay_out(int64_t num_padding_rows) {
  auto* input_ids = input_ids_.data<int32_t>();
  auto* positions = positions_.data<int32_t>();
  auto* slots = slot_mapping_.data<int64_t>();
  auto* query_start_loc = query_start_loc_.data<int32_t>();
  auto* seq_lens = seq_lens_.data<int32_t>();
  logits_indices_.clear();
  table_updates_.clear();
  int64_t row = 0, max_query_len = 0, max_seq_len = 0;
  query_start_loc[0] = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    BatchSequence& sequence = *rows_[i];
    const int64_t begin = sequence.num_computed_tokens;
    const int64_t count = sequence.num_scheduled_tokens;
    std::copy_n(sequence.token_ids.data() + begin, count, input_ids + row);
    if (input_ids[row + count - 1] == kPlaceholder) input_ids[row + count - 1] -= sequence.sampled_index;
    std::iota(positions + row, positions + row + count, static_cast<int32_t>(begin));
    int64_t block = begin / config_.block_size, offset = begin % config_.block_size;
    for (int64_t t = 0; t < count; ++t) {
      slots[row + t] = sequence.block_table[static_cast<size_t>(block)] * config_.block_size + offset;
      if (++offset == config_.block_size) {
        offset = 0;
        ++block;
      }
    }
    update_table_row(static_cast<int64_t>(i), sequence);
    row += count;
    query_start_loc[i + 1] = static_cast<int32_t>(row);
    seq_lens[i] = static_cast<int32_t>(begin + count);
    max_query_len = std::max(max_query_len, count);
    max_seq_len = std::max(max_seq_len, begin + count);
    if (sequence.yields_token()) {
      logits_indices_.push_back(row - 1);
      sampled_.push_back(&sequence);
    }
  }
  metadata_.num_tokens = row;
  for (int64_t end = row + num_padding_rows; row < end; ++row) {
    input_ids[row] = positions[row] = 0;
    slots[row] = -1;
  }
  const auto num_seqs = static_cast<int64_t>(rows_.size());
  input_ids_view_ = input_ids_.rows(row);
  positions_view_ = positions_.rows(row);
  metadata_.query_start_loc = query_start_loc_.rows(num_seqs + 1);
  metadata_.seq_lens = seq_lens_.rows(num_seqs);
  metadata_.block_tables = block_tables_.rows(num_seqs);
  metadata_.slot_mapping = slot_mapping_.rows(row);
  metadata_.num_seqs = num_seqs;
  metadata_.max_query_len = max_query_len;
  metadata_.max_seq_len = max_seq_len;
}

PendingTokens Batch::advance() {
  PendingTokens pending;
  for (size_t i = 0; i < sampled_.size(); ++i) {
    BatchSequence& sequence = *sampled_[i];
    pending.places.push_back({sequence.id, sequence.serial, std::ssize(sequence.token_ids)});
    sequence.token_ids.push_back(kPlaceholder);
    sequence.sampled_index = static_cast<int32_t>(i);
  }
  for (BatchSequence* sequence : rows_) sequence->num_computed_tokens += sequence->num_scheduled_tokens;
  return pending;
}

void Batch::fill(const PendingTokens& pending, std::span<const int32_t> token_ids) {
  LADDER_CHECK(token_ids.size() == pending.places.size(), "{} tokens for {} sampled sequences",
               token_ids.size(), pending.places.size());
  for (size_t i = 0; i < token_ids.size(); ++i) {
    const PendingTokens::Place& place = pending.places[i];
    const auto it = known_.find(place.id);
    if (it == known_.end() || it->second->serial != place.serial) continue;
    // kInvalidToken would be a placeholder again: its sequence is about to be dropped, and any token does.
    it->second->token_ids[static_cast<size_t>(place.position)] = std::max(token_ids[i], 0);
  }
}
// <<< task 4.1.rows

}  // namespace ladder
