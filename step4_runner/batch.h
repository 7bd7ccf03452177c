#pragma once
// Task 4.1: the batch, flattened and persistent.
//
// A step computes a few tokens each of many sequences. The model sees them as one list of rows without
// padding:
//
//   sequence A, 3 tokens of a prompt   B, 1 token (decode)   C, 2 tokens (the rest of a prompt)
//   input_ids        a5 a6 a7          b9                    c0 c1
//   positions         5  6  7           9                     0  1
//   query_start_loc [0,                 3,                    4,       6]
//   seq_lens        [         8,            10,                     2]
//   logits_indices             2        3                        5        (rows whose sequence ends there)
//
// The batch is persistent: what it needs to know of a running sequence (tokens, block table, sampling
// parameters) it keeps from step to step, SchedulerOutput carries only changes, and a row of the block table
// is rewritten only when another sequence takes the row. A sampled token stays here, it does not travel to
// the scheduler and back. There is no prefill and no decode: a row is a decode only in that its sequence
// computes one token.
//
// A step may be laid out before the tokens of the step before are known (they are still being computed on a
// GPU). A sequence then ends in a placeholder, and its row's input id says where on the device the token will
// be:
//
//   input_ids[row] = -1 - i     the token that the step before samples as its i-th
//
// The kernel in unpack_inputs_cuda.cu puts that token in, on the device; fill() does it here, for the host,
// when the step before has been collected.
//
// An inconsistent SchedulerOutput is a defect of the scheduler, not of the user. It is an Error whose message has
// the number of the step and of the thing, as in "step 41" and "sequence 5", and the batch must not be used after
// it. Which steps are inconsistent: see apply().
//
//   batch.cpp          what TokenCounts and the buffers are made of
//   batch_changes.cpp  4.1.changes  apply()
//   batch_rows.cpp     4.1.rows     lay_out(), advance(), fill()
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/core/tensor.h"
#include "step3_sequence/batch_config.h"
#include "step3_sequence/scheduler_output.h"

namespace ladder {

// How often each token stands in a sequence, for the penalties: every token of prompt or output once. It is
// brought up to date from where it stopped, so a step costs the tokens it added.
class TokenCounts {
 public:
  void update(std::span<const int32_t> token_ids, int64_t num_prompt_tokens);
  std::span<const int32_t> token_ids() const { return token_ids_; }
  std::span<const int32_t> output_counts() const { return output_counts_; }  // 0: in the prompt only

 private:
  int64_t num_counted_ = 0;
  std::unordered_map<int32_t, size_t> index_;  // token id -> place in the two lists
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> output_counts_;
};

// What the runner keeps of one sequence between steps.
struct BatchSequence {
  SequenceId id = 0;
  uint64_t serial = 0;             // never given twice, where an id may come back after a preemption
  std::vector<int32_t> token_ids;  // prompt and output
  int64_t num_prompt_tokens = 0;
  SamplingParams sampling;
  std::vector<int32_t> block_table;
  int64_t num_computed_tokens = 0;   // their K and V are in the cache
  int64_t num_scheduled_tokens = 0;  // computed in this step
  int64_t last_step = -1;            // the last step (counted here) that it was part of
  int32_t sampled_index = -1;        // its place among the sampled sequences of that step
  TokenCounts counts;                // kept up to date only where the request has penalties

  int64_t num_output_tokens() const { return static_cast<int64_t>(token_ids.size()) - num_prompt_tokens; }
  // Whether this step computes the last known token, and so yields the next one.
  bool yields_token() const {
    return num_computed_tokens + num_scheduled_tokens == static_cast<int64_t>(token_ids.size());
  }
};

// The sequences that a step gives a token, as long as these tokens are on their way.
struct PendingTokens {
  struct Place {
    SequenceId id = 0;
    uint64_t serial = 0;
    int64_t position = 0;
  };
  std::vector<Place> places;  // in the order of the step's logits_indices
};

// Entries of the block tables that prepare() has written: columns [begin, end) of a row.
struct TableUpdate {
  int64_t row = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

class Batch {
 public:
  static constexpr int32_t kPlaceholder = -1;

  // `config` is resolved (kv_cache_size.h). All buffers are made here, on the CPU.
  Batch(const BatchConfig& config, int64_t vocab_size);

  // Applies the changes and lays out the rows of this step. Error: see apply().
  void prepare(const SchedulerOutput& step);
  // The first half of prepare(). What is finished or preempted is forgotten, then what is new is added, then what
  // continues gets its new blocks, at the end of its table, and its num_computed_tokens (a total); a sequence may be
  // preempted and new again in one step. Then every scheduled sequence, in the scheduler's order, is a row of
  // sequences(), with what it computes as num_scheduled_tokens. A prompt_of is the prompt of a sequence that is in
  // the batch: its tokens come before the new sequence's own token_ids. Error, with the step's number and
  //   "sequence 5"  it is unknown where it ends, continues or computes, or known where it is new; it computes
  //                 twice, or without tokens, or tokens that it does not have, or beyond max_model_len, or beyond
  //                 the slots of its blocks, or has draft tokens; its last token is a placeholder of an older step
  //                 than the one before; it is said to have more computed tokens than were computed (fewer is
  //                 legal, they are computed again); more blocks than max_blocks_per_seq(); no prompt, or a longer
  //                 one than it has tokens; the prompt of a sequence that is not there or has another length
  //   "block 40"    and its sequence: it is outside the cache
  //   "token 1000"  and its sequence: it is outside the vocabulary
  //   nothing else  more sequences than max_num_seqs, more rows (padding included) than max_num_batched_tokens, or
  //                 a total_num_tokens that is not the sum
  void apply(const SchedulerOutput& step);
  // The step was launched: what it computes is computed, and every sampled sequence gets a placeholder as its last
  // token. Until that is filled the sequence may be part of the next step, and of no later one.
  PendingTokens advance();
  // One token for every place, kInvalidToken as token 0; those of sequences that have left the batch in the
  // meantime, or left and came back, are dropped. Error: another number of tokens than of places.
  void fill(const PendingTokens& pending, std::span<const int32_t> token_ids);

  // The rows of this step; views of buffers that the next prepare() overwrites.
  // attention().num_tokens of them are tokens; the padding rows, in no slot, come after them.
  const Tensor& input_ids() const { return input_ids_view_; }  // [rows] i32
  const Tensor& positions() const { return positions_view_; }  // [rows] i32
  const AttentionMetadata& attention() const { return metadata_; }
  std::span<const int64_t> logits_indices() const { return logits_indices_; }
  // The sequences of this step in batch order, and those of logits_indices.
  std::span<BatchSequence* const> sequences() const { return rows_; }
  std::span<BatchSequence* const> sampled_sequences() const { return sampled_; }
  std::span<const TableUpdate> table_updates() const { return table_updates_; }
  // Row where a sequence of this step begins.
  int64_t query_start(int64_t index) const { return query_start_loc_.data<int32_t>()[index]; }

  int64_t num_known_sequences() const { return static_cast<int64_t>(known_.size()); }

 private:
  // Which sequence a row of the block table holds, and how much of its table.
  struct TableRow {
    uint64_t serial = 0;
    int64_t num_blocks = 0;
  };

  BatchSequence& find(SequenceId id);
  void forget(SequenceId id);
  void add(const NewSequence& added);
  void append_blocks(BatchSequence& sequence, std::span<const int32_t> block_ids);
  void apply_changes(const SchedulerOutput& step);
  void schedule(const SchedulerOutput& step);
  // The second half of prepare(): every view and list below from rows_. Padding rows are token 0 at position 0 in
  // slot -1. The host numbers of the metadata are the step's own: num_tokens without padding rows, the longest
  // query and the longest sequence.
  void lay_out(int64_t num_padding_rows);
  // Row `row` of the block tables shows the sequence's table. Only what it does not show yet is written, and listed
  // in table_updates_: all of it where the row held another sequence (another serial).
  void update_table_row(int64_t row, const BatchSequence& sequence);

  BatchConfig config_;
  int64_t vocab_size_;
  int64_t step_ = 0;        // the scheduler's number, for messages
  int64_t step_count_ = 0;  // ours
  uint64_t next_serial_ = 1;
  std::unordered_map<SequenceId, std::unique_ptr<BatchSequence>> known_;
  std::vector<BatchSequence*> continued_;  // this step's, as SchedulerOutput lists them
  std::vector<BatchSequence*> rows_;       // this step's, in batch order
  std::vector<BatchSequence*> sampled_;    // those of them that yield a token
  std::vector<int64_t> logits_indices_;
  std::vector<TableRow> table_rows_;  // [max_num_seqs]
  std::vector<TableUpdate> table_updates_;

  Tensor input_ids_;        // [max_num_batched_tokens] i32
  Tensor positions_;        // [max_num_batched_tokens] i32
  Tensor slot_mapping_;     // [max_num_batched_tokens] i64
  Tensor query_start_loc_;  // [max_num_seqs + 1] i32
  Tensor seq_lens_;         // [max_num_seqs] i32
  Tensor block_tables_;     // [max_num_seqs, max_blocks_per_seq] i32
  Tensor input_ids_view_;
  Tensor positions_view_;
  AttentionMetadata metadata_;
};

}  // namespace ladder
