#include "step8_advanced/disaggregation/router/server/router_metrics.h"

#include "step6_engine/server/metrics/metrics_text.h"

namespace ladder {

namespace {

void add_by(MetricsText& text, const char* name, const char* help, const char* label,
            const std::map<std::string, int64_t>& counts) {
  text.family(name, "counter", help);
  for (const auto& [value, count] : counts) text.sample(static_cast<double>(count), {{label, value}});
}

}  // namespace

std::string router_metrics_text(const RouterMetrics& metrics,
                                const std::vector<std::unique_ptr<Backend>>& prefills,
                                const std::vector<std::unique_ptr<Backend>>& decodes) {
  MetricsText text("ladder:router_", {});
  add_by(text, "requests_total", "Requests, by how they ended.", "outcome", metrics.outcomes);
  add_by(text, "failed_calls_total", "Calls that failed; another server was asked where there was one.",
         "role", metrics.failed_calls);
  add_by(text, "prefills_skipped_total", "Requests whose prompt the decode server was to compute.", "reason",
         metrics.skipped_prefills);
  text.counter("fallbacks_total", "Prompts that a decode server computed since no prefill server could.",
               static_cast<double>(metrics.fallbacks));
  text.counter("empty_transfers_total", "Prompts that a prefill server computed and kept nothing of.",
               static_cast<double>(metrics.empty_transfers));
  text.counter("transfers_total", "Requests that a decode server went on with from a prefill server's keys.",
               static_cast<double>(metrics.transfers));
  text.counter("at_once_transfers_total",
               "Of these, that were told to the decode server while the prompt was computed.",
               static_cast<double>(metrics.at_once_transfers));
  text.counter(
      "withdrawn_total",
      "Decode servers that were told while the prompt was computed, by an engine that then failed or was "
      "another one by now.",
      static_cast<double>(metrics.withdrawn));

  const auto of_servers = [&](const char* name, const char* help, auto value) {
    text.family(name, "gauge", help);
    for (const auto* servers : {&prefills, &decodes})
      for (const auto& server : *servers)
        text.sample(value(*server), {{"role", server->role()}, {"url", server->url()}});
  };
  of_servers("backend_up", "Whether the server takes requests.",
             [](const Backend& server) { return server.takes_requests() ? 1.0 : 0.0; });
  of_servers("backend_in_flight", "Requests of this router at the server.",
             [](const Backend& server) { return static_cast<double>(server.num_in_flight); });
  of_servers("backend_queued_tokens", "Prompt tokens sent to the server and not computed yet.",
             [](const Backend& server) { return static_cast<double>(server.queued_tokens); });

  text.histogram("prefill_seconds", "From a prefill server's being asked to its answer.",
                 metrics.prefill_seconds);
  text.histogram(
      "handover_seconds",
      "From a prefill server's answer to the first byte of the decode server's stream; 0: it came before.",
      metrics.handover_seconds);
  text.histogram("first_byte_seconds", "From a request to the first byte of its answer.",
                 metrics.first_byte_seconds);
  text.histogram("request_seconds", "From a request to the end of its answer.", metrics.request_seconds);
  return text.take();
}

}  // namespace ladder
