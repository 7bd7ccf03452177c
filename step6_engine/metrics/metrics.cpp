#include "step6_engine/metrics/metrics.h"

#include <algorithm>
#include <cmath>

#include "step1_layers/core/task_not_implemented.h"
#include "step6_engine/metrics/sum_fields.h"

namespace ladder {

// >>> task 6.3: from the moments of a request and the counts of a step to the metrics
void RequestTimer::on_scheduled(double now) {
  if (first_scheduled_ < 0.0) first_scheduled_ = now;
}

void RequestTimer::on_tokens(int64_t completion, int64_t count, double now) {
  if (count <= 0) return;
  if (first_token_ < 0.0) first_token_ = now;
  last_token_ = now;
  num_tokens_ += count;
  if (last_token_of_.size() <= static_cast<size_t>(completion))
    last_token_of_.resize(static_cast<size_t>(completion) + 1, -1.0);
  double& last = last_token_of_[static_cast<size_t>(completion)];
  if (last >= 0.0) {
    // Tokens that arrive together share the wait before them.
    num_gaps_ += count;
    gap_sum_ += now - last;
    gap_max_ = std::max(gap_max_, (now - last) / static_cast<double>(count));
  }
  last = now;
}

void RequestTimer::fill(RequestMetrics& metrics) const {
  metrics.num_output_tokens = num_tokens_;
  metrics.queue_seconds = first_scheduled_ < 0.0 ? 0.0 : first_scheduled_ - arrival_;
  metrics.time_to_first_token = first_token_ < 0.0 ? 0.0 : first_token_ - arrival_;
  metrics.inter_token_latency_mean = num_gaps_ == 0 ? 0.0 : gap_sum_ / static_cast<double>(num_gaps_);
  metrics.inter_token_latency_max = gap_max_;
  metrics.end_to_end_seconds = last_token_ < 0.0 ? 0.0 : last_token_ - arrival_;
}

void EngineMetrics::add(const StepMetrics& step, int64_t block_size) {
  ++num_steps;
  num_tokens += step.num_tokens;
  peak_running = std::max(peak_running, step.num_running);
  peak_kv_blocks = std::max(peak_kv_blocks, step.num_kv_blocks_used);
  step_seconds += step.seconds;
  execute_seconds += step.execute_seconds;
  communicate_seconds += step.communicate_seconds;
  stage_wait_seconds += step.stage_wait_seconds;
  count_lane(step);
  if (step.num_kv_blocks_used > 0) {
    kv_used_share_sum +=
        static_cast<double>(step.num_kv_tokens) / static_cast<double>(step.num_kv_blocks_used * block_size);
    ++kv_used_steps;
  }
}

void EngineMetrics::add(const RequestMetrics& request) {
  ++num_requests_finished;
  num_prompt_tokens += request.num_prompt_tokens;
  num_output_tokens += request.num_output_tokens;
  num_cached_tokens += request.num_cached_tokens;
  num_preemptions += request.num_preemptions;
}
// <<< task 6.3

void EngineMetrics::count_lane(const StepMetrics& step) {
  if (step.phase == StepPhase::any) return;
  const bool decodes = step.phase == StepPhase::decode;
  ++(decodes ? num_decode_steps : num_prefill_steps);
  (decodes ? decode_execute_seconds : prefill_execute_seconds) += step.execute_seconds;
}

static auto fields_of(auto& metrics) {
  auto& [num_steps, num_tokens, num_finished, num_aborted, num_failed, num_prompt, num_output, num_cached,
         num_preemptions, peak_running, peak_blocks, step_seconds, execute_seconds, communicate_seconds,
         stage_wait_seconds, kv_share_sum, kv_steps, prefill_steps, decode_steps, prefill_seconds,
         decode_seconds, serving] = metrics;
  return std::tie(num_steps, num_tokens, num_finished, num_aborted, num_failed, num_prompt, num_output,
                  num_cached, num_preemptions, peak_running, peak_blocks, step_seconds, execute_seconds,
                  communicate_seconds, stage_wait_seconds, kv_share_sum, kv_steps, prefill_steps,
                  decode_steps, prefill_seconds, decode_seconds, serving);
}

EngineMetrics& EngineMetrics::operator+=(const EngineMetrics& other) {
  add_fields(fields_of(*this), fields_of(other));
  return *this;
}

double EngineMetrics::prefix_hit_rate() const {
  return num_prompt_tokens == 0
             ? 0.0
             : static_cast<double>(num_cached_tokens) / static_cast<double>(num_prompt_tokens);
}

double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0.0;
  const double rank = std::ceil(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(values.size()));
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

}  // namespace ladder
