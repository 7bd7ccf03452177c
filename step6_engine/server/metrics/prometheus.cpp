#include "step6_engine/server/metrics/prometheus.h"

#include <cctype>

#include "step1_layers/core/error.h"
#include "step6_engine/server/metrics/metrics_text.h"

namespace ladder {

namespace {

constexpr std::string_view kVllmPrefix = "vllm:";
constexpr std::string_view kEngine = "0";  // of several behind one server

void append_gauges(MetricsText& text, const SchedulerStats& scheduler, bool with_old_names) {
  const double usage = scheduler.num_blocks == 0 ? 0.0
                                                 : static_cast<double>(scheduler.num_used_blocks) /
                                                       static_cast<double>(scheduler.num_blocks);
  text.gauge("num_requests_running", "Number of sequences in model execution batches.",
             static_cast<double>(scheduler.num_running));
  text.gauge("num_requests_waiting", "Number of sequences waiting to be processed.",
             static_cast<double>(scheduler.num_waiting));
  text.gauge("kv_cache_usage_perc", "KV cache usage. 1 means 100 percent.", usage);
  if (with_old_names) text.gauge("gpu_cache_usage_perc", "Deprecated: kv_cache_usage_perc.", usage);
}

void append_counters(MetricsText& text, const EngineStats& stats) {
  const SchedulerStats& scheduler = stats.scheduler;
  const ServingMetrics& serving = stats.metrics.serving;
  text.counter("prefix_cache_queries_total", "Prompt tokens that were looked for in the prefix cache.",
               static_cast<double>(scheduler.num_prefix_queried_tokens));
  text.counter("prefix_cache_hits_total", "Prompt tokens that were found in the prefix cache.",
               static_cast<double>(scheduler.num_prefix_hit_tokens));
  text.counter("num_preemptions_total", "Number of preemptions.",
               static_cast<double>(scheduler.num_preemptions));
  text.counter("prompt_tokens_total", "Number of prompt tokens of requests that have got a token.",
               static_cast<double>(serving.num_prompt_tokens));
  text.counter("generation_tokens_total", "Number of tokens generated.",
               static_cast<double>(serving.num_generation_tokens));
  text.family("request_success_total", "counter", "Number of completions that have ended, by the reason.");
  for (const FinishReason reason :
       {FinishReason::stop, FinishReason::length, FinishReason::abort, FinishReason::error})
    text.sample(static_cast<double>(serving.num_completions_ended[static_cast<size_t>(reason)]),
                {{"finished_reason", finish_reason_name(reason)}});
}

void append_histograms(MetricsText& text, const ServingMetrics& serving, double max_length,
                       bool with_old_names) {
  text.histogram("time_to_first_token_seconds", "Time to first token in seconds.",
                 serving.time_to_first_token);
  text.histogram("inter_token_latency_seconds", "Time between two tokens of a completion in seconds.",
                 serving.inter_token_latency);
  if (with_old_names)
    text.histogram("time_per_output_token_seconds", "Deprecated: inter_token_latency_seconds.",
                   serving.inter_token_latency);
  text.histogram("request_time_per_output_token_seconds",
                 "Mean time between two tokens of a request in seconds.",
                 serving.request_time_per_output_token);
  text.histogram("e2e_request_latency_seconds", "Arrival to last token in seconds.", serving.end_to_end);
  text.histogram("request_queue_time_seconds", "Arrival to first computed token in seconds.", serving.queue);
  text.histogram("request_inference_time_seconds", "First computed token to last token in seconds.",
                 serving.inference);
  text.histogram("request_prefill_time_seconds", "First computed token to first generated token in seconds.",
                 serving.prefill);
  text.histogram("request_decode_time_seconds", "First to last generated token in seconds.", serving.decode);
  text.histogram("request_prompt_tokens", "Number of prompt tokens of a request.",
                 serving.request_prompt_tokens, max_length);
  text.histogram("request_generation_tokens", "Number of tokens generated for a completion.",
                 serving.request_generation_tokens, max_length);
  text.histogram("request_max_num_generation_tokens", "Number of tokens of a request's longest completion.",
                 serving.request_max_generation_tokens, max_length);
  text.histogram("request_params_n", "The parameter n of requests.", serving.request_n);
  text.histogram("request_params_max_tokens", "The parameter max_tokens of requests that set it.",
                 serving.request_max_tokens, max_length);
  text.histogram("iteration_tokens_total", "Number of tokens computed in a step.", serving.step_tokens);
}

}  // namespace

void check_metrics_prefix(const std::string& prefix) {
  const auto allowed = [](unsigned char c) {
    return c < 128 && (std::isalnum(c) != 0 || c == '_' || c == ':');
  };
  bool good = prefix.empty() || std::isdigit(static_cast<unsigned char>(prefix[0])) == 0;
  for (const char c : prefix) good = good && allowed(static_cast<unsigned char>(c));
  LADDER_CHECK(good,
               "--metrics-prefix {}: letters, digits, '_' and ':' make a name, which begins with no digit",
               prefix);
}

std::string prometheus_text(const EngineStats& stats, const PrometheusOptions& options) {
  const bool with_old_names = options.prefix == kVllmPrefix;
  MetricsText text(options.prefix, {{"model_name", options.model_name}, {"engine", kEngine}});
  append_gauges(text, stats.scheduler, with_old_names);
  append_counters(text, stats);
  append_histograms(text, stats.metrics.serving, static_cast<double>(options.batch.max_model_len),
                    with_old_names);

  text.family("cache_config_info", "gauge", "How the KV cache is set up; always 1.");
  text.sample(1, {{"block_size", std::to_string(options.batch.block_size)},
                  {"num_gpu_blocks", std::to_string(options.batch.num_kv_blocks)},
                  {"enable_prefix_caching", options.enable_prefix_caching ? "True" : "False"}});
  return text.take();
}

void add_metrics_route(Router& router, const EngineClient& client, PrometheusOptions options) {
  check_metrics_prefix(options.prefix);
  // On a worker: counting descriptors takes milliseconds where there are many.
  router.add({"GET", "/metrics", Access::with_key, RunsOn::worker,
              [&client, options = std::move(options)](std::shared_ptr<HttpExchange> exchange) {
                exchange->respond({.body = prometheus_text(client.stats(), options) + process_metrics_text(),
                                   .content_type = "text/plain; version=0.0.4; charset=utf-8"});
              }});
}

}  // namespace ladder
