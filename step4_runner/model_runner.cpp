#include "step4_runner/model_runner.h"

#include <algorithm>
#include <chrono>
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
      inputs_(ctx.device, config.batch),
      sampler_(model_->spec().vocab_size) {
  ctx_.arena = arena_.get();
  if (!config_.num_kv_blocks_is_predicted) allocate_cache();
}

ModelRunner::~ModelRunner() {
  try {
    device_synchronize(ctx_.device, ctx_.stream);
  } catch (const std::exception&) {
    // The device failed, as the collection of a step has said.
  }
}

// >>> task 4.4.runner: lay a step out, run the model over it, sample, and fill in the tokens when they are known
std::shared_ptr<const LaunchedStep> ModelRunner::launch(const SchedulerOutput& scheduled) {
  Stopwatch phase;
  Step step = prepare(scheduled);
  const double prepare_seconds = phase.lap();
  run(step);
  const double forward_seconds = phase.lap();
  sample(step);
  const double sample_seconds = phase.lap();

  // On the CPU the host's time is the step's time; on a GPU events measure it.
  step.launched->prepare_seconds = prepare_seconds;
  if (ctx_.device.is_cpu()) step.launched->forward_seconds = forward_seconds;
  if (ctx_.device.is_cpu()) step.launched->sample_seconds = sample_seconds;
  return step.launched;
}

ModelRunner::Step ModelRunner::prepare(const SchedulerOutput& scheduled) {
  const ProfileRange range("4.1 prepare");
  Step step = begin(scheduled);
  stage(step);
  return step;
}

ModelRunner::Step ModelRunner::begin(const SchedulerOutput& scheduled) {
  Step step;
  step.memory = std::make_unique<ArenaScope>(*arena_);
  step.launched = std::make_shared<LaunchedStep>();
  step.launched->step = scheduled.step;
  if (!ctx_.device.is_cpu()) {
    prepare_ahead(scheduled);
    return step;
  }
  fill_in_tokens(0);
  batch_.prepare(scheduled);
  return step;
}

void ModelRunner::run(Step& step) {
  const ProfileRange range("4.4 run");
  if (step.graph != nullptr)
    replay(step);
  else
    step.hidden = model_->forward(ctx_, model_input());
  if (step.logits.defined() || batch_.logits_indices().empty()) return;
  step.logits = model_->compute_logits(
      ctx_, gather_rows(step.hidden, batch_.logits_indices(), inputs_.logits_indices()));
}

void ModelRunner::sample(Step& step) {
  const ProfileRange range("4.3 sample");
  LaunchedStep& launched = *step.launched;
  const auto sampled = batch_.sampled_sequences();
  const Tensor token_ids = inputs_.sampled_ids(std::ssize(sampled));
  if (ctx_.device.is_cpu() && is_first_rank()) {
    step.plan = sampler_.plan(sampled);
    step.plan.stage(upload_);
  }
  if (!sampled.empty()) {
    if (is_first_rank())
      launched.logprobs = sampler_.sample(ctx_, step.logits, step.plan, token_ids, download_);
    tp_group(ctx_).broadcast(ctx_, token_ids, 0);
  }
  launched.token_ids = download_.take(ctx_, token_ids);
  if (!step.prompt.rows.empty()) launch_prompt_logprobs(step);
  launched.done->record(ctx_);
  upload_.keep_until(launched.done);
  download_.keep_until(launched.done);
  last_graph_ = step.graph_has_logits ? step.graph : nullptr;
  if (last_graph_ != nullptr) last_plan_ = std::move(step.plan);

  for (const BatchSequence* sequence : batch_.sequences())
    launched.rows.push_back(
        {sequence->id, sequence->yields_token(), wanted_logprobs(sequence->sampling).has_value()});
  launched.pending = batch_.advance();
  unknown_.push_back(step.launched);
}

void ModelRunner::fill_in_tokens(size_t num_left_unknown) {
  for (; unknown_.size() > num_left_unknown; unknown_.pop_front())
    batch_.fill(unknown_.front()->pending, unknown_.front()->tokens());
}
// <<< task 4.4.runner

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

MemoryPlan ModelRunner::memory() const {
  MemoryPlan plan;
  plan.weights = model_->weight_bytes();
  for (const KvCacheView& cache : kv_caches_) plan.kv += cache.k.nbytes() + cache.v.nbytes();
  plan.activations = activation_bytes_;
  return plan;
}

}  // namespace ladder
