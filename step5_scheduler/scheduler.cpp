#include "step5_scheduler/scheduler.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step3_sequence/prefix/hash_prefix_index.h"

namespace ladder {

namespace {

SchedulerConfig checked(SchedulerConfig config) {
  const auto at_least_one = [](const char* name, int64_t value) {
    LADDER_CHECK(value >= 1, "{} must be at least 1, got {}", name, value);
  };
  at_least_one("max-num-seqs", config.batch.max_num_seqs);
  at_least_one("max-num-batched-tokens", config.batch.max_num_batched_tokens);
  at_least_one("max-model-len", config.batch.max_model_len);
  at_least_one("num_mixed_step_tokens", config.num_mixed_step_tokens);
  at_least_one("the vocabulary size", config.vocab_size);
  at_least_one("block-size", config.batch.block_size);
  at_least_one("num-kv-blocks", config.batch.num_kv_blocks);
  LADDER_CHECK(
      config.enable_chunked_prefill || config.batch.max_num_batched_tokens >= config.batch.max_model_len,
      "without chunked prefill max-num-batched-tokens ({}) must be at least max-model-len ({}), so that a "
      "sequence of any length can be computed in one step",
      config.batch.max_num_batched_tokens, config.batch.max_model_len);
  at_least_one("max-num-partial-prefills", config.max_num_partial_prefills);
  LADDER_CHECK(config.max_num_partial_prefills == 1 || config.enable_chunked_prefill,
               "max-num-partial-prefills {} needs chunked prefill", config.max_num_partial_prefills);
  LADDER_CHECK(config.max_long_partial_prefills >= 1 &&
                   config.max_long_partial_prefills <= config.max_num_partial_prefills,
               "max-long-partial-prefills must be between 1 and max-num-partial-prefills ({}), got {}",
               config.max_num_partial_prefills, config.max_long_partial_prefills);
  LADDER_CHECK(config.long_prefill_token_threshold >= 0 &&
                   config.long_prefill_token_threshold <= config.batch.max_model_len,
               "long-prefill-token-threshold must be between 0 and max-model-len ({}), got {}",
               config.batch.max_model_len, config.long_prefill_token_threshold);
  LADDER_CHECK(config.long_prefill_token_threshold == 0 || config.enable_chunked_prefill,
               "long-prefill-token-threshold {} needs chunked prefill", config.long_prefill_token_threshold);
  if (config.max_num_partial_prefills > 1 && config.long_prefill_token_threshold == 0)
    config.long_prefill_token_threshold = std::max<int64_t>(1, config.batch.max_model_len * 4 / 100);
  LADDER_CHECK(config.max_logprobs >= -1, "max-logprobs must be at least 0, or -1 for no limit, got {}",
               config.max_logprobs);
  LADDER_CHECK(config.watermark >= 0 && config.watermark < 1,
               "watermark must be at least 0 and below 1, got {}", config.watermark);
  for (const int32_t id : config.eos_token_ids)
    LADDER_CHECK(id >= 0 && id < config.vocab_size, "end token {} is not in the vocabulary of {} tokens", id,
                 config.vocab_size);
  return config;
}

// The baselines know nothing of reuse.
std::unique_ptr<PrefixIndex> make_prefix_index(const SchedulerConfig& config,
                                               std::unique_ptr<PrefixIndex> index) {
  if (!config.enable_prefix_caching || config.static_batching || config.recompute_everything) return nullptr;
  if (index) return index;
  return std::make_unique<HashPrefixIndex>(config.batch.num_kv_blocks, config.batch.block_size,
                                           std::make_unique<Sha256BlockHasher>(config.prefix_cache_seed));
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config, std::unique_ptr<PrefixIndex> index,
                     std::shared_ptr<KvConnector> connector)
    : config_(checked(std::move(config))),
      blocks_(config_.batch.num_kv_blocks, config_.batch.block_size,
              make_prefix_index(config_, std::move(index))),
      connector_(std::move(connector)),
      seeds_(std::random_device{}()),
      waiting_(config_.policy, config_.long_prefill_token_threshold),
      num_watermark_blocks_(
          static_cast<int64_t>(config_.watermark * static_cast<double>(blocks_.num_blocks()))) {
  config_.has_kv_connector |= connector_ != nullptr && connector_->connects_engines();
  LADDER_CHECK(connector_ == nullptr || !(config_.static_batching || config_.recompute_everything),
               "static batching knows nothing of keys and values from another engine: a KV connector needs "
               "continuous batching");
  LADDER_CHECK(
      !config_.phase_lanes || !(config_.static_batching || config_.recompute_everything),
      "static batching computes prompts and answers one after the other, phase-lanes beside each other: "
      "expected one of them");
  LADDER_CHECK(!config_.phase_lanes || config_.pipeline_depth == 1,
               "lanes for prompts and answers: expected one pipeline stage, got {}", config_.pipeline_depth);
  LADDER_CHECK(
      !config_.phase_lanes || connector_ == nullptr,
      "lanes for prompts and answers within one engine: a KV connector hands prompts to another one");
}

Scheduler::~Scheduler() {
  if (connector_ != nullptr) connector_->abandon();
}

void Scheduler::check(const std::vector<int32_t>& prompt_token_ids, const SamplingParams& sampling) const {
  validate_sampling_params(sampling, config_.vocab_size);
  check_max_logprobs(sampling, config_.vocab_size, config_.max_logprobs);
  validate_prompt(prompt_token_ids, config_.vocab_size);
  const auto prompt = std::ssize(prompt_token_ids);
  LADDER_CHECK(prompt < config_.batch.max_model_len,
               "the prompt has {} tokens; with max-model-len {} it may have at most {}", prompt,
               config_.batch.max_model_len, config_.batch.max_model_len - 1);
  // The last token is sampled and never computed: it needs no slot. What fits alone can always be run in the
  // end, by preempting everyone else; what does not would be preempted for ever.
  const int64_t max_tokens = max_tokens_of(sampling, prompt);
  const int64_t needed = blocks_.blocks_for(prompt + max_tokens - 1);
  LADDER_CHECK(needed <= config_.batch.num_kv_blocks,
               "a prompt of {} tokens with max_tokens {} needs {} KV blocks of {} tokens; the cache has {}",
               prompt, max_tokens, needed, config_.batch.block_size, config_.batch.num_kv_blocks);
}

int64_t Scheduler::max_tokens_of(const SamplingParams& sampling, int64_t num_prompt_tokens) const {
  const int64_t room = config_.batch.max_model_len - num_prompt_tokens;
  // Without a limit of its own: to the end of max_model_len, or of what the cache holds for one sequence.
  const int64_t slots = blocks_.num_blocks() * config_.batch.block_size - num_prompt_tokens + 1;
  return std::min(sampling.max_tokens.value_or(std::max<int64_t>(slots, 1)), room);
}

std::vector<SequenceId> Scheduler::add(std::vector<int32_t> prompt_token_ids, const SamplingParams& sampling,
                                       std::shared_ptr<const KvTransferParams> kv_transfer) {
  check(prompt_token_ids, sampling);
  LADDER_CHECK(kv_transfer == nullptr || connector_ != nullptr,
               "a sequence has kv_transfer, and there is no connector");
  if (connector_ != nullptr) kv_transfer = connector_->params_of(std::move(kv_transfer));
  SamplingParams own = sampling;
  own.max_tokens = max_tokens_of(sampling, std::ssize(prompt_token_ids));
  if (!own.seed) own.seed = seeds_();
  if (own.min_tokens > 0) {
    own.all_stop_token_ids = own.stop_token_ids;
    own.all_stop_token_ids.insert(own.all_stop_token_ids.end(), config_.eos_token_ids.begin(),
                                  config_.eos_token_ids.end());
  }

  std::vector<SequenceId> ids;
  for (std::unique_ptr<Sequence>& sequence : make_sequences(std::move(prompt_token_ids), own, next_id_)) {
    ids.push_back(sequence->id);
    sequence->kv_transfer = kv_transfer;
    if (is_first(*sequence) && kv_transfer->do_remote_prefill) connector_->on_queued(*sequence);
    waiting_.insert(sequence.get());
    sequences_.emplace(sequence->id, std::move(sequence));
  }
  next_id_ += std::ssize(ids);
  return ids;
}

void Scheduler::schedule(SchedulerOutput& output, StepPhase phase) {
  LADDER_CHECK((phase != StepPhase::any) == config_.phase_lanes,
               "a step of one phase is for a scheduler with phase_lanes, and no other step");
  may_not_start_ = false;
  if (connector_ != nullptr) take_kv_events();
  begin_step(output);
  if (!begin_lane(phase)) return;
  if (config_.static_batching || config_.recompute_everything) {
    output.num_static_padding_rows = schedule_static();
  } else {
    // What was loaded in part lacks more than one token, and finds no budget beside those that lack one. If such a one then
    // preempts itself, nothing is planned though there is enough to do.
    int64_t num_preemptions = 0;
    do {
      num_preemptions = totals_.num_preemptions;
      schedule_continuous();
    } while (connector_ != nullptr && plan_.empty() && totals_.num_preemptions > num_preemptions);
  }
  end_step(output);
}

void Scheduler::begin_step(SchedulerOutput& output) {
  output.scheduled.clear();
  output.new_sequences.clear();
  output.continued.clear();
  output.finished.clear();
  output.preempted.clear();
  output.total_num_tokens = 0;
  output.num_static_padding_rows = 0;
  output.step = next_step_;
  plan_.clear();
}

void Scheduler::end_step(SchedulerOutput& output) {
  if (plan_.empty()) return;
  std::vector<InFlightSequence> records = std::move(spare_records_);
  records.clear();
  for (const Planned& planned : plan_) emit(planned, output, records);
  in_flight_.push_back({next_step_, lane_, std::move(records)});
  ++next_step_;
  // What the runner has to forget waits here until there is a step to tell it with.
  output.finished.swap(ids_of(finished_ids_, lane_));
  output.preempted.swap(ids_of(preempted_ids_, lane_));
}

int64_t Scheduler::num_wanted_tokens(const Sequence& sequence) const {
  if (config_.pipeline_depth > 1 && sequence.num_placeholders > 0) return 0;
  // Everything it may still get is being sampled already.
  if (sequence.num_output_tokens() + sequence.num_placeholders >= *sequence.sampling.max_tokens) return 0;
  return sequence.num_uncomputed_tokens();
}

void Scheduler::start_running(Sequence& sequence) {
  sequence.status = SequenceStatus::running;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, RunsBefore{config_.policy}),
                  &sequence);
}

void Scheduler::plan(Sequence& sequence, int64_t num_tokens) {
  sequence.num_computed_tokens += num_tokens;
  plan_.push_back({&sequence, num_tokens});
}

// Completions whose first sibling the runner knows name it instead of sending the prompt once more.
NewSequence Scheduler::new_sequence(const Sequence& sequence, int64_t num_computed_tokens) const {
  NewSequence added;
  added.id = sequence.id;
  added.num_prompt_tokens = sequence.num_prompt_tokens;
  added.sampling = sequence.sampling;
  added.block_table = sequence.block_table;
  added.num_computed_tokens = num_computed_tokens;
  for (SequenceId id = sequence.first_sibling; id < sequence.first_sibling + sequence.sampling.n; ++id) {
    const Sequence* sibling = sequence.sampling.n > 1 ? find(id) : nullptr;
    if (sibling == nullptr || sibling->num_known_blocks == 0 || sibling->lane != lane_) continue;
    added.prompt_of = id;
    break;
  }
  added.token_ids.reserve((added.prompt_of < 0 ? sequence.num_prompt_tokens : 0) +
                          sequence.num_output_tokens());
  if (added.prompt_of < 0) added.token_ids = *sequence.prompt_token_ids;
  added.token_ids.insert(added.token_ids.end(), sequence.output_token_ids.begin(),
                         sequence.output_token_ids.end());
  return added;
}

void Scheduler::emit(const Planned& planned, SchedulerOutput& output,
                     std::vector<InFlightSequence>& records) {
  Sequence& sequence = *planned.sequence;
  const int64_t num_computed_before = sequence.num_computed_tokens - planned.num_tokens;
  enter_lane(sequence);
  output.scheduled.push_back({sequence.id, planned.num_tokens, {}});
  output.total_num_tokens += planned.num_tokens;
  if (sequence.num_known_blocks > 0)
    output.continued.push_back(
        {sequence.id,
         {sequence.block_table.begin() + sequence.num_known_blocks, sequence.block_table.end()},
         num_computed_before});
  else
    output.new_sequences.push_back(new_sequence(sequence, num_computed_before));
  sequence.num_known_blocks = std::ssize(sequence.block_table);

  const bool samples = sequence.num_uncomputed_tokens() == 0;
  if (samples) ++sequence.num_placeholders;
  ++sequence.num_steps_in_flight;
  sequence.last_scheduled_step = output.step;
  records.push_back(
      {&sequence, num_computed_before, sequence.num_computed_tokens, sequence.num_preemptions, samples});
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = totals_;
  stats.num_waiting = waiting_.size();
  stats.num_running = std::ssize(running_);
  stats.num_blocks = blocks_.num_blocks();
  stats.num_used_blocks = blocks_.num_used_blocks();
  stats.num_cached_blocks = blocks_.num_cached_blocks();
  stats.num_waiting_for_kv = std::ssize(loads_);
  if (connector_ != nullptr) stats.kv_transfer = connector_->stats();
  // Slots that hold nothing lie at the end of tables, in blocks that no other table has: so blocks that are
  // shared are counted once, as they should.
  int64_t idle_slots = 0;
  for (const Sequence* sequence : running_)
    idle_slots +=
        std::ssize(sequence->block_table) * config_.batch.block_size - sequence->num_computed_tokens;
  const auto count_idle = [&](const BlockTable& table) {
    for (const int32_t id : table)
      if (blocks_.ref_count(id) == 1) idle_slots += config_.batch.block_size;
  };
  for (const DeferredBlocks& deferred : deferred_) count_idle(deferred.block_table);
  for (const auto& [id, table] : cancelled_loads_) count_idle(table);
  for (const Load& load : loads_)
    idle_slots += std::ssize(load.sequence->block_table) * config_.batch.block_size -
                  load.sequence->num_computed_tokens;
  for (const auto& [id, held] : held_) {
    stats.num_held_blocks += std::ssize(held.block_table);
    idle_slots += std::ssize(held.block_table) * config_.batch.block_size - held.num_tokens;
  }
  stats.num_live_tokens = stats.num_used_blocks * config_.batch.block_size - idle_slots;
  return stats;
}

int64_t Scheduler::num_waiting_tokens() const {
  int64_t num_tokens = 0;
  for (Sequence* waiting = waiting_.next(); waiting != nullptr; waiting = waiting_.next(waiting))
    num_tokens += waiting->num_tokens();
  return num_tokens;
}

int64_t Scheduler::num_admissible_tokens() const {
  int64_t num_places = max_num_running() - std::ssize(running_), num_tokens = 0;
  int64_t num_blocks = blocks_.num_free_blocks() - num_watermark_blocks_;
  for (const Sequence* sequence : running_)
    num_blocks -=
        std::max<int64_t>(blocks_.blocks_for(sequence->num_tokens()) - std::ssize(sequence->block_table), 0);
  for (Sequence* next = waiting_.next(); next != nullptr && num_places > 0;
       next = waiting_.next(next), --num_places) {
    num_blocks -= blocks_.blocks_for(next->num_tokens());
    if (num_blocks < 0) break;
    num_tokens += next->num_tokens();
  }
  return num_tokens;
}

std::vector<const BlockTable*> Scheduler::block_tables() const {
  std::vector<const BlockTable*> tables;
  for (const auto& [id, sequence] : sequences_) tables.push_back(&sequence->block_table);
  for (const DeferredBlocks& deferred : deferred_) tables.push_back(&deferred.block_table);
  for (const auto& [id, table] : cancelled_loads_) tables.push_back(&table);
  for (const auto& [id, held] : held_) tables.push_back(&held.block_table);
  return tables;
}

std::vector<SequenceId> Scheduler::waiting_ids(int64_t at_most) const {
  std::vector<SequenceId> ids;
  for (Sequence* next = waiting_.next(); next != nullptr && std::ssize(ids) < at_most;
       next = waiting_.next(next))
    ids.push_back(next->id);
  return ids;
}

const Sequence* Scheduler::find(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

}  // namespace ladder
