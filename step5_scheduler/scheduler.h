#pragma once
// Tasks 5.1 to 5.5: who computes how many tokens in the next step.
//
// The loop of an engine, with up to executor.max_in_flight() steps submitted at a time:
//
//   scheduler.schedule(output);                        // may be empty: nothing can run before a collect
//   ticket = executor.submit(output);
//   for (SequenceUpdate& u : scheduler.update(executor.collect(ticket))) ...
//
// schedule() may be called again before update(): a sequence whose next token is not known yet goes on with a
// placeholder. A stop found late drops the tokens that were sampled beyond it. Blocks of a sequence that
// ended or was preempted while a submitted step still computes it are given back when that step is collected,
// never earlier and never twice.
//
// The scheduler owns its sequences and the block manager. It knows nothing of tensors, and is not
// thread-safe.
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "step3_sequence/batch_config.h"
#include "step3_sequence/block/block_manager.h"
#include "step3_sequence/sequence.h"
#include "step4_runner/executor.h"
#include "step5_scheduler/policy.h"
#include "step5_scheduler/waiting_queue.h"

namespace ladder {

struct SchedulerConfig {
  BatchConfig batch;  // all of it set: what the executor was made with (LocalExecutor::config())
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  SchedulingPolicy policy = SchedulingPolicy::fcfs;

  bool enable_prefix_caching = true;
  std::optional<uint64_t> prefix_cache_seed;  // none: block names differ from process to process
  // Without it a prompt is computed whole in one step or waits. max_num_batched_tokens must then be at least
  // max_model_len, so that a sequence that was preempted late can also come back whole.
  bool enable_chunked_prefill = true;

  // How prompts that do not fit into one step share the budget (names and defaults are vLLM's). At most
  // max_num_partial_prefills of them get a chunk in one step, and even shares of what the decodes leave; at
  // most max_long_partial_prefills of these lack more than long_prefill_token_threshold tokens, and get no
  // larger chunk than that, so that short prompts pass long ones. Budget that nobody else wants goes to those
  // that were cut, in the order of the policy: the limits never make a step smaller.
  int64_t max_num_partial_prefills = 1;
  int64_t max_long_partial_prefills = 1;
  int64_t long_prefill_token_threshold = 0;  // 0: none is long, or 4 % of max_model_len if several may share

  // Share of the KV blocks that stay free when a sequence is admitted, or comes back after a preemption, while
  // others run: room for those to grow. See the table in README.md for what it is worth.
  double watermark = 0.05;

  // The baselines that the progression starts from.
  bool static_batching = false;       // a batch runs until all of it is done; see schedule_static.cpp
  bool recompute_everything = false;  // static, and every token is computed again for every new token
};

// What one step did for one sequence. Only sequences that have something to tell are listed: new tokens,
// prompt log probabilities, or their end.
struct SequenceUpdate {
  SequenceId id = 0;
  std::vector<int32_t> new_token_ids;  // a stop token is among them
  std::vector<PositionLogprobs> logprobs;
  std::vector<PositionLogprobs>
      prompt_logprobs;  // of the prompt positions that follow those delivered before
  FinishReason finish_reason = FinishReason::none;
  std::optional<int32_t> stop_token_id;  // of stop_token_ids, if one ended it; absent for an end token
  int64_t num_cached_tokens = 0;  // prompt tokens that were found in the prefix cache or shared by a sibling
  int64_t num_preemptions = 0;
};

struct SchedulerStats {
  int64_t num_waiting = 0;  // preempted ones included
  int64_t num_running = 0;
  int64_t num_blocks = 0;
  int64_t num_used_blocks = 0;    // held by sequences
  int64_t num_cached_blocks = 0;  // indexed by the prefix cache, held or not
  int64_t num_live_tokens = 0;    // slots of the used blocks that hold a computed token of a running sequence
  // Since the start:
  int64_t num_preemptions = 0;
  int64_t num_prefix_queried_tokens = 0;  // prompt tokens of all sequences that were admitted
  int64_t num_prefix_hit_tokens = 0;      // of these, cached or shared by a sibling
};

class Scheduler {
 public:
  // Error, naming the field: sizes below 1, an unchunked budget smaller than max_model_len, end tokens outside
  // the vocabulary, limits of partial prefills that do not fit each other, a watermark outside [0, 1).
  // `index`: what finds cached prefixes; null: chained block hashes, if enable_prefix_caching asks for them.
  explicit Scheduler(SchedulerConfig config, std::unique_ptr<PrefixIndex> index = nullptr);
  ~Scheduler();

  // Queues a request; returns the ids of its n sequences, completion 0 first. A missing seed is drawn;
  // max_tokens is cut to what max_model_len leaves, and becomes all that it and the cache leave where it is
  // absent. Nothing is queued on an Error: an invalid parameter (see validate_sampling_params), an empty
  // prompt, an id outside the vocabulary, a prompt longer than max_model_len - 1, or prompt + max_tokens that
  // do not fit the KV cache even when alone.
  std::vector<SequenceId> add(std::vector<int32_t> prompt_token_ids, const SamplingParams& sampling);
  // The checks of add() alone. Reads nothing that changes: safe from any thread.
  void check(const std::vector<int32_t>& prompt_token_ids, const SamplingParams& sampling) const;

  // Ends a sequence without an update; ids that are unknown or finished already are ignored.
  void abort(SequenceId id);

  // Forgets all cached prefixes, as after a change of the model's weights. False, and nothing is forgotten,
  // while sequences hold blocks, those that ended in a step still in flight included (as vLLM).
  bool reset_prefix_cache() { return blocks_.reset_prefix_cache(); }

  // Plans one step into `output`, whose buffers are reused. An output that is not empty() must be submitted,
  // in order, and collected; an empty one is dropped.
  void schedule(SchedulerOutput& output);

  // Applies the answer to the oldest submitted step. The result is valid until the next call. Error: a step
  // out of order, or an answer that does not fit what was scheduled.
  std::vector<SequenceUpdate>& update(StepOutput step);

  // The executor has failed, and no step in flight is going to be collected: forgets all steps and sequences
  // and gives their blocks back.
  void abandon();

  // An engine is idle when nothing is unfinished and no step is in flight (the last ones may still compute
  // sequences that ended in the meantime).
  bool has_unfinished() const { return !waiting_.empty() || !running_.empty(); }
  int64_t num_steps_in_flight() const { return static_cast<int64_t>(in_flight_.size()); }
  SchedulerStats stats() const;
  const SchedulerConfig& config() const { return config_; }
  const BlockManager& blocks() const { return blocks_; }
  // Every table that holds references, those of ended sequences in flight too: for checking the books.
  std::vector<const BlockTable*> block_tables() const;
  // Null: unknown, or ended and forgotten.
  const Sequence* find(SequenceId id) const;

 private:
  int64_t max_tokens_of(const SamplingParams& sampling, int64_t num_prompt_tokens) const;

  // One scheduled sequence of a submitted step, as needed when the step is collected.
  struct InFlightSequence {
    Sequence* sequence = nullptr;
    int64_t num_computed_before = 0;
    int64_t num_computed_after = 0;
    int64_t epoch =
        0;  // the sequence's num_preemptions then; has it more now, its blocks were given up since
    bool samples = false;
  };
  struct InFlightStep {
    int64_t step = 0;
    std::vector<InFlightSequence> sequences;
  };
  // Blocks that a submitted step may still write.
  struct DeferredBlocks {
    int64_t step = 0;
    std::vector<int32_t> block_table;
  };

  // A sequence that computes `num_tokens` in the step that is being planned.
  struct Planned {
    Sequence* sequence = nullptr;
    int64_t num_tokens = 0;
  };
  // What a step may still give out, and what it has.
  struct Budget {
    int64_t decode = 0;               // tokens set aside, one for each sequence that lacks one
    int64_t prefill = 0;              // tokens for all others
    int64_t num_partial = 0;          // prompts that were cut ...
    int64_t num_long = 0;             // ... long ones among them
    int64_t num_promised_blocks = 0;  // needed by the cut prompts that come earlier in the order
    bool with_limits = true;          // the first walk; in the second the rest goes to whoever can use it
    bool limited = false;             // a limit has cut or passed over a prompt
    bool short_of_blocks = false;     // nobody is admitted any more in this step
  };
  enum class Admission : uint8_t {
    admitted,
    passed_over,  // not now, but the next one may
    too_long,     // likewise, if it is short
    refused,      // and nobody after it
  };

  // Given, scheduler.cpp: what both ways of scheduling are made of.
  // Tokens that the sequence could compute now, whatever the budget: 0 if all that it may still get is being
  // sampled.
  int64_t num_wanted_tokens(const Sequence& sequence) const;
  // Puts a sequence that is in no list into its place in running_. Its caller takes it off waiting_.
  void start_running(Sequence& sequence);
  // The sequence, which is running and has blocks for them, computes `num_tokens` more in this step. Moves
  // num_computed_tokens.
  void plan(Sequence& sequence, int64_t num_tokens);
  // Writes what was planned for one sequence into `output`, for the runner, and the record that update() will
  // need to the end of `records`.
  void emit(const Planned& planned, SchedulerOutput& output, std::vector<InFlightSequence>& records);

  NewSequence new_sequence(const Sequence& sequence, int64_t num_computed_tokens) const;

  // 5.1, schedule_static.cpp: the baselines.
  // Plans a step of the batch that runs, or of a new one if none does; returns the step's rows of padding.
  int64_t schedule_static();
  // Moves sequences from waiting_ to running_ while there are rows, and blocks for the longest answer of each;
  // counts the rows of the batch and the padding of its prompts.
  void admit_static_batch();
  // Of those in start_over_ whose sampled token has come nothing is computed any more.
  void forget_computed_tokens();

  // 5.2, schedule_continuous.cpp and admission.cpp.
  void schedule_continuous();
  // A whole budget, a token of it set aside for each running sequence that lacks just one.
  Budget set_aside() const;
  // Plans running and waiting sequences in the order of the policy until the budget is spent.
  void walk(Budget& budget);
  // Plans what the budget allows for a running sequence, and takes it out of the budget.
  void go_on(Sequence& sequence, Budget& budget);
  // Moves a waiting sequence from waiting_ to running_ with blocks for a first chunk, plans the chunk and takes
  // it out of the budget. Unless it is admitted nothing has changed.
  Admission admit(Sequence& sequence, Budget& budget);
  // Replaces `shared` by full blocks that hold the sequence's first tokens already. Nothing is held by it.
  // False: they are being computed, the sequence should wait.
  bool find_shared_blocks(Sequence& sequence, BlockTable& shared);
  // How many of the `num_wanted` tokens that a sequence lacks it may compute in this step; 0: it waits.
  int64_t chunk_size(int64_t num_wanted, Budget& budget) const;
  // `num_tokens` of the `num_wanted` are given out: takes them out of the budget, and counts a prompt that was
  // cut.
  void take(int64_t num_wanted, int64_t num_tokens, Budget& budget) const;
  bool is_long(int64_t num_tokens) const {
    return config_.long_prefill_token_threshold > 0 && num_tokens > config_.long_prefill_token_threshold;
  }

  // 5.3, preemption.cpp.
  // Lengthens the sequence's block table until it has slots for its first `num_tokens` tokens (a total, not
  // an addition), preempting others and in the end the sequence itself. False: it computes nothing in this
  // step.
  bool allocate_slots(Sequence& sequence, int64_t num_tokens);
  // Moves the last of running_ to waiting_, without blocks and with nothing computed. The runner, if it knows
  // the sequence, is told with the next step (preempted_ids_).
  void preempt_last();

  // 5.5, update.cpp.
  // Applies the answer for one sequence of the step, with an update if there is something to tell. A sequence
  // that it ends stays in running_: update() takes all of them off at once.
  void apply(InFlightSequence& record, SequenceStepOutput& answer);

  // 5.5, finish_and_abort.cpp.
  // Ends a sequence in any state. Its caller takes it off running_.
  void finish(Sequence& sequence, FinishReason reason);
  // Gives its blocks back; while a step in flight computes it they go to deferred_, until that step is
  // collected.
  void release_blocks(Sequence& sequence);
  // Deletes the sequence if it has ended and no step in flight computes it.
  void forget_if_done(Sequence& sequence);

  SchedulerConfig config_;
  BlockManager blocks_;
  std::mt19937_64 seeds_;
  int64_t next_step_ = 0;
  SequenceId next_id_ = 0;

  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  WaitingQueue waiting_;
  int64_t num_watermark_blocks_ = 0;
  std::vector<Sequence*> running_;      // in the order of the policy
  std::deque<InFlightStep> in_flight_;  // oldest first
  std::vector<DeferredBlocks> deferred_;
  std::vector<SequenceId> finished_ids_;   // not sent to the runner yet
  std::vector<SequenceId> preempted_ids_;  // not sent to the runner yet
  std::vector<SequenceUpdate> updates_;
  std::vector<Planned> plan_;                    // of the step that is being planned, in batch order
  std::vector<InFlightSequence> spare_records_;  // a collected step's, for the next one
  BlockTable shared_blocks_, cached_blocks_;     // scratch of admit()
  SchedulerStats totals_;                        // the counts since the start

  int64_t num_batch_rows_ = 0;           // static batching: rows of the batch, finished ones included
  int64_t num_prompt_padding_rows_ = 0;  // static batching: padding of its prompts, still to be computed
  std::vector<SequenceId>
      start_over_;  // recompute_everything: what has sampled, to be computed from the start
};

}  // namespace ladder
