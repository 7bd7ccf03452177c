#include "step4_runner/model_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

namespace ladder {

namespace {

constexpr int64_t kSpareBytes = int64_t{16} << 20;

class Stopwatch {
 public:
  double lap() {  // seconds since the last lap
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(start_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

ModelRunner::ModelRunner(const OpContext& ctx, const RunnerConfig& config, std::unique_ptr<Model> model)
    : config_(config),
      arena_(std::make_unique<Arena>(ctx.device)),
      ctx_(ctx),
      model_(std::move(model)),
      kv_caches_(
          allocate_kv_caches(model_->kv_cache_specs(), config.num_kv_blocks, config.block_size, ctx.device)),
      batch_(config, model_->spec().vocab_size) {
  ctx_.arena = arena_.get();
}

void ModelRunner::prepare(const SchedulerOutput& step) {
  hidden_ = {};
  step_scope_.reset();
  step_scope_.emplace(*arena_);
  step_ = step.step;
  batch_.prepare(step);
}

// >>> task 4.4: run the model over the batch, sample, and take the tokens in
Tensor ModelRunner::gather_rows(const Tensor& hidden, std::span<const int64_t> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  if (rows.back() - rows.front() == count - 1)
    return hidden.narrow(0, rows.front(), count);  // rows only ascend
  Tensor gathered = arena_->take({count, hidden.dim(1)}, hidden.dtype());
  for (int64_t i = 0; i < count; ++i)
    gathered.select(0, i).copy_from(hidden.select(0, rows[static_cast<size_t>(i)]));
  return gathered;
}

Tensor ModelRunner::run() {
  ModelInput input;
  input.input_ids = batch_.input_ids();
  input.positions = batch_.positions();
  input.attention = batch_.attention();
  input.kv_caches = kv_caches_;
  hidden_ = model_->forward(ctx_, input);
  if (batch_.logits_indices().empty()) return {};
  return model_->compute_logits(ctx_, gather_rows(hidden_, batch_.logits_indices()));
}

StepOutput ModelRunner::sample(const Tensor& logits) {
  StepOutput output;
  output.step = step_;
  const auto sampled = batch_.sampled_sequences();
  Tensor token_ids = arena_->take({static_cast<int64_t>(sampled.size())}, DType::i32);
  std::vector<PositionLogprobs> logprobs;
  if (!sampled.empty()) {
    if (is_first_rank()) logprobs = sampler_.sample(ctx_, logits, sampled, token_ids);
    tp_group(ctx_).broadcast(ctx_, token_ids, 0);
  }
  size_t next = 0;
  for (const BatchSequence* sequence : batch_.sequences()) {
    SequenceStepOutput& result = output.sequences.emplace_back();
    result.id = sequence->id;
    if (!sequence->yields_token()) continue;
    result.token_ids.push_back(token_ids.data<int32_t>()[next]);
    if (sequence->sampling.logprobs >= 0 && !logprobs.empty())
      result.logprobs.push_back(std::move(logprobs[next]));
    ++next;
  }
  add_prompt_logprobs(output);
  batch_.append({token_ids.data<int32_t>(), sampled.size()});
  return output;
}
// <<< task 4.4

// >>> task 4.3: log probabilities of the prompt tokens that this step predicts, the LM head in chunks
void ModelRunner::add_prompt_logprobs(StepOutput& output) {
  std::vector<int64_t> rows, top;
  std::vector<int32_t> chosen;
  std::vector<size_t> owner;
  for (size_t i = 0; i < batch_.sequences().size(); ++i) {
    const BatchSequence& sequence = *batch_.sequences()[i];
    if (sequence.sampling.prompt_logprobs < 0) continue;
    const int64_t begin = sequence.num_computed_tokens;
    const int64_t end = std::min(begin + sequence.num_scheduled_tokens, sequence.num_prompt_tokens - 1);
    for (int64_t position = begin; position < end; ++position) {
      rows.push_back(batch_.query_start(static_cast<int64_t>(i)) + position - begin);
      chosen.push_back(sequence.token_ids[static_cast<size_t>(position) + 1]);
      top.push_back(sequence.sampling.prompt_logprobs);
      owner.push_back(i);
    }
  }
  for (size_t first = 0; first < rows.size(); first += kLogitsRows) {
    ArenaScope scope(*arena_);
    const size_t count = std::min<size_t>(kLogitsRows, rows.size() - first);
    Tensor logits = model_->compute_logits(ctx_, gather_rows(hidden_, std::span(rows).subspan(first, count)));
    if (!is_first_rank()) continue;
    auto logprobs = position_logprobs(ctx_, logits, std::span(chosen).subspan(first, count),
                                      std::span(top).subspan(first, count));
    for (size_t r = 0; r < count; ++r)
      output.sequences[owner[first + r]].prompt_logprobs.push_back(std::move(logprobs[r]));
  }
}
// <<< task 4.3

StepOutput ModelRunner::execute(const SchedulerOutput& step) {
  Stopwatch phase;
  prepare(step);
  const double prepare_seconds = phase.lap();
  const Tensor logits = run();
  const double forward_seconds = phase.lap();
  StepOutput output = sample(logits);
  output.prepare_seconds = prepare_seconds;
  output.forward_seconds = forward_seconds;
  output.sample_seconds = phase.lap();
  output.execute_seconds = output.prepare_seconds + output.forward_seconds + output.sample_seconds;
  return output;
}

// >>> task 4.2: run the largest step, give the arena what it took in one piece, and freeze it
void ModelRunner::warm_up() {
  // One piece, with room to spare, first: memory that grows piece by piece leaves gaps, which the peak would
  // count.
  const MemoryPlan plan = predict_memory(model_->spec(), config_);
  arena_->reserve(2 * plan.activations / config_.tensor_parallel_size);

  // As many rows as a step may have, on as many sequences; each asks for everything that the sampler can do.
  SchedulerOutput step;
  const int64_t num_seqs = std::min(config_.max_num_seqs, config_.max_num_batched_tokens);
  SamplingParams everything;
  everything.seed = 0;
  everything.min_p = 0.01;
  everything.top_k = 50;
  everything.top_p = 0.9;
  everything.repetition_penalty = 1.1;
  everything.presence_penalty = everything.frequency_penalty = 0.1;
  everything.logprobs = everything.prompt_logprobs = kMaxLogprobs;
  for (int64_t i = 0; i < num_seqs; ++i) {
    NewSequence sequence;
    sequence.id = i;
    const int64_t share =
        config_.max_num_batched_tokens / num_seqs + (i < config_.max_num_batched_tokens % num_seqs ? 1 : 0);
    sequence.num_prompt_tokens = std::min(share, config_.max_model_len);
    sequence.token_ids.assign(static_cast<size_t>(sequence.num_prompt_tokens), 0);
    sequence.sampling = everything;
    sequence.block_table.assign(static_cast<size_t>(config_.max_blocks_per_seq()), 0);
    step.scheduled.push_back({i, sequence.num_prompt_tokens, {}});
    step.total_num_tokens += sequence.num_prompt_tokens;
    step.new_sequences.push_back(std::move(sequence));
  }
  prepare(step);
  // All of them stand in block 0: nothing may be written there.
  Tensor slots = batch_.attention().slot_mapping;
  std::fill_n(slots.data<int64_t>(), slots.numel(), -1);
  const Tensor logits = run();
  if (is_first_rank()) {
    // A penalty's cost grows with the tokens that a sequence has used: at most every one of the vocabulary.
    const int64_t used = std::min(config_.max_model_len, model_->spec().vocab_size);
    std::vector<int32_t> all(static_cast<size_t>(used));
    std::iota(all.begin(), all.end(), 0);
    for (BatchSequence* sequence : batch_.sampled_sequences()) sequence->counts.update(all, used);
  }
  sample(logits);

  step_scope_.reset();
  activation_bytes_ = arena_->peak_bytes();
  arena_ = std::make_unique<Arena>(ctx_.device);
  ctx_.arena = arena_.get();
  // With room to spare: an operator's scratch need not grow evenly with the rows, and untouched memory costs
  // nothing.
  arena_->reserve(activation_bytes_ + activation_bytes_ / 4 + kSpareBytes);
  arena_->freeze();
  batch_ = Batch(config_, model_->spec().vocab_size);
}
// <<< task 4.2

MemoryPlan ModelRunner::memory() const {
  MemoryPlan plan;
  plan.weights = model_->weight_bytes();
  for (const KvCacheView& cache : kv_caches_) plan.kv += cache.k.nbytes() + cache.v.nbytes();
  plan.activations = activation_bytes_;
  return plan;
}

}  // namespace ladder
