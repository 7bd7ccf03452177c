#include "step4_runner/model_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/core/profile.h"
#include "step1_layers/core/stream_order.h"
#include "step1_layers/embedding/embedding.h"
#include "step4_runner/rank_grid.h"

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

ModelRunner::ModelRunner(const OpContext& ctx, const RunnerConfig& config, std::shared_ptr<Model> model)
    : config_(config),
      arena_(std::make_unique<Arena>(ctx.device)),
      ctx_(ctx),
      model_(std::move(model)),
      batch_(config.batch, model_->spec().vocab_size),
      inputs_(ctx.device, config.batch),
      upload_(max_steps_in_flight(config) + 1),
      download_(max_steps_in_flight(config) + 1),
      sampler_(model_->spec().vocab_size) {
  add_contexts({&ctx, 1});
  ctx_.arena = arena_.get();
  if (ctx_.device.is_cpu() && ctx_.parallel != nullptr) measure_groups();
  if (!is_first_stage())
    received_ = Tensor::zeros({config.batch.max_num_batched_tokens, model_->spec().hidden_size},
                              model_->dtype(), ctx.device);
  if (!config_.num_kv_blocks_is_predicted) allocate_cache();
}

ModelRunner::ModelRunner(const OpContext& ctx, const RunnerConfig& config, const ModelRunner& owner)
    : config_(config),
      arena_(std::make_unique<Arena>(ctx.device)),
      ctx_(ctx),
      model_(owner.model_),
      kv_caches_(owner.kv_caches_),
      batch_(config.batch, model_->spec().vocab_size),
      inputs_(ctx.device, config.batch),
      upload_(max_steps_in_flight(config) + 1),
      download_(max_steps_in_flight(config) + 1),
      sampler_(model_->spec().vocab_size) {
  LADDER_CHECK(num_ranks(config) == 1, "a cache that two runners share: {} ranks, expected 1",
               num_ranks(config));
  add_contexts({&ctx, 1});
  ctx_.arena = arena_.get();
}

void ModelRunner::add_contexts(std::span<const OpContext> others) {
  contexts_.insert(contexts_.end(), others.begin(), others.end());
  graphs_.resize(contexts_.size());
}

void ModelRunner::select_context(size_t index) {
  if (index == context_) return;
  order_streams(ctx_, contexts_[index]);
  context_ = index;
  ctx_.stream = contexts_[index].stream;
  ctx_.cuda = contexts_[index].cuda;
}

void ModelRunner::measure_groups() {
  measured_groups_ = *ctx_.parallel;
  const auto measure = [](Communicator*& group, std::unique_ptr<MeasuredCommunicator>& owner) {
    if (group->size() > 1) group = (owner = std::make_unique<MeasuredCommunicator>(*group)).get();
  };
  measure(measured_groups_.tp, measured_tp_);
  measure(measured_groups_.pp, measured_pp_);
  measure(measured_groups_.ep, measured_ep_);
  measure(measured_groups_.cp, measured_cp_);
  ctx_.parallel = &measured_groups_;
}

ModelRunner::~ModelRunner() {
  try {
    device_synchronize(ctx_.device, ctx_.stream);
  } catch (const std::exception&) {
    // The device failed, as the collection of a step has said.
  }
}

// >>> task 4.4.runner: lay a step out, run the model over it, sample, and fill in the tokens when they are known
std::shared_ptr<const LaunchedStep> ModelRunner::launch(const SchedulerOutput& scheduled,
                                                        std::span<const KnownTokens> known) {
  Stopwatch phase;
  for (auto* group : {&measured_tp_, &measured_ep_, &measured_cp_})
    if (*group) (*group)->take_other_seconds();  // of the warm-up
  if (measured_pp_) measured_pp_->take_recv_seconds();
  learn(known);
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
  for (auto* group : {&measured_tp_, &measured_ep_, &measured_cp_})
    if (*group) step.launched->communicate_seconds += (*group)->take_other_seconds();
  if (measured_pp_) step.launched->stage_wait_seconds = measured_pp_->take_recv_seconds();
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
  if (!is_pipeline()) fill_in_tokens(0);
  batch_.prepare(scheduled);
  if (is_pipeline()) expect_known_tokens();
  return step;
}

void ModelRunner::run(Step& step) {
  const ProfileRange range("4.4 run");
  Communicator& pp = pp_group(ctx_);
  const int64_t rows = batch_.input_ids().dim(0);
  if (!is_first_stage()) receive(step, rows);
  if (step.graph != nullptr)
    replay(step);
  else
    step.hidden = model_->forward(ctx_, model_input());
  if (!is_last_stage()) return pp.send(ctx_, step.hidden.rows(rows), pp.rank() + 1);
  if (step.graph_has_logits || batch_.logits_indices().empty()) return;
  step.logits = model_->compute_logits(
      ctx_, gather_rows(step.hidden, batch_.logits_indices(), inputs_.logits_indices()));
}

void ModelRunner::sample(Step& step) {
  const ProfileRange range("4.3 sample");
  LaunchedStep& launched = *step.launched;
  const auto sampled = batch_.sampled_sequences();
  const Tensor token_ids = inputs_.sampled_ids(std::ssize(sampled));
  if (ctx_.device.is_cpu() && samples()) {
    step.plan = sampler_.plan(sampled);
    step.plan.stage(upload_);
  }
  if (!sampled.empty() && is_last_stage()) {
    if (samples()) launched.logprobs = sampler_.sample(ctx_, step.logits, step.plan, token_ids, download_);
    for (Communicator* group : {&cp_group(ctx_), &tp_group(ctx_)}) group->broadcast(ctx_, token_ids, 0);
  }
  if (is_last_stage()) launched.token_ids = download_.take(ctx_, token_ids);
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

void ModelRunner::receive(Step& step, int64_t rows) {
  Communicator& pp = pp_group(ctx_);
  step.launched->waits.record(ctx_);
  pp.recv(ctx_, received_.rows(rows), pp.rank() - 1);
  step.launched->received.record(ctx_);
}

void ModelRunner::learn(std::span<const KnownTokens> known) {
  for (const KnownTokens& tokens : known) {
    LADDER_CHECK(!unknown_.empty() && unknown_.front()->step == tokens.step,
                 "the tokens of step {} came, expected those of {}", tokens.step,
                 unknown_.empty() ? "none" : fmt::format("step {}", unknown_.front()->step));
    batch_.fill(unknown_.front()->pending, tokens.token_ids);
    unknown_.pop_front();
  }
}

void ModelRunner::expect_known_tokens() const {
  for (const BatchSequence* sequence : batch_.sequences()) {
    const int64_t last = sequence->num_computed_tokens + sequence->num_scheduled_tokens - 1;
    LADDER_CHECK(sequence->token_ids[static_cast<size_t>(last)] != Batch::kPlaceholder,
                 "sequence {} computes a token that is still in the pipeline", sequence->id);
  }
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
  if (!is_first_stage()) input.hidden = received_.rows(input.positions.dim(0));
  input.attention = inputs_.attention();
  if (!batch_.sequences().empty())  // there are none while graphs are captured
    input.host_query_start_loc = batch_.attention().query_start_loc;
  input.kv_caches = kv_caches_;
  return input;
}

MemoryPlan ModelRunner::memory() const {
  MemoryPlan plan;
  plan.weights = model_->weight_bytes();
  for (const KvCacheView& cache : kv_caches_) plan.kv += cache.nbytes();
  plan.activations = activation_bytes_ + received_.nbytes();
  return plan;
}

}  // namespace ladder
