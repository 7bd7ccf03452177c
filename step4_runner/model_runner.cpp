#include "step4_runner/model_runner.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/core/profile.h"
#include "step1_layers/embedding/embedding.h"

namespace ladder {

namespace {

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
      batch_(config.batch, model_->spec().vocab_size),
      inputs_(ctx.device, config.batch) {
  ctx_.arena = arena_.get();
  if (!config_.num_kv_blocks_is_predicted) allocate_cache();
}

ModelRunner::~ModelRunner() {
  try {
    device_synchronize(ctx_.device, ctx_.stream);
  } catch (const std::exception&) {
    // The device failed; whoever collected a step has seen it.
  }
}

// >>> task 4.4: run the model over the batch, sample, and take the tokens in
void ModelRunner::begin(const SchedulerOutput& step) {
  hidden_ = logits_ = {};
  step_scope_.reset();
  step_scope_.emplace(*arena_);
  launched_ = std::make_shared<LaunchedStep>();
  launched_->step = step.step;
  take_in_tokens(ctx_.device.is_cpu() ? 0 : kMaxInFlight - 1);  // the device can fill in the last one's
  batch_.prepare(step);
  // Penalties count the tokens of the step before, too: then it has to be waited for.
  if (std::any_of(batch_.sampled_sequences().begin(), batch_.sampled_sequences().end(),
                  [](const BatchSequence* sequence) { return Sampler::needs_tokens(sequence->sampling); }))
    take_in_tokens(0);
}

void ModelRunner::prepare(const SchedulerOutput& step) {
  const ProfileRange range("4.1 prepare");
  begin(step);
  stage();
}

Tensor ModelRunner::gather_rows(const Tensor& hidden, std::span<const int64_t> rows,
                                const Tensor& device_rows) {
  const auto count = static_cast<int64_t>(rows.size());
  if (rows.back() - rows.front() == count - 1)
    return hidden.narrow(0, rows.front(), count);  // rows only ascend
  Tensor gathered = arena_->take({count, hidden.dim(1)}, hidden.dtype());
  run_variant("embedding", embedding_variants(), ctx_, EmbeddingArgs{device_rows, hidden, 0, gathered});
  return gathered;
}

ModelInput ModelRunner::model_input() const {
  ModelInput input;
  input.input_ids = inputs_.input_ids();
  input.positions = inputs_.positions();
  input.attention = inputs_.attention();
  input.kv_caches = kv_caches_;
  return input;
}

Tensor ModelRunner::run() {
  const ProfileRange range("4.4 run");
  if (graph_ != nullptr) {
    arena_->take({graph_->arena_bytes}, DType::u8);  // what the replay leaves in use
    graph_->graph.replay(ctx_.stream);
    if (decodes_) return logits_ = graph_->output.rows(plan_.rows);
    hidden_ = graph_->output;
  } else {
    hidden_ = model_->forward(ctx_, model_input());
  }
  if (!batch_.logits_indices().empty())
    logits_ =
        model_->compute_logits(ctx_, gather_rows(hidden_, batch_.logits_indices(), inputs_.logits_indices()));
  return logits_;
}

std::shared_ptr<const LaunchedStep> ModelRunner::launch_sampling(const Tensor& logits) {
  const ProfileRange range("4.3 sample");
  const auto sampled = batch_.sampled_sequences();
  const Tensor token_ids = inputs_.sampled_ids(std::ssize(sampled));
  if (ctx_.device.is_cpu() && is_first_rank()) plan_ = sampler_.plan(ctx_, sampled, upload_);
  if (!sampled.empty()) {
    if (is_first_rank()) launched_->logprobs = sampler_.sample(ctx_, logits, plan_, token_ids, download_);
    tp_group(ctx_).broadcast(ctx_, token_ids, 0);
  }
  launched_->token_ids = download_.take(ctx_, token_ids);
  launch_prompt_logprobs();
  launched_->done->record(ctx_.stream);
  upload_.keep_until(launched_->done);
  download_.keep_until(launched_->done);

  for (const BatchSequence* sequence : batch_.sequences())
    launched_->rows.push_back(
        {sequence->id, sequence->yields_token(), sequence->sampling.logprobs.has_value()});
  launched_->pending = batch_.advance();
  unknown_.push_back(launched_);
  return launched_;
}

StepOutput ModelRunner::sample(const Tensor& logits) {
  return launch_sampling(logits)->collect();
}

std::shared_ptr<const LaunchedStep> ModelRunner::launch(const SchedulerOutput& step) {
  Stopwatch phase;
  prepare(step);
  const double prepare_seconds = phase.lap();
  const Tensor logits = run();
  const double forward_seconds = phase.lap();
  // The host's part of the last two is all of them on the CPU; on a GPU the events say how long they took.
  launched_->prepare_seconds = prepare_seconds;
  if (ctx_.device.is_cpu()) launched_->forward_seconds = forward_seconds;
  launch_sampling(logits);
  if (ctx_.device.is_cpu()) launched_->sample_seconds = phase.lap();
  return launched_;
}

void ModelRunner::take_in_tokens(size_t num_left_unknown) {
  for (; unknown_.size() > num_left_unknown; unknown_.pop_front())
    batch_.fill(unknown_.front()->pending, unknown_.front()->tokens());
}
// <<< task 4.4

// >>> task 4.3: log probabilities of the prompt tokens that this step predicts, the LM head in chunks
void ModelRunner::collect_prompt_positions() {
  prompt_ = {};
  for (size_t i = 0; i < batch_.sequences().size(); ++i) {
    const BatchSequence& sequence = *batch_.sequences()[i];
    if (!sequence.sampling.prompt_logprobs) continue;
    const int64_t begin = sequence.num_computed_tokens;
    const int64_t end = std::min(begin + sequence.num_scheduled_tokens, sequence.num_prompt_tokens - 1);
    for (int64_t position = begin; position < end; ++position) {
      prompt_.rows.push_back(batch_.query_start(static_cast<int64_t>(i)) + position - begin);
      prompt_.chosen.push_back(sequence.token_ids[static_cast<size_t>(position) + 1]);
      prompt_.top.push_back(num_best(*sequence.sampling.prompt_logprobs, model_->spec().vocab_size));
      prompt_.owner.push_back(i);
    }
  }
}

void ModelRunner::launch_prompt_logprobs() {
  const auto count = static_cast<int64_t>(prompt_.rows.size());
  for (int64_t first = 0; first < count; first += kLogitsRows) {
    ArenaScope scope(*arena_);
    const int64_t rows = std::min(kLogitsRows, count - first);
    const auto part = [&]<class T>(const std::vector<T>& all) {
      return std::span(all).subspan(static_cast<size_t>(first), static_cast<size_t>(rows));
    };
    const Tensor logits = model_->compute_logits(
        ctx_, gather_rows(hidden_, part(prompt_.rows), prompt_.device_rows.narrow(0, first, rows)));
    if (!is_first_rank()) continue;
    const auto owner = part(prompt_.owner);
    launched_->prompt_logprobs.push_back(
        {position_logprobs(ctx_, logits, prompt_.device_chosen.narrow(0, first, rows), part(prompt_.top),
                           download_),
         {owner.begin(), owner.end()}});
  }
}
// <<< task 4.3

// >>> task 4.5: everything that a step needs travels in one copy
void ModelRunner::stage() {
  const auto sampled = batch_.sampled_sequences();
  const int64_t rows = batch_.input_ids().dim(0);
  collect_prompt_positions();

  graph_ = find_graph();
  const int64_t padded = graph_ != nullptr ? graph_->rows : rows;
  const auto num_prompt = static_cast<int64_t>(prompt_.rows.size());
  const int64_t bytes = ctx_.device.is_cpu()
                            ? 0
                            : inputs_.upload_bytes(batch_, padded) + sampler_.upload_bytes(sampled) +
                                  2 * (num_prompt * 4 + StepUpload::kAlignment);
  upload_.begin(ctx_, bytes);
  download_.begin(ctx_, download_bytes());
  launched_->begun.record(ctx_.stream);

  if (graph_ != nullptr)
    inputs_.load_padded(batch_, padded, most_seqs(padded), upload_);
  else
    inputs_.load(batch_, upload_);
  if (num_prompt > 0) {
    const auto staged_rows = upload_.take<int32_t>(num_prompt);
    const auto staged_chosen = upload_.take<int32_t>(num_prompt);
    std::copy(prompt_.rows.begin(), prompt_.rows.end(), staged_rows.host);
    std::copy(prompt_.chosen.begin(), prompt_.chosen.end(), staged_chosen.host);
    prompt_.device_rows = staged_rows.device;
    prompt_.device_chosen = staged_chosen.device;
  }
  // On the CPU its memory comes from the arena, and lasts no longer than it must: from sample() on.
  if (!ctx_.device.is_cpu()) plan_ = sampler_.plan(ctx_, sampled, upload_);
  upload_.send(ctx_);
  inputs_.unpack(ctx_);
}

int64_t ModelRunner::download_bytes() const {
  int64_t bytes = 2 * StepUpload::kAlignment;
  const auto pieces = [&](int64_t rows, int64_t top) {
    bytes += rows * logprob_bytes(top) + 4 * (rows / kLogitsRows + 1) * StepUpload::kAlignment;
  };
  int64_t sampled_top = -1, prompt_top = -1;
  for (const BatchSequence* sequence : batch_.sampled_sequences())
    if (const auto k = sequence->sampling.logprobs)
      sampled_top = std::max(sampled_top, num_best(*k, model_->spec().vocab_size));
  for (const int64_t top : prompt_.top) prompt_top = std::max(prompt_top, top);
  const auto sampled = static_cast<int64_t>(batch_.sampled_sequences().size());
  bytes += sampled * 4;
  if (sampled_top >= 0) pieces(sampled, sampled_top);
  if (prompt_top >= 0) pieces(static_cast<int64_t>(prompt_.rows.size()), prompt_top);
  return bytes;
}
// <<< task 4.5

// >>> task 4.6: choose a graph, capture them all, and replay one alone
const StepGraphs::Graph* ModelRunner::find_graph() {
  const AttentionMetadata& step = batch_.attention();
  const int64_t rows = batch_.input_ids().dim(0);
  // One token each, all of which yield one.
  decodes_ = step.max_query_len == 1 && prompt_.rows.empty() &&
             std::ssize(batch_.sampled_sequences()) == step.num_seqs;
  if (decodes_) return decode_graphs_.find(rows);
  const bool fits = step.max_query_len > 1 && step.max_seq_len <= kMostMixedKeys;
  return fits ? mixed_graphs_.find(rows) : nullptr;
}

void ModelRunner::capture_graphs() {
  // A step of nothing but spare rows.
  begin({});
  const auto stage_spare_rows = [&](int64_t rows) {
    upload_.begin(ctx_, inputs_.upload_bytes(batch_, rows));
    inputs_.load_padded(batch_, rows, most_seqs(rows), upload_);
    upload_.send(ctx_);
    inputs_.unpack(ctx_);
  };
  const std::vector<int64_t> decode = decode_graph_sizes(most_seqs(config_.batch.max_num_batched_tokens));
  stage_spare_rows(decode.back());
  decode_graphs_.capture(ctx_, decode, [&](int64_t rows) {
    inputs_.view_padded(rows, rows, 1, config_.batch.max_model_len);
    return model_->compute_logits(ctx_, model_->forward(ctx_, model_input()));
  });
  const std::vector<int64_t> mixed = mixed_graph_sizes(config_.batch.max_num_batched_tokens);
  stage_spare_rows(mixed.back());
  mixed_graphs_.capture(ctx_, mixed, [&](int64_t rows) {
    inputs_.view_padded(rows, most_seqs(rows), rows, kMostMixedKeys);
    return model_->forward(ctx_, model_input());
  });
}

double ModelRunner::replay_last_step(int64_t count) {
  LADDER_CHECK(graph_ != nullptr && decodes_, "the last step was not replayed from a decode graph");
  DeviceEvent begun, done;
  const Tensor token_ids = inputs_.sampled_ids(plan_.rows);
  begun.record(ctx_.stream);
  for (int64_t i = 0; i < count; ++i) {
    graph_->graph.replay(ctx_.stream);
    sampler_.sample(ctx_, logits_, plan_, token_ids, download_);
  }
  done.record(ctx_.stream);
  done.wait();
  return done.seconds_since(begun) / static_cast<double>(count);
}
// <<< task 4.6

MemoryPlan ModelRunner::memory() const {
  MemoryPlan plan;
  plan.weights = model_->weight_bytes();
  for (const KvCacheView& cache : kv_caches_) plan.kv += cache.k.nbytes() + cache.v.nbytes();
  plan.activations = activation_bytes_;
  return plan;
}

}  // namespace ladder
