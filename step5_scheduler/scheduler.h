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
// With phase_lanes there are two such loops over one scheduler, one of prefill and one of decode steps, and update() takes the
// oldest step of either (lanes.cpp). While they are mixed (mix_phases()) the first of them computes both.
//
// The scheduler owns its sequences and the block manager. It knows nothing of tensors, and is not
// thread-safe.
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "step3_sequence/batch_config.h"
#include "step3_sequence/block/block_manager.h"
#include "step3_sequence/sequence.h"
#include "step4_runner/executor.h"
#include "step5_scheduler/kv_connector.h"
#include "step5_scheduler/policy.h"
#include "step5_scheduler/waiting_queue.h"

namespace ladder {

struct SchedulerConfig {
  BatchConfig batch;  // all of it set: what the executor was made with (LocalExecutor::config())
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  int64_t max_logprobs = 20;  // that a request may ask for, of a token; -1: no limit. As vLLM's
  SchedulingPolicy policy = SchedulingPolicy::fcfs;

  bool enable_prefix_caching = true;
  std::optional<uint64_t> prefix_cache_seed;  // none: block names differ from process to process
  // Without it a prompt is computed whole in one step or waits. max_num_batched_tokens must then be at least
  // max_model_len, so that a sequence that was preempted late can also come back whole.
  bool enable_chunked_prefill = true;

  // How prompts that do not fit into one step share the budget (names and defaults are vLLM's). At most
  // max_num_partial_prefills of them get a chunk in one step, and even shares of what the decodes leave; at
  // most max_long_partial_prefills of these lack more than long_prefill_token_threshold tokens, and get no
  // larger chunk than that, so that short prompts pass long ones. Budget that is left over goes to those
  // that were cut, in the order of the policy: the limits never make a step smaller.
  int64_t max_num_partial_prefills = 1;
  int64_t max_long_partial_prefills = 1;
  int64_t long_prefill_token_threshold = 0;  // 0: none is long, or 4 % of max_model_len if several may share

  // Share of the KV blocks that stay free when a sequence is admitted, or comes back after a preemption, while
  // others run: room for those to grow. See the table in README.md for what it is worth.
  double watermark = 0.05;

  // Stages of a pipeline, each of which computes a step of its own: so many steps are in flight, and one has up to
  // max_num_seqs sequences, as ever, but so many times as many run. A sequence whose token is being sampled is in no
  // other step (the token is at the other end of the pipeline), and a step takes an even share of those that decode:
  // else the first would take all and leave the stages behind it empty.
  int64_t pipeline_depth = 1;

  // Steps are of one phase, and those of one are in flight beside those of the other (step 8, 8.7.lanes): schedule() is asked
  // for a phase. A prefill step has max_num_batched_tokens, a decode step max_num_seqs, and as many run in all. A step of both
  // (mix_phases()) has num_mixed_step_tokens, or twice as many as run, if that is more: every answer waits for all of it.
  bool phase_lanes = false;
  int64_t num_mixed_step_tokens = 512;

  // Requests may have kv_transfer. Set where the scheduler is given a connector; whoever checks requests for it is told.
  bool has_kv_connector = false;

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
  std::shared_ptr<const KvTransferParams>
      kv_transfer;  // of its end: where its blocks are kept for a reader; null: nowhere
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
  int64_t num_prefix_queried_tokens = 0;  // prompt tokens of all sequences that admit() let run
  int64_t num_prefix_hit_tokens = 0;      // of these, cached or shared by a sibling
  int64_t num_external_tokens = 0;        // that came from another engine
  // Now:
  int64_t num_waiting_for_kv = 0;  // neither waiting nor running: their keys are on the way
  int64_t num_held_blocks = 0;     // of the used blocks, those of ended sequences that are kept for a reader
  KvTransferStats kv_transfer;     // of the connector
};

class Scheduler {
 public:
  // Error, naming the field: sizes below 1, an unchunked budget smaller than max_model_len, end tokens outside
  // the vocabulary, max_logprobs below -1, limits of partial prefills that do not fit each other, a watermark
  // outside [0, 1), a connector with static batching; phase_lanes with a connector, with static batching or in a pipeline.
  // `index`: what finds cached prefixes; null: chained block hashes, if enable_prefix_caching asks for them.
  // `connector`: to other engines; null: none.
  explicit Scheduler(SchedulerConfig config, std::unique_ptr<PrefixIndex> index = nullptr,
                     std::shared_ptr<KvConnector> connector = nullptr);
  ~Scheduler();  // which abandons the connector's work

  // Queues a request; returns the ids of its n sequences, completion 0 first. A missing seed is drawn;
  // max_tokens is cut to what max_model_len leaves, and becomes all that it and the cache leave where it is
  // absent. Nothing is queued on an Error: an invalid parameter (see validate_sampling_params), more log
  // probabilities than max_logprobs, an empty prompt, an id outside the vocabulary, a prompt longer than
  // max_model_len - 1, or prompt + max_tokens that do not fit the KV cache even when alone.
  // `kv_transfer`: null, unless there is a connector.
  std::vector<SequenceId> add(std::vector<int32_t> prompt_token_ids, const SamplingParams& sampling,
                              std::shared_ptr<const KvTransferParams> kv_transfer = nullptr);
  // The checks of add() alone. Reads nothing that changes: safe from any thread.
  void check(const std::vector<int32_t>& prompt_token_ids, const SamplingParams& sampling) const;

  // Ends a sequence without an update; ids that are unknown or finished already are ignored.
  void abort(SequenceId id);

  // Forgets all cached prefixes, as after a change of the model's weights. False, and nothing is forgotten,
  // while sequences hold blocks, those that ended in a step still in flight included (as vLLM).
  bool reset_prefix_cache() { return blocks_.reset_prefix_cache(); }

  // Plans one step into `output`, whose buffers are reused. An output that is not empty() must be submitted,
  // in order, and collected; an empty one is dropped. `phase`: with phase_lanes prefill or decode, else any; each lane's
  // steps are submitted in their order, to a runner that knows the sequences of this lane alone.
  void schedule(SchedulerOutput& output, StepPhase phase = StepPhase::any);
  // With phase_lanes: from now on answers are computed in prefill steps, beside chunks of prompts, and decode steps are empty; or
  // (false, as at the beginning) no more. It begins when the prefill steps in flight, which may be long, are collected: until then
  // decode steps go on, and prefill steps are empty. Nothing happens where prompts are not cut (enable_chunked_prefill).
  void mix_phases(bool mix);

  // Applies what the connector has brought; schedule() begins with it. For an engine at rest, whose blocks come back.
  void take_kv_events();
  // Whether nothing but the connector may be what an empty step waited for.
  bool waits_for_kv() const {
    return !loads_.empty() || !cancelled_loads_.empty() || !held_.empty() || may_not_start_;
  }
  KvConnector* connector() { return connector_.get(); }
  // Loads of sequences that have ended because their keys did not come (FinishedKvLoad::ends_sequence), since the last call.
  std::vector<FinishedKvLoad> take_failed_loads() { return std::exchange(failed_loads_, {}); }

  // Applies the answer to the oldest submitted step of a lane. The result is valid until the next call. Error: a step
  // out of order, or an answer that does not fit what was scheduled.
  std::vector<SequenceUpdate>& update(StepOutput step);

  // The executor has failed, and no step in flight is going to be collected: forgets all steps and sequences
  // and gives their blocks back, those that are kept for a reader too.
  void abandon();

  // An engine is idle when nothing is unfinished and no step is in flight (the last ones may still compute
  // sequences that ended in the meantime).
  bool has_unfinished() const { return !waiting_.empty() || !running_.empty() || !loads_.empty(); }
  int64_t num_steps_in_flight() const { return static_cast<int64_t>(in_flight_.size()); }
  SchedulerStats stats() const;
  // Tokens of all sequences that wait, each with its whole prompt: how much work stands before a newcomer, at the most
  // (what is cached or shared by siblings is not looked up). Walks through the queue.
  int64_t num_waiting_tokens() const;
  // The same of those alone that have a place and blocks, as far as the queue goes in its order: none but these would run sooner
  // if prompts were computed faster.
  int64_t num_admissible_tokens() const;
  const SchedulerConfig& config() const { return config_; }
  const BlockManager& blocks() const { return blocks_; }
  // Every table that holds references, those of ended sequences too that are in flight, being filled or kept: for checking
  // the books.
  std::vector<const BlockTable*> block_tables() const;
  int64_t num_waiting() const { return waiting_.size(); }
  // The first of those that wait, in the order of the policy.
  std::vector<SequenceId> waiting_ids(int64_t at_most) const;
  // Null: unknown, or ended and forgotten.
  const Sequence* find(SequenceId id) const;

 protected:  // for tests that call the functions of one task alone
  int64_t max_tokens_of(const SamplingParams& sampling, int64_t num_prompt_tokens) const;

  // One scheduled sequence of a submitted step, as needed when the step is collected.
  struct InFlightSequence {
    Sequence* sequence = nullptr;
    int64_t num_computed_before = 0;
    int64_t num_computed_after = 0;
    int64_t epoch = 0;  // the sequence's num_preemptions then; if it has more now, its blocks were given up
    bool samples = false;  // its answer has a token
  };
  struct InFlightStep {
    int64_t step = 0;
    StepPhase lane = StepPhase::any;
    std::vector<InFlightSequence> sequences;
  };
  // Blocks that a submitted step may still write.
  struct DeferredBlocks {
    int64_t step = 0;  // the last one that does
    std::vector<int32_t> block_table;
    StepPhase lane = StepPhase::any;  // in which that is
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
    bool with_limits = true;          // the first walk; in the second the rest goes to all that can use it
    bool limited = false;             // a limit has cut or passed over a prompt
    bool short_of_blocks = false;     // no sequence is admitted any more in this step
  };
  enum class Admission : uint8_t {
    admitted,
    passed_over,  // not now (or its keys come from outside from now on), but the next one may
    too_long,     // likewise, if it is short
    refused,      // and all after it
  };

  // Given, scheduler.cpp: what both ways of scheduling are made of. A step is planned first, and written into
  // the output when all of it is planned.
  void begin_step(SchedulerOutput& output);
  void end_step(SchedulerOutput& output);  // emits what was planned; nothing, if nothing was
  // Tokens that the sequence could compute now, whatever the budget: all that are not computed, the one that is
  // being sampled included. 0 where max_tokens of them are in its output or being sampled, and in a pipeline where one is
  // being sampled.
  int64_t num_wanted_tokens(const Sequence& sequence) const;
  // The sequence has the status running from now on, and its place in running_. It must be in no list: its
  // caller has taken it off waiting_ before.
  void start_running(Sequence& sequence);
  // The sequence computes `num_tokens` more (an addition, at least 1) in this step: one entry of plan_, and
  // num_computed_tokens moves on at once. It must be running, with blocks for these tokens, and have no entry
  // yet.
  void plan(Sequence& sequence, int64_t num_tokens);
  // Writes one entry of plan_ into `output`, for the runner, and the record that update() will need to the end
  // of `records`. Counts the step in num_steps_in_flight and, if it samples, a placeholder.
  void emit(const Planned& planned, SchedulerOutput& output, std::vector<InFlightSequence>& records);

  NewSequence new_sequence(const Sequence& sequence, int64_t num_computed_tokens) const;

  // 8.7.lanes, lanes.cpp.
  // Of a step of this lane: sets lane_, phase_ and num_step_tokens_. False: the lane has no step now (mix_phases()).
  bool begin_lane(StepPhase lane);
  // Whether a running sequence that lacks `num_wanted` tokens (at least one) may be in the step that is being planned. Its
  // prompt is computed and it lacks one: that is for a decode step, all else for a prefill step, both for a mixed one; and for
  // none while a step of the other lane computes it. Without phase_lanes always.
  bool is_of_phase(const Sequence& sequence, int64_t num_wanted) const;
  // The sequence is in the lane that is being planned from now on. If the other lane's runner knows it, that one is told to
  // forget it with its next step, and this one knows nothing of it yet.
  void enter_lane(Sequence& sequence);

  // 5.1, schedule_static.cpp: the baselines.
  // Plans a step of the batch that runs; admits one first if nothing runs and no step is in flight. In the
  // order of running_ each sequence computes what it wants, within max_num_batched_tokens in all; what is
  // larger than the rest of that is cut, or waits where prompts are not chunked. Until every sequence of the
  // batch has an output token, or one that is being sampled, those that have one compute nothing.
  // recompute_everything: one that has sampled starts over (start_over_) when its token has come, and until
  // then computes nothing.
  // Returns the step's rows of padding, which count against max_num_batched_tokens too: once all prompts were
  // done before this step, one for each row of the batch for which nothing is planned; and as many of
  // num_prompt_padding_rows_ as there is room for, which are then off that number. Where nothing is planned at
  // all the step is dropped: it has no padding, and that number stays.
  int64_t schedule_static();
  // Moves sequences from waiting_ to running_ in the order of the queue while fewer than max_num_seqs run and
  // the next one gets blocks for its longest answer: all but the last token of it, which is never computed.
  // Sets num_batch_rows_, and num_prompt_padding_rows_ to what is missing where every prompt is as long as the
  // longest; what an earlier batch has left of it is forgotten. totals_ do not change: nothing is looked up.
  void admit_static_batch();
  // Of those in start_over_ whose sampled token has come (no placeholder is left) nothing is computed any more,
  // and they leave the list, as do those that are not known any more.
  void forget_computed_tokens();

  // 5.2, schedule_continuous.cpp: the walk.
  // One walk with limits. If a limit has cut or passed over a prompt (`limited`), `prefill` is left, and the
  // step is not short_of_blocks, another one without. Only who runs makes a step short_of_blocks (go_on()); a
  // newcomer that is refused does not.
  void schedule_continuous();
  // num_step_tokens_: of these `decode` one for each running sequence that wants just one (as far as they
  // go), the rest `prefill`. In a pipeline no more than an even share, rounded up, of those that want one or have one
  // being sampled. Of a decode step max_num_seqs are `decode`, and nothing is `prefill`; of a prefill step all is, which
  // is short_of_blocks from the start if the last decode step was.
  Budget set_aside() const;
  // Goes once through running_ and waiting_ together, in the order of the policy: go_on() for who runs, admit()
  // for who waits. Nobody is admitted while no `prefill` is left, max_num_running() run, the step has max_num_seqs
  // sequences, or blocks were short in this step, and nobody else in this walk after one was refused. After one that was too_long only short ones
  // are asked, to the end of the walk, whoever is admitted meanwhile: long ones keep their order. "Long" is
  // here what WaitingQueue::next() passes over. After one without output was passed_over its siblings are, to
  // the end of the walk, and without being asked: they need as much of the prompt. Who is admitted is not
  // visited again. running_ grows by admissions and may lose its end to preemptions while the walk is in it.
  // Promises (num_promised_blocks) begin at 0 in each walk.
  void walk(Budget& budget);
  // Plans what the budget allows for a running sequence, and takes it out of the budget: the token of one that
  // wants just one comes from `decode` while there is some (in a pipeline only then), everything else is chunk_size() of
  // `prefill`. Nothing for one sequence more than max_num_seqs in this step, nor for one that is of another phase. Room
  // comes from allocate_slots(); in the second walk from blocks_.append(), since those at the end of running_
  // may be planned by then and must not be preempted, and what the first walk planned for the sequence grows
  // (plan_ has one entry for a sequence). Without room nothing is planned; that, or a preemption on the way to
  // it, makes the step short_of_blocks. If it has room but does not get all that it wants, or chunk_size() gave
  // it no token, the blocks that it needs for the rest of its tokens are promised to it.
  void go_on(Sequence& sequence, Budget& budget);

  // 5.2.admit, admission.cpp.
  // Lets a waiting sequence run: blocks for what it shares and a first chunk of the rest (chunk_size()), off
  // waiting_, start_running(), the chunk planned and taken out of the budget. passed_over: what it would share
  // is being computed. too_long, refused: no chunk for it now, and it is long, or not. refused also: a token
  // of it is being sampled (it was preempted since), or there are too few blocks. Enough are: those that it
  // takes, and left free those that the rest of its tokens needs later and, while others run,
  // num_watermark_blocks_ and num_promised_blocks. What it needs later is promised to it.
  // Of its first admission (no preemptions) num_cached_tokens and the totals_ of queried and hit prompt tokens
  // tell. Unless it is admitted no list, block or count has changed.
  Admission admit(Sequence& sequence, Budget& budget);
  // Replaces `shared` by full blocks that hold the sequence's first tokens already: all full blocks of the
  // prompt, from the table of a running sibling (any completion of its request) that has computed these (the
  // prompt's end, in no full block, need not be computed); or a cached prefix; whichever is longer. Where
  // `sequence` has no output the cache cannot hold more than the prompt, and the sibling's are taken. Never all
  // tokens: the last one's logits are needed, so of a prompt of whole blocks that has no output the last is
  // left out. None where prompt_logprobs are asked for: these need every token computed. Nothing is held by it.
  // `prefix` of the sequence counts the blocks of a cached prefix, and no others (forget_table()).
  // False: a running sibling has not computed these full blocks of the prompt, however many it has, and what
  // was found is shorter than they are; the sequence should wait rather than compute them too.
  //
  // A sibling has "computed" what is planned: if it was given its prompt in this very step, its blocks are
  // shared before anything is written into them. That is safe: in every layer the runner stores the K and V of
  // all rows of a step before attention reads any.
  bool find_shared_blocks(Sequence& sequence, BlockTable& shared);
  // How many of the `num_wanted` tokens that a sequence lacks it may compute in this step; 0: it waits. All, if
  // they are at most `prefill` and no limit is in the way: that one is long, in the first walk. Else it is cut,
  // which without chunked prefill is 0. In the second walk it then gets what is left; in the first the step is
  // `limited`, and it gets an even share of what is left for those that may still be cut
  // (max_num_partial_prefills, of which num_partial were), rounded up, a long one no more than the threshold;
  // nothing if as many were cut as may be, or it is long and so were max_long_partial_prefills of them.
  int64_t chunk_size(int64_t num_wanted, Budget& budget) const;
  // `num_tokens` of the `num_wanted` are given out: takes them off `prefill`, and counts a prompt that was cut
  // (num_partial), if it is long in num_long too.
  void take(int64_t num_wanted, int64_t num_tokens, Budget& budget) const;
  int64_t max_num_running() const { return config_.batch.max_num_seqs * config_.pipeline_depth; }
  bool step_is_full() const { return std::ssize(plan_) >= config_.batch.max_num_seqs; }
  bool is_long(int64_t num_tokens) const {
    return config_.long_prefill_token_threshold > 0 && num_tokens > config_.long_prefill_token_threshold;
  }

  // 5.3, preemption.cpp.
  // Lengthens the block table of a running sequence until it has slots for its first `num_tokens` tokens (a
  // total, not an addition). Where blocks are missing the last of running_ is preempted, again and again, in
  // the end the sequence itself; but nobody while blocks are on their way back from a step in flight
  // (deferred_). False: it has no more blocks than before, and computes nothing in this step.
  bool allocate_slots(Sequence& sequence, int64_t num_tokens);
  // Moves the last of running_ to waiting_, with the status preempted, without blocks, with nothing computed
  // and nothing counted in its prefix key (forget_table()). Its tokens and placeholders stay. Counts in
  // num_preemptions, its own and of totals_. The runner, if it knows the sequence (num_known_blocks), learns of it
  // with the next step of its lane: preempted_ids_.
  void preempt_last();
  // Gives the sequence's blocks back, once, and leaves it an empty table of which the runner knows nothing.
  // While a step in flight computes it (num_steps_in_flight) they go to deferred_, until the latest of these
  // steps (last_scheduled_step, of its lane) is collected.
  void release_blocks(Sequence& sequence);

  // 5.5, update.cpp.
  // Applies the answer for one sequence of the step. The step is not in flight for it any more, nor is its
  // placeholder, if it samples; to a sequence that has ended since nothing else happens. Its token is appended
  // (append_token()); instead, kInvalidToken ends the sequence with FinishReason::error, and neither it nor its
  // log probabilities are told. What this step has computed, the first num_computed_after tokens, is cached,
  // unless the token was invalid or the blocks were given up since (`epoch`). The prompt log probabilities of
  // the answer begin at the position num_computed_before; those that were delivered before a preemption
  // (num_prompt_logprobs) are left out. An update is made if there is a token, an end or a prompt log
  // probability to tell. A sequence that ends is finish()ed, but stays in running_: update() takes all of them
  // off at once, deletes those that no step in flight computes, and gives back the blocks that waited for this
  // step of this lane, wherever they stand in deferred_. The step's records go to spare_records_, whose memory the next step
  // uses.
  // Error: another sequence's answer, or not one token where it samples and none where it does not.
  void apply(InFlightSequence& record, SequenceStepOutput& answer);

  // 5.5, finish_and_abort.cpp.
  // Ends a sequence in any state: status, reason, blocks released. One that waits leaves waiting_; who runs is
  // taken off running_ by the caller. The runner, if it knows the sequence (num_known_blocks), is told with the
  // next step of its lane: finished_ids_. The sequence itself stays, see forget_if_done().
  void finish(Sequence& sequence, FinishReason reason);
  // Deletes the sequence from sequences_ if it has ended and no step in flight computes it.
  void forget_if_done(Sequence& sequence);

  // 8.7.scheduler, external_kv.cpp: nothing of it is called without a connector. Of each request the first completion alone
  // loads and is kept (is_first()).
  //
  // What a connector has to say of a waiting sequence before admit() looks at it; none: go on as ever.
  // passed_over: it is to be kept, was never admitted, and may not start (may_not_start_, until the next step); or its first
  // sibling is waiting_for_kv. Else one with do_remote_prefill that was never admitted asks, for the tokens after those
  // that it shares (find_shared_blocks(), which may pass it over too): if there are some, its load starts. Who asked for
  // prompt_logprobs, which need every token computed, or gets none, is unneeded.
  std::optional<Admission> admit_from_outside(Sequence& sequence, const Budget& budget);
  // Blocks for ALL tokens that it has, the shared ones first, so that it can compute its next step when the others have come;
  // off waiting_, waiting_for_kv, num_computed_tokens at what is shared, and told to the connector (never its last token).
  // passed_over: it loads. refused, and nothing has changed: as many load as may run, or there are too few blocks: as in
  // admit(), but while others load the same are left free as while others run.
  Admission start_load(Sequence& sequence, int64_t num_tokens, const Budget& budget);
  // One load is over. Unknown, or over already: ignored. Cancelled: its blocks come back. Else what came counts as computed and
  // cached, no more than was wanted, and its full blocks, and only now, are indexed. Less than was wanted, where the
  // connector says so, ends the sequence (finish(), forget_if_done(), failed_loads_).
  void end_load(const FinishedKvLoad& event);
  // Those whose load is over run, in the order of the policy, while max_num_running() allows it: with the blocks that they
  // have, so that nobody who is refused blocks stands before them. This is their first admission, as admit() counts it.
  void run_loaded();
  // The blocks of a sequence that has ended and that somebody outside still writes or reads leave its table: those of a load
  // that is not over, which is cancelled, and those that the connector holds. One that waits for its first admission is
  // unneeded. Called by finish() before it releases what is left.
  void leave_blocks(Sequence& sequence);
  // A reader needs them no more: they come back, but no earlier than steps in flight that may write them (deferred_).
  // Unknown: ignored.
  void release_held(SequenceId id);
  // Of a collected step, unless the sequence was preempted since: the connector hears what is computed of one that is kept.
  void tell_computed(const InFlightSequence& record);
  // Called by preempt_last() before the blocks of such a sequence are given back: nothing of it is computed any more.
  void tell_preempted(const Sequence& sequence);
  bool is_first(const Sequence& sequence) const {
    return sequence.kv_transfer != nullptr && sequence.completion_index == 0;
  }

  SchedulerConfig config_;
  BlockManager blocks_;
  std::shared_ptr<KvConnector> connector_;
  std::mt19937_64 seeds_;
  int64_t next_step_ = 0;
  SequenceId next_id_ = 0;

  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  WaitingQueue waiting_;
  int64_t num_watermark_blocks_ = 0;    // that admission leaves free: config.watermark of all blocks
  std::vector<Sequence*> running_;      // in the order of the policy
  std::deque<InFlightStep> in_flight_;  // oldest first
  std::vector<DeferredBlocks> deferred_;
  // Of each lane's runner; not sent to it yet.
  using IdsOfLanes = std::array<std::vector<SequenceId>, kNumStepPhases>;
  std::vector<SequenceId>& ids_of(IdsOfLanes& ids, StepPhase lane) { return ids[static_cast<size_t>(lane)]; }
  IdsOfLanes finished_ids_, preempted_ids_;
  // Of the step that is being planned: whose runner computes it; who is in it, any in a mixed one; max_num_batched_tokens, or fewer.
  StepPhase lane_ = StepPhase::any, phase_ = StepPhase::any;
  int64_t num_step_tokens_ = 0;
  bool wants_mixed_ = false, mixes_ = false;  // mix_phases(), and whether it has begun
  bool decodes_lack_blocks_ = false;  // the last decode step was short_of_blocks: nobody is admitted either
  std::vector<SequenceUpdate> updates_;
  std::vector<Planned> plan_;                    // of the step that is being planned, in batch order
  std::vector<InFlightSequence> spare_records_;  // a collected step's, for the next one
  BlockTable shared_blocks_, cached_blocks_;     // scratch of admit()
  SchedulerStats totals_;                        // the counts since the start

  // With a connector:
  struct Load {
    Sequence* sequence = nullptr;  // waiting_for_kv
    int64_t num_tokens = 0;        // that are wanted from outside
    bool over = false;             // nothing is written any more; it waits for a seat among those that run
  };
  struct HeldBlocks {
    std::vector<int32_t> block_table;
    int64_t num_tokens = 0;                          // that are computed in them
    int64_t last_scheduled_step = -1;                // which may write them
    std::shared_ptr<const KvTransferParams> answer;  // where they are
  };
  std::vector<Load> loads_;                   // in the order of their start
  std::vector<FinishedKvLoad> failed_loads_;  // that have ended their sequences; not told yet
  // Of sequences that ended meanwhile, until the connector says that nothing is written any more.
  std::unordered_map<SequenceId, std::vector<int32_t>> cancelled_loads_;
  std::unordered_map<SequenceId, HeldBlocks> held_;  // for readers, of sequences that have ended
  bool may_not_start_ = false;                       // the connector passed over a prompt in the last step

  int64_t num_batch_rows_ = 0;           // static batching: rows of the batch, finished ones included
  int64_t num_prompt_padding_rows_ = 0;  // static batching: padding of its prompts, still to be computed
  std::vector<SequenceId>
      start_over_;  // recompute_everything: what has sampled, to be computed from the start
};

}  // namespace ladder
