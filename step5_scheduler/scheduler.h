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
#include <set>
#include <unordered_map>
#include <vector>

#include "step3_sequence/batch_config.h"
#include "step3_sequence/block/block_manager.h"
#include "step3_sequence/sequence.h"
#include "step4_runner/executor.h"
#include "step5_scheduler/policy.h"

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
  std::vector<PositionLogprobs> prompt_logprobs;  // of the prompt positions that follow those told before
  FinishReason finish_reason = FinishReason::none;
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
  // Error: sizes below 1, an unchunked budget smaller than max_model_len, end tokens outside the vocabulary.
  explicit Scheduler(SchedulerConfig config);
  ~Scheduler();

  // Queues a request; returns the ids of its n sequences, completion 0 first. A missing seed is drawn;
  // max_tokens is cut to what max_model_len leaves, and becomes all of it where it is absent. Nothing is queued on an Error: an invalid parameter (see
  // validate_sampling_params), an empty prompt, an id outside the vocabulary, a prompt longer than
  // max_model_len - 1, or prompt + max_tokens that do not fit the KV cache even when alone.
  std::vector<SequenceId> add(std::vector<int32_t> prompt_token_ids, const SamplingParams& sampling);
  // The checks of add() alone. Reads nothing that changes: safe from any thread.
  void check(const std::vector<int32_t>& prompt_token_ids, const SamplingParams& sampling) const;

  // Ends a sequence without an update; ids that are unknown or finished already are ignored.
  void abort(SequenceId id);

  // Plans one step into `output`, whose buffers are reused. An output that is not empty() must be submitted,
  // in order, and collected; an empty one is dropped.
  void schedule(SchedulerOutput& output);

  // Takes in the oldest submitted step. The result is valid until the next call. Error: a step out of order,
  // or an answer that does not fit what was scheduled.
  std::vector<SequenceUpdate>& update(StepOutput step);

  // The executor has failed, and no step in flight is going to be collected: forgets all steps and sequences
  // and gives their blocks back.
  void abandon();

  // Forgets all cached prefixes. False, and nothing happens, while a block is held.
  bool reset_prefix_cache() { return blocks_.reset_prefix_cache(); }

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

  // Given, scheduler.cpp: what both ways of scheduling are made of.
  // Tokens that the sequence could compute now, whatever the budget: 0 if all that it may still get is being
  // sampled.
  int64_t num_wanted_tokens(const Sequence& sequence) const;
  // Puts a sequence that is in no list into its place in running_. Its caller takes it off waiting_.
  void start_running(Sequence& sequence);
  // The sequence, which is running and has blocks for them, computes `num_tokens` more in this step.
  void plan(Sequence& sequence, int64_t num_tokens);
  // Writes what was planned for one sequence into `output`, for the runner, and the record that update() will
  // need to the end of `records`.
  void emit(const Planned& planned, SchedulerOutput& output, std::vector<InFlightSequence>& records);

  // 5.1, schedule_static.cpp: the baselines.
  int64_t schedule_static();  // returns the rows of padding
  void admit_static_batch();
  void forget_computed_tokens();

  // 5.2, schedule_continuous.cpp and admission.cpp.
  void schedule_continuous();
  // Moves a waiting sequence to running_, with blocks for a first chunk of at most `budget` tokens, and plans
  // it. Returns the size of the chunk; 0: it has to wait, and nothing has changed.
  int64_t admit(Sequence& sequence, int64_t budget);
  // Replaces `shared` by full blocks that hold the sequence's first tokens already. Nothing is held by it.
  void find_shared_blocks(Sequence& sequence, BlockTable& shared);

  // 5.3, preemption.cpp.
  // Lengthens the sequence's block table until it has slots for its first `num_tokens` tokens (a total, not
  // an addition), preempting others and in the end the sequence itself. False: it computes nothing in this
  // step.
  bool allocate_slots(Sequence& sequence, int64_t num_tokens);
  void preempt_last();

  // 5.5, update.cpp.
  void apply(InFlightSequence& record, SequenceStepOutput& answer);

  // 5.5, finish_and_abort.cpp.
  // Ends a sequence in any state. Its caller takes it off running_.
  void finish(Sequence& sequence, FinishReason reason);
  void release_blocks(Sequence& sequence);
  void forget_if_done(Sequence& sequence);

  SchedulerConfig config_;
  BlockManager blocks_;
  std::mt19937_64 seeds_;
  int64_t next_step_ = 0;
  SequenceId next_id_ = 0;

  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::set<Sequence*, RunsBefore> waiting_;  // in the order of the policy
  std::vector<Sequence*> running_;           // in the order of the policy
  std::deque<InFlightStep> in_flight_;       // oldest first
  std::vector<DeferredBlocks> deferred_;
  std::vector<SequenceId> finished_ids_;   // not told to the runner yet
  std::vector<SequenceId> preempted_ids_;  // not told to the runner yet
  std::vector<SequenceUpdate> updates_;
  std::vector<Planned> plan_;                    // of the step that is being planned, in batch order
  std::vector<InFlightSequence> spare_records_;  // a collected step's, for the next one
  BlockTable shared_blocks_;                     // scratch of admit()
  SchedulerStats totals_;                        // the counts since the start

  int64_t num_batch_rows_ = 0;           // static batching: rows of the batch, finished ones included
  int64_t num_prompt_padding_rows_ = 0;  // static batching: padding of its prompts, still to be computed
  std::vector<SequenceId>
      start_over_;  // recompute_everything: what has sampled, to be computed from the start
};

}  // namespace ladder
