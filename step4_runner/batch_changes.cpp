// Task 4.1.changes: what a step changes in the batch, and what it computes.
#include "step1_layers/core/error.h"
#include "step4_runner/batch.h"

namespace ladder {

// >>> task 4.1.changes: keep the running sequences by what changed, and refuse a step that contradicts itself
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
    // Fewer than we count is a rollback, and legal; more would read K and V that were never written.
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
// <<< task 4.1.changes

}  // namespace ladder
