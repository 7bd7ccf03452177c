#include "step6_engine/server/metrics/prometheus.h"

#include <cctype>
#include <limits>

#include "step1_layers/core/error.h"
#include "step6_engine/server/metrics/metrics_text.h"

namespace ladder {

namespace {

constexpr std::string_view kVllmPrefix = "vllm:";

// Writes families that have a sample, or a histogram's samples, for every engine.
class FamiliesText {
 public:
  FamiliesText(std::span<const EngineStats> engines, const PrometheusOptions& options)
      : text_(options.prefix, {}), engines_(engines), options_(options) {}

  bool with_old_names() const { return options_.prefix == kVllmPrefix; }
  std::string take() { return text_.take(); }

  // write(stats) writes the samples of one engine into text().
  template <class Write>
  void family(std::string_view name, std::string_view type, std::string_view help, Write write) {
    text_.family(name, type, help);
    for (size_t i = 0; i < engines_.size(); ++i) {
      text_.set_common({{"model_name", options_.model_name},
                        {"engine", std::to_string(options_.first_engine + static_cast<int>(i))}});
      write(engines_[i]);
    }
  }
  template <class Value>
  void number(std::string_view name, std::string_view type, std::string_view help, Value value) {
    family(name, type, help,
           [&](const EngineStats& stats) { text_.sample(static_cast<double>(value(stats))); });
  }
  template <class Member>
  void histogram(std::string_view name, std::string_view help, Member member,
                 double max_bound = std::numeric_limits<double>::infinity()) {
    family(name, "histogram", help, [&](const EngineStats& stats) {
      text_.histogram_samples(stats.metrics.serving.*member, max_bound);
    });
  }
  MetricsText& text() { return text_; }

 private:
  MetricsText text_;
  const std::span<const EngineStats> engines_;
  const PrometheusOptions& options_;
};

double kv_usage(const EngineStats& stats) {
  const SchedulerStats& scheduler = stats.scheduler;
  return scheduler.num_blocks == 0
             ? 0.0
             : static_cast<double>(scheduler.num_used_blocks) / static_cast<double>(scheduler.num_blocks);
}

void append_gauges(FamiliesText& text) {
  text.number("num_requests_running", "gauge", "Number of sequences in model execution batches.",
              [](const EngineStats& stats) { return stats.scheduler.num_running; });
  text.number("num_requests_waiting", "gauge", "Number of sequences waiting to be processed.",
              [](const EngineStats& stats) { return stats.scheduler.num_waiting; });
  text.number("num_requests_waiting_for_kv", "gauge",
              "Number of sequences whose keys and values are on the way from another engine.",
              [](const EngineStats& stats) { return stats.scheduler.num_waiting_for_kv; });
  text.number("num_held_kv_blocks", "gauge", "Number of KV blocks that are kept for other engines to read.",
              [](const EngineStats& stats) { return stats.scheduler.num_held_blocks; });
  text.number("kv_cache_usage_perc", "gauge", "KV cache usage. 1 means 100 percent.", kv_usage);
  if (text.with_old_names())
    text.number("gpu_cache_usage_perc", "gauge", "Deprecated: kv_cache_usage_perc.", kv_usage);
}

void append_counters(FamiliesText& text) {
  const auto counter = [&](std::string_view name, std::string_view help, auto value) {
    text.number(name, "counter", help, value);
  };
  counter("prefix_cache_queries_total", "Prompt tokens that were looked for in the prefix cache.",
          [](const EngineStats& stats) { return stats.scheduler.num_prefix_queried_tokens; });
  counter("prefix_cache_hits_total", "Prompt tokens that were found in the prefix cache.",
          [](const EngineStats& stats) { return stats.scheduler.num_prefix_hit_tokens; });
  counter("num_preemptions_total", "Number of preemptions.",
          [](const EngineStats& stats) { return stats.scheduler.num_preemptions; });
  counter("prompt_tokens_total", "Number of prompt tokens of requests that have got a token.",
          [](const EngineStats& stats) { return stats.metrics.serving.num_prompt_tokens; });
  counter("generation_tokens_total", "Number of tokens generated.",
          [](const EngineStats& stats) { return stats.metrics.serving.num_generation_tokens; });
  text.family("request_success_total", "counter", "Number of completions that have ended, by the reason.",
              [&](const EngineStats& stats) {
                const auto& num_ended = stats.metrics.serving.num_completions_ended;
                for (const FinishReason reason :
                     {FinishReason::stop, FinishReason::length, FinishReason::abort, FinishReason::error})
                  text.text().sample(static_cast<double>(num_ended[static_cast<size_t>(reason)]),
                                     {{"finished_reason", finish_reason_name(reason)}});
              });
}

// All of them 0 without a connector.
void append_transfers(FamiliesText& text) {
  const auto counter = [&](std::string_view name, std::string_view help, auto value) {
    text.number(name, "counter", help,
                [&](const EngineStats& stats) { return value(stats.scheduler.kv_transfer); });
  };
  using Stats = KvTransferStats;
  counter("external_prefix_cache_queries_total", "Prompt tokens that were asked of other engines.",
          [](const Stats& stats) { return stats.num_loaded_tokens + stats.num_missed_tokens; });
  text.number("external_prefix_cache_hits_total", "counter", "Prompt tokens that came from other engines.",
              [](const EngineStats& stats) { return stats.scheduler.num_external_tokens; });
  counter("kv_transfer_loads_total", "Number of loads of prompts from other engines that have ended.",
          [](const Stats& stats) { return stats.num_loads; });
  counter("kv_transfer_failed_loads_total", "Number of loads that brought fewer tokens than were asked for.",
          [](const Stats& stats) { return stats.num_failed_loads; });
  counter("kv_transfer_load_seconds_total", "Time that all loads together took in seconds.",
          [](const Stats& stats) { return stats.load_seconds; });
  counter("kv_transfer_received_bytes_total", "Bytes of keys and values that came from other engines.",
          [](const Stats& stats) { return stats.num_loaded_bytes; });
  counter("kv_transfer_sent_bytes_total", "Bytes of keys and values that other engines have read.",
          [](const Stats& stats) { return stats.num_sent_bytes; });
  counter("kv_transfer_uncompressed_bytes_total",
          "Bytes of keys and values that were compressed for other engines, before.",
          [](const Stats& stats) { return stats.num_uncompressed_bytes; });
  counter("kv_transfer_compressed_bytes_total", "The same bytes, after.",
          [](const Stats& stats) { return stats.num_compressed_bytes; });
  counter("kv_transfer_compress_seconds_total", "Time that compressing them took in seconds.",
          [](const Stats& stats) { return stats.compress_seconds; });
  counter("kv_transfer_expired_requests_total",
          "Number of prompts that were kept and that nobody read in time.",
          [](const Stats& stats) { return stats.num_lapsed; });
  counter("kv_store_blocks_total", "Number of KV blocks written to the prefix store.",
          [](const Stats& stats) { return stats.num_stored_blocks; });
  counter("kv_store_written_bytes_total", "Bytes of keys and values written to the prefix store.",
          [](const Stats& stats) { return stats.num_stored_bytes; });
  counter("kv_store_dropped_blocks_total",
          "Number of full KV blocks that were not stored: no room in the queue or on the disk.",
          [](const Stats& stats) { return stats.num_unstored_blocks; });
  text.number("kv_store_bytes", "gauge", "Bytes of the prefix store's files.",
              [](const EngineStats& stats) { return stats.scheduler.kv_transfer.num_store_bytes; });
}

void append_histograms(FamiliesText& text, double max_length) {
  text.histogram("time_to_first_token_seconds", "Time to first token in seconds.",
                 &ServingMetrics::time_to_first_token);
  text.histogram("inter_token_latency_seconds", "Time between two tokens of a completion in seconds.",
                 &ServingMetrics::inter_token_latency);
  if (text.with_old_names())
    text.histogram("time_per_output_token_seconds", "Deprecated: inter_token_latency_seconds.",
                   &ServingMetrics::inter_token_latency);
  text.histogram("request_time_per_output_token_seconds",
                 "Mean time between two tokens of a request in seconds.",
                 &ServingMetrics::request_time_per_output_token);
  text.histogram("e2e_request_latency_seconds", "Arrival to last token in seconds.",
                 &ServingMetrics::end_to_end);
  text.histogram("request_queue_time_seconds", "Arrival to first computed token in seconds.",
                 &ServingMetrics::queue);
  text.histogram("request_inference_time_seconds", "First computed token to last token in seconds.",
                 &ServingMetrics::inference);
  text.histogram("request_prefill_time_seconds", "First computed token to first generated token in seconds.",
                 &ServingMetrics::prefill);
  text.histogram("request_decode_time_seconds", "First to last generated token in seconds.",
                 &ServingMetrics::decode);
  text.histogram("request_prompt_tokens", "Number of prompt tokens of a request.",
                 &ServingMetrics::request_prompt_tokens, max_length);
  text.histogram("request_generation_tokens", "Number of tokens generated for a completion.",
                 &ServingMetrics::request_generation_tokens, max_length);
  text.histogram("request_max_num_generation_tokens", "Number of tokens of a request's longest completion.",
                 &ServingMetrics::request_max_generation_tokens, max_length);
  text.histogram("request_params_n", "The parameter n of requests.", &ServingMetrics::request_n);
  text.histogram("request_params_max_tokens", "The parameter max_tokens of requests that set it.",
                 &ServingMetrics::request_max_tokens, max_length);
  text.histogram("iteration_tokens_total", "Number of tokens computed in a step.",
                 &ServingMetrics::step_tokens);
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

std::string prometheus_text(std::span<const EngineStats> engines, const PrometheusOptions& options) {
  FamiliesText text(engines, options);
  append_gauges(text);
  append_counters(text);
  append_transfers(text);
  append_histograms(text, static_cast<double>(options.batch.max_model_len));
  text.number("engine_alive", "gauge", "1 while the engine serves requests, 0 while it is down.",
              [](const EngineStats& stats) { return stats.error.empty() ? 1 : 0; });
  text.family("cache_config_info", "gauge", "How the KV cache is set up; always 1.", [&](const EngineStats&) {
    text.text().sample(1, {{"block_size", std::to_string(options.batch.block_size)},
                           {"num_gpu_blocks", std::to_string(options.batch.num_kv_blocks)},
                           {"enable_prefix_caching", options.enable_prefix_caching ? "True" : "False"}});
  });
  return text.take();
}

void add_metrics_route(Router& router, EngineClient& client, PrometheusOptions options) {
  check_metrics_prefix(options.prefix);
  // On a worker: counting descriptors takes milliseconds where there are many.
  router.add({"GET", "/metrics", Access::with_key, RunsOn::worker,
              [&client, options = std::move(options)](std::shared_ptr<HttpExchange> exchange) {
                exchange->respond(
                    {.body = prometheus_text(client.replica_stats(), options) + process_metrics_text(),
                     .content_type = "text/plain; version=0.0.4; charset=utf-8"});
              }});
}

}  // namespace ladder
