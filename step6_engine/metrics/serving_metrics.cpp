#include "step6_engine/metrics/serving_metrics.h"

#include <algorithm>

#include "step6_engine/metrics/sum_fields.h"
#include "step6_engine/request.h"

namespace ladder {

void ServingMetrics::on_request(const SamplingParams& sampling) {
  request_n.observe(static_cast<double>(sampling.n));
  if (sampling.max_tokens) request_max_tokens.observe(static_cast<double>(*sampling.max_tokens));
}

void ServingMetrics::on_tokens(const RequestTimer& timer, const RequestMetrics& request, int64_t completion,
                               int64_t count, double now) {
  if (count <= 0) return;
  num_generation_tokens += count;
  if (const double last = timer.last_token(completion); last >= 0.0) {
    inter_token_latency.observe((now - last) / static_cast<double>(count), count);
  } else if (timer.first_token() < 0.0) {
    num_prompt_tokens += request.num_prompt_tokens;
    time_to_first_token.observe(now - timer.arrival());
  }
}

void ServingMetrics::on_ended(const RequestOutput& output) {
  bool served = true;
  int64_t longest = 0;
  for (const CompletionOutput& completion : output.completions) {
    ++num_completions_ended[static_cast<size_t>(completion.finish_reason)];
    served = served && (completion.finish_reason == FinishReason::stop ||
                        completion.finish_reason == FinishReason::length);
    longest = std::max(longest, std::ssize(completion.token_ids));
  }
  if (!served) return;

  const RequestMetrics& request = output.metrics;
  end_to_end.observe(request.end_to_end_seconds);
  queue.observe(request.queue_seconds);
  prefill.observe(request.time_to_first_token - request.queue_seconds);
  decode.observe(request.end_to_end_seconds - request.time_to_first_token);
  inference.observe(request.end_to_end_seconds - request.queue_seconds);
  if (request.num_output_tokens > std::ssize(output.completions))
    request_time_per_output_token.observe(request.inter_token_latency_mean);
  request_prompt_tokens.observe(static_cast<double>(request.num_prompt_tokens));
  for (const CompletionOutput& completion : output.completions)
    request_generation_tokens.observe(static_cast<double>(completion.token_ids.size()));
  request_max_generation_tokens.observe(static_cast<double>(longest));
}

static auto fields_of(auto& metrics) {
  auto& [first_token, gap, end_to_end, queue, prefill, decode, inference, gap_of_request, prompt, generation,
         max_generation, n, max_tokens, step_tokens, num_prompt, num_generation, num_ended] = metrics;
  return std::tie(first_token, gap, end_to_end, queue, prefill, decode, inference, gap_of_request, prompt,
                  generation, max_generation, n, max_tokens, step_tokens, num_prompt, num_generation,
                  num_ended);
}

ServingMetrics& ServingMetrics::operator+=(const ServingMetrics& other) {
  add_fields(fields_of(*this), fields_of(other));
  return *this;
}

}  // namespace ladder
