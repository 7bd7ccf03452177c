#pragma once
// The engine's and the process' metrics for Prometheus, behind GET /metrics.
//
// Names, labels and bounds are vLLM's behind our own prefix: a board made for vLLM needs one word replaced, or none
// with --metrics-prefix vllm:. Under that prefix names that vLLM has given up are there too, as older boards ask for
// them.
#include <span>
#include <string>

#include "step3_sequence/batch_config.h"
#include "step6_engine/engine_client.h"
#include "step6_engine/server/http/router.h"

namespace ladder {

struct PrometheusOptions {
  std::string prefix = "ladder:";
  std::string model_name;  // the first name that the model is served by
  int first_engine = 0;    // the label of the first one behind this server; the others follow
  BatchConfig batch;       // of an engine, all of it set
  bool enable_prefix_caching = true;
};

// Error naming --metrics-prefix: what begins with it is not a name of a metric ([a-zA-Z_:][a-zA-Z0-9_:]*).
void check_metrics_prefix(const std::string& prefix);

// One sample of each family for every engine.
std::string prometheus_text(std::span<const EngineStats> engines, const PrometheusOptions& options);

// process_resident_memory_bytes, process_open_fds and the like, under the names of Prometheus' own clients; what the
// system does not tell is left out.
std::string process_metrics_text();

// GET /metrics, behind the key where there is one: requests' lengths and times are nobody's business. The client must
// outlive the router.
void add_metrics_route(Router& router, EngineClient& client, PrometheusOptions options);

}  // namespace ladder
