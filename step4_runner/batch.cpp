#include "step4_runner/batch.h"

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
  apply(step);
  lay_out(step.num_static_padding_rows);
}

void Batch::apply(const SchedulerOutput& step) {
  step_ = step.step;
  ++step_count_;
  rows_.clear();
  sampled_.clear();
  continued_.clear();
  apply_changes(step);
  schedule(step);
}

}  // namespace ladder
