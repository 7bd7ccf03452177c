#include "step4_runner/batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "step1_layers/core/error.h"

namespace ladder {

void TokenCounts::update(std::span<const int32_t> token_ids, int64_t num_prompt_tokens) {
  for (; num_counted_ < static_cast<int64_t>(token_ids.size()); ++num_counted_) {
    const int32_t token = token_ids[static_cast<size_t>(num_counted_)];
    auto [it, inserted] = index_.try_emplace(token, token_ids_.size());
    if (inserted) {
      token_ids_.push_back(token);
      output_counts_.push_back(0);
    }
    if (num_counted_ >= num_prompt_tokens) ++output_counts_[it->second];
  }
}

Batch::Batch(const BatchConfig& config, int64_t vocab_size) : config_(config), vocab_size_(vocab_size) {
  LADDER_CHECK(config.max_model_len > 0 && config.num_kv_blocks > 0,
               "the batch needs a resolved configuration");
  input_ids_ = Tensor::zeros({config.max_num_batched_tokens}, DType::i32);
  positions_ = Tensor::zeros({config.max_num_batched_tokens}, DType::i32);
  slot_mapping_ = Tensor::zeros({config.max_num_batched_tokens}, DType::i64);
  query_start_loc_ = Tensor::zeros({config.max_num_seqs + 1}, DType::i32);
  seq_lens_ = Tensor::zeros({config.max_num_seqs}, DType::i32);
  block_tables_ = Tensor::zeros({config.max_num_seqs, config.max_blocks_per_seq()}, DType::i32);
  table_rows_.resize(static_cast<size_t>(config.max_num_seqs));
}

BatchSequence& Batch::find(SequenceId id) {
  const auto it = known_.find(id);
  LADDER_CHECK(it != known_.end(), "step {}: sequence {} is not in the batch", step_, id);
  return *it->second;
}

void Batch::forget(SequenceId id) {
  LADDER_CHECK(known_.erase(id) == 1, "step {}: sequence {} leaves the batch but is not in it", step_, id);
}

void Batch::prepare(const SchedulerOutput& step) {
  step_ = step.step;
  ++step_count_;
  rows_.clear();
  sampled_.clear();
  continued_.clear();
  apply_changes(step);
  schedule(step);
  lay_out(step.num_static_padding_rows);
}

// >>> task 4.1: keep the running sequences by what changed, and lay this step's rows out flat
void Batch::append_blocks(BatchSequence& sequence, std::span<const int32_t> block_ids) {
  LADDER_CHECK(
      static_cast<int64_t>(sequence.block_table.size() + block_ids.size()) <= config_.max_blocks_per_seq(),
      "step {}: the block table of sequence {} grows beyond {} blocks", step_, sequence.id,
      config_.max_blocks_per_seq());
  for (int32_t block : block_ids) {
    LADDER_CHECK(block >= 0 && block < config_.num_kv_blocks, "step {}: sequence {} is given block {} of {}",
                 step_, sequence.id, block, config_.num_kv_blocks);
    sequence.block_table.push_back(block);
  }
}

void Batch::add(const NewSequence& added) {
  auto [it, inserted] = known_.try_emplace(added.id);
  LADDER_CHECK(inserted, "step {}: sequence {} is new but is in the batch already", step_, added.id);
  it->second = std::make_unique<BatchSequence>();
  BatchSequence& sequence = *it->second;
  sequence.id = added.id;
  sequence.serial = next_serial_++;
  sequence.token_ids.reserve(static_cast<size_t>(config_.max_model_len) + 1);
  if (added.prompt_of >= 0) {
    const auto other = known_.find(added.prompt_of);
    LADDER_CHECK(other != known_.end() && other->second->num_prompt_tokens == added.num_prompt_tokens,
                 "step {}: sequence {} has the prompt of sequence {}, which is not in the batch with it",
                 step_, added.id, added.prompt_of);
    const auto prompt = other->second->token_ids.begin();
    sequence.token_ids.assign(prompt, prompt + added.num_prompt_tokens);
  }
  sequence.token_ids.insert(sequence.token_ids.end(), added.token_ids.begin(), added.token_ids.end());
  for (int32_t token : added.token_ids)
    LADDER_CHECK(token >= 0 && token < vocab_size_,
                 "step {}: sequence {} has token {}, the vocabulary has {}", step_, added.id, token,
                 vocab_size_);
  sequence.num_prompt_tokens = added.num_prompt_tokens;
  LADDER_CHECK(added.num_prompt_tokens > 0 && added.num_prompt_tokens <= std::ssize(sequence.token_ids),
               "step {}: sequence {} has {} prompt tokens of {}", step_, added.id, added.num_prompt_tokens,
               sequence.token_ids.size());
  sequence.sampling = added.sampling;
  append_blocks(sequence, added.block_table);
  sequence.num_computed_tokens = added.num_computed_tokens;
}

void Batch::apply_changes(const SchedulerOutput& step) {
  for (SequenceId id : step.finished) forget(id);
  for (SequenceId id : step.preempted) forget(id);
  for (const NewSequence& added : step.new_sequences) add(added);
  for (const ContinuedSequence& change : step.continued) {
    BatchSequence& sequence = find(change.id);
    continued_.push_back(&sequence);
    append_blocks(sequence, change.new_block_ids);
    // Fewer than we count is a rollback, and legal; more would read K and V that nobody wrote.
    LADDER_CHECK(
        change.num_computed_tokens >= 0 && change.num_computed_tokens <= sequence.num_computed_tokens,
        "step {}: sequence {} is said to have {} computed tokens, {} were computed", step_, change.id,
        change.num_computed_tokens, sequence.num_computed_tokens);
    sequence.num_computed_tokens = change.num_computed_tokens;
  }
}

void Batch::schedule(const SchedulerOutput& step) {
  LADDER_CHECK(static_cast<int64_t>(step.scheduled.size()) <= config_.max_num_seqs,
               "step {}: {} sequences are scheduled, the batch holds {}", step_, step.scheduled.size(),
               config_.max_num_seqs);
  int64_t total = 0;
  size_t next = 0;  // the scheduler lists continued sequences in batch order: they are found already
  for (const ScheduledSequence& scheduled : step.scheduled) {
    const bool found = next < continued_.size() && continued_[next]->id == scheduled.id;
    BatchSequence& sequence = found ? *continued_[next++] : find(scheduled.id);
    const int64_t num_tokens = static_cast<int64_t>(sequence.token_ids.size());
    const int64_t end = sequence.num_computed_tokens + scheduled.num_tokens;
    LADDER_CHECK(sequence.last_step != step_count_, "step {}: sequence {} is scheduled twice", step_,
                 scheduled.id);
    LADDER_CHECK(scheduled.draft_token_ids.empty(),
                 "step {}: sequence {} has draft tokens, which this runner does not verify", step_,
                 scheduled.id);
    LADDER_CHECK(scheduled.num_tokens > 0 && end <= num_tokens,
                 "step {}: sequence {} computes tokens [{}, {}) of the {} it has", step_, scheduled.id,
                 sequence.num_computed_tokens, end, num_tokens);
    LADDER_CHECK(sequence.token_ids[static_cast<size_t>(end) - 1] != kPlaceholder ||
                     sequence.last_step == step_count_ - 1,
                 "step {}: sequence {} computes a token that nobody knows yet", step_, scheduled.id);
    LADDER_CHECK(end <= config_.max_model_len, "step {}: sequence {} reaches position {}, beyond {} tokens",
                 step_, scheduled.id, end - 1, config_.max_model_len);
    LADDER_CHECK(end <= static_cast<int64_t>(sequence.block_table.size()) * config_.block_size,
                 "step {}: sequence {} computes {} tokens, its {} blocks of {} hold fewer", step_,
                 scheduled.id, end, sequence.block_table.size(), config_.block_size);
    sequence.num_scheduled_tokens = scheduled.num_tokens;
    sequence.last_step = step_count_;
    total += scheduled.num_tokens;
    rows_.push_back(&sequence);
  }
  LADDER_CHECK(total == step.total_num_tokens, "step {}: {} tokens are scheduled, {} announced", step_, total,
               step.total_num_tokens);
  LADDER_CHECK(step.num_static_padding_rows >= 0 &&
                   total + step.num_static_padding_rows <= config_.max_num_batched_tokens,
               "step {}: {} tokens and {} padding rows are more than a batch of {}", step_, total,
               step.num_static_padding_rows, config_.max_num_batched_tokens);
}

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
// <<< task 4.1

}  // namespace ladder
