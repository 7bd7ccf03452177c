#include "step8_advanced/disaggregation/partition/sm_lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

constexpr int64_t kMeasuredAnswers[] = {1, 8, 32}, kMeasuredPrompt = 2048;

}  // namespace

ModelNeeds needs_of_model(const Model& model) {
  const DecoderSpec& spec = model.spec();
  ModelNeeds needs;
  needs.weight_bytes = static_cast<double>(model.weight_bytes());
  needs.flops_per_row = 2 * needs.weight_bytes / static_cast<double>(dtype_size(model.dtype()));
  needs.flops_per_pair = 4 * static_cast<double>(spec.num_layers * spec.num_heads * spec.head_dim);
  for (const KvCacheSpec& layer : model.kv_cache_specs())
    needs.bytes_per_key += static_cast<double>(layer.bytes_per_token());
  return needs;
}

void add_rows(StepNeeds& needs, const ModelNeeds& model, int64_t rows, int64_t num_computed_tokens) {
  if (needs.none()) needs.bytes = model.weight_bytes;
  const double pairs = static_cast<double>(rows) *
                       (static_cast<double>(num_computed_tokens) + static_cast<double>(rows + 1) / 2);
  needs.flops += static_cast<double>(rows) * model.flops_per_row + pairs * model.flops_per_pair;
  needs.bytes += static_cast<double>(num_computed_tokens + rows) * model.bytes_per_key;
}

SmLanes::SmLanes(SharedGpu gpu, const SmBorderOptions& options, std::function<void(const Report&)> tell)
    : gpu_(std::move(gpu)), options_(options), tell_(std::move(tell)) {
  for (const SharedGpu::Lane* lane : {&gpu_.prefill, &gpu_.decode})
    LADDER_CHECK(lane->at_place.size() == gpu_.places.size(), "{} places of a border have {} contexts",
                 gpu_.places.size(), lane->at_place.size());
  for (Lane* lane : {&prefill_, &decode_}) lane->num_steps.resize(gpu_.places.size() + 1);
}

SmLanes::~SmLanes() {
  if (tell_ && border_) tell_(report());
}

std::vector<OpContext> SmLanes::make(StepPhase phase) {
  const SharedGpu::Lane& lane = phase == StepPhase::decode ? gpu_.decode : gpu_.prefill;
  std::vector<OpContext> contexts{lane.whole};
  contexts.insert(contexts.end(), lane.at_place.begin(), lane.at_place.end());
  return contexts;
}

void SmLanes::calibrate(const Model& model, const RunnerConfig& config, const MeasureStep& measure) {
  model_ = needs_of_model(model);
  const int64_t prompt =
      std::min({kMeasuredPrompt, config.batch.max_num_batched_tokens, config.batch.max_model_len});
  const auto add = [&](StepPhase phase, size_t context, int sms, int64_t num_seqs, int64_t num_tokens) {
    MeasuredShare row;
    row.is_prefill = phase == StepPhase::prefill;
    row.sms = sms;
    const int64_t before = row.is_prefill ? 0 : 1;
    for (int64_t i = 0; i < num_seqs; ++i) add_rows(row.needs, model_, num_tokens / num_seqs, before);
    row.seconds = measure(phase, context, num_seqs, num_tokens, before);
    measured_.push_back(row);
  };
  for (size_t context = 0; context <= gpu_.places.size(); ++context) {
    const SmPlace place =
        context > 0 ? gpu_.places[context - 1] : SmPlace{gpu_.num_multiprocessors, gpu_.num_multiprocessors};
    for (const int64_t count : kMeasuredAnswers)
      if (count <= config.batch.max_num_seqs) add(StepPhase::decode, context, place.decode_sms, count, count);
    add(StepPhase::prefill, context, place.prefill_sms, 1, prompt);
  }
  fitted_ = fit_sm_rates(measured_);
  border_.emplace(gpu_.places, fitted_.rates, options_);
  if (tell_) tell_(report());
}

SmLanes::InFlight SmLanes::look_at(Lane& lane, const SchedulerOutput& step) const {
  for (const auto* ids : {&step.finished, &step.preempted})
    for (const SequenceId id : *ids) lane.prompts.erase(id);
  std::unordered_map<SequenceId, int64_t> computed;
  for (const NewSequence& added : step.new_sequences) {
    lane.prompts[added.id] = added.num_prompt_tokens;
    computed[added.id] = added.num_computed_tokens;
  }
  for (const ContinuedSequence& continued : step.continued)
    computed[continued.id] = continued.num_computed_tokens;
  InFlight in_flight;
  for (const ScheduledSequence& scheduled : step.scheduled) {
    const int64_t before = computed[scheduled.id];
    add_rows(in_flight.needs, model_, scheduled.num_tokens, before);
    const int64_t left = lane.prompts[scheduled.id] - (before + scheduled.num_tokens);
    in_flight.ends_prompt |= left <= 0;
    in_flight.num_left += std::max<int64_t>(left, 0);
  }
  return in_flight;
}

double SmLanes::waiting_flops() const {
  int64_t tokens = num_waiting_tokens_;
  if (!prefill_.in_flight.empty()) tokens += prefill_.in_flight.back().num_left;
  double flops = static_cast<double>(tokens) * model_.flops_per_row;
  for (size_t i = 1; i < prefill_.in_flight.size(); ++i) flops += prefill_.in_flight[i].needs.flops;
  return flops;
}

bool SmLanes::on_waiting(int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  num_waiting_tokens_ = num_tokens;
  return mixes_ = border_ && border_->mixes(num_tokens > 0 ? waiting_flops() : 0);
}

size_t SmLanes::choose(StepPhase phase, const SchedulerOutput& step) {
  const std::lock_guard lock(mutex_);
  const bool is_decode = phase == StepPhase::decode;
  Lane &lane = is_decode ? decode_ : prefill_, &other = is_decode ? prefill_ : decode_;
  InFlight in_flight = look_at(lane, step);
  if (!other.in_flight.empty()) in_flight.other = other.in_flight.front().needs;
  if (border_ && is_decode) {
    const std::optional<size_t> place = border_->place_for(in_flight.needs, in_flight.other);
    in_flight.context = place ? 1 + *place : 0;
  } else if (border_) {
    const bool answer_comes =
        std::ranges::any_of(prefill_.in_flight, [](const InFlight& earlier) { return earlier.ends_prompt; });
    in_flight.context = in_flight.other.none() && (mixes_ || !answer_comes) ? 0 : 1 + border_->place();
    num_mixed_ += mixes_;
  }
  ++lane.num_steps[in_flight.context];
  lane.in_flight.push_back(in_flight);
  return in_flight.context;
}

void SmLanes::on_done(StepPhase phase, double seconds) {
  const std::lock_guard lock(mutex_);
  const bool is_decode = phase == StepPhase::decode;
  Lane& lane = is_decode ? decode_ : prefill_;
  const InFlight done = lane.in_flight.front();
  lane.in_flight.pop_front();
  if (!border_ || done.context == 0 || done.other.none()) return;
  border_->learn(done.context - 1, is_decode ? done.needs : done.other, is_decode ? done.other : done.needs,
                 !is_decode, seconds);
}

SmLanes::Report SmLanes::report() const {
  const std::lock_guard lock(mutex_);
  return {gpu_.places,        fitted_,
          measured_,          decode_.num_steps,
          prefill_.num_steps, border_ ? border_->num_moves() : 0,
          num_mixed_};
}

std::string to_line(const SmLanes::Report& report) {
  const SmRates& rates = report.fitted.rates;
  std::string line = fmt::format(
      "a multiprocessor: {:.2f} TFLOP/s, {:.1f} GB/s of {:.2f} TB/s (off by {:.0f} %, {:.0f} % at worst)",
      rates.sm_flops / 1e12, rates.sm_bytes / 1e9, rates.bytes / 1e12, 100 * report.fitted.mean_error,
      100 * report.fitted.worst_error);
  const int64_t num_steps =
      std::accumulate(report.decode_steps.begin(), report.decode_steps.end(), int64_t{0});
  if (num_steps == 0) {
    for (const MeasuredShare& row : report.measured)
      line += fmt::format("; {} {:.0f} GFLOP on {}: {:.2f} ms", row.is_prefill ? "prefill" : "decode",
                          row.needs.flops / 1e9, row.sms, 1e3 * row.seconds);
    return line;
  }
  line += fmt::format("; {} moves, {} steps of both; steps of answers and of prompts: {} and {} with all",
                      report.num_moves, report.num_mixed, report.decode_steps[0], report.prefill_steps[0]);
  for (size_t i = 0; i < report.places.size(); ++i)
    line += fmt::format(", {} and {} at {}", report.decode_steps[i + 1], report.prefill_steps[i + 1],
                        report.places[i].decode_sms);
  return line;
}

}  // namespace ladder
