#include "cli/json_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "step2_model/json.h"

namespace ladder {

namespace {

// A float keeps a float's digits: -1.1 is not written as -1.100000023841858.
std::string json_logprob(float value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string json_top(const PositionLogprobs& position) {
  std::string list = "[";
  for (const TokenLogprob& token : position.top)
    list += fmt::format("{}{{\"token_id\":{},\"logprob\":{}}}", list.size() > 1 ? "," : "", token.token_id,
                        json_logprob(token.logprob));
  return list + "]";
}

// "logprobs":[...] and, if asked for, "top":[...]; `first` begins both lists ("null," where the first token
// has none).
std::string json_logprobs(std::span<const PositionLogprobs> positions, std::string_view first,
                          bool with_top) {
  std::string chosen(first), top(first);
  for (const PositionLogprobs& position : positions) {
    chosen += json_logprob(position.chosen.logprob) + ",";
    if (with_top) top += json_top(position) + ",";
  }
  if (!chosen.empty()) chosen.pop_back();
  if (!top.empty()) top.pop_back();
  std::string text = fmt::format("\"logprobs\":[{}]", chosen);
  if (with_top) text += fmt::format(",\"top\":[{}]", top);
  return text;
}

std::string json_stop_reason(const StopReason& reason) {
  if (const auto* id = std::get_if<int32_t>(&reason)) return std::to_string(*id);
  if (const auto* text = std::get_if<std::string>(&reason)) return json_string_literal(*text);
  return "null";
}

std::string json_metrics(const RequestMetrics& metrics) {
  return fmt::format(
      "{{\"num_prompt_tokens\":{},\"num_output_tokens\":{},\"num_cached_tokens\":{},\"num_preemptions\":{},"
      "\"queue_seconds\":{:.6f},\"time_to_first_token\":{:.6f},\"inter_token_latency_mean\":{:.6f},"
      "\"inter_token_latency_max\":{:.6f},\"end_to_end_seconds\":{:.6f}}}",
      metrics.num_prompt_tokens, metrics.num_output_tokens, metrics.num_cached_tokens,
      metrics.num_preemptions, metrics.queue_seconds, metrics.time_to_first_token,
      metrics.inter_token_latency_mean, metrics.inter_token_latency_max, metrics.end_to_end_seconds);
}

}  // namespace

std::string json_string_literal(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_list(std::span<const int32_t> ids) {
  return fmt::format("[{}]", fmt::join(ids, ","));
}

std::string json_float(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string generate_line(int64_t index, const RequestOutput& output, std::optional<int64_t> num_logprobs) {
  std::string completions;
  for (const CompletionOutput& completion : output.completions) {
    if (!completions.empty()) completions += ",";
    completions += fmt::format(
        "{{\"token_ids\":{},\"text\":{},\"finish_reason\":\"{}\",\"stop_reason\":{}",
        json_list(completion.token_ids), completion.text ? json_string_literal(*completion.text) : "null",
        finish_reason_name(completion.finish_reason), json_stop_reason(completion.stop_reason));
    if (!completion.error.empty())
      completions += fmt::format(",\"error\":{}", json_string_literal(completion.error));
    if (num_logprobs)
      completions += fmt::format(",{}", json_logprobs(completion.logprobs, "", *num_logprobs != 0));
    completions += "}";
  }
  return fmt::format("{{\"index\":{},\"prompt_token_ids\":{},\"outputs\":[{}],\"metrics\":{}}}\n", index,
                     json_list(output.prompt_token_ids), completions, json_metrics(output.metrics));
}

std::string score_line(int64_t index, const RequestOutput& output, int64_t num_top) {
  return fmt::format("{{\"index\":{},\"token_ids\":{},{}}}\n", index, json_list(output.prompt_token_ids),
                     json_logprobs(output.prompt_logprobs, "null,", num_top != 0));
}

std::string score_summary_line(int64_t num_tokens, double sum_logprobs) {
  const double perplexity =
      std::exp(-sum_logprobs / static_cast<double>(num_tokens));  // not finite for no tokens
  return fmt::format("{{\"summary\":{{\"tokens\":{},\"perplexity\":{}}}}}\n", num_tokens,
                     json_float(perplexity));
}

}  // namespace ladder
