#pragma once
// What the router counts. Used on its thread alone.
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "step6_engine/metrics/histogram.h"
#include "step8_advanced/disaggregation/router/server/backend.h"

namespace ladder {

inline constexpr std::array kRouterSecondsBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                    0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0};

struct RouterMetrics {
  using Seconds = Histogram<kRouterSecondsBounds>;

  // By outcome: "ok"; "refused", by a server, with a status of 400 to 499; "failed"; "cut", after its first byte; "client_gone";
  // "shed", since as many were under way as may be.
  std::map<std::string, int64_t> outcomes = {{"ok", 0},  {"refused", 0},     {"failed", 0},
                                             {"cut", 0}, {"client_gone", 0}, {"shed", 0}};
  // By role: after each of them another server is asked, where there is one.
  std::map<std::string, int64_t> failed_calls = {{"prefill", 0}, {"decode", 0}};
  // Requests whose prompt the decode server was to compute from the first: "short", "cached", or SplitRequest's reasons.
  std::map<std::string, int64_t> skipped_prefills = {{"short", 0}, {"cached", 0}};
  // Whose prompt it computes although a prefill server should have: none takes requests, or those that were asked failed.
  int64_t fallbacks = 0;
  int64_t empty_transfers = 0;    // a prefill server has computed the prompt and kept nothing
  int64_t transfers = 0;          // a decode server was sent to a prefill server's keys
  int64_t at_once_transfers = 0;  // of these, that were told while the prompt was computed
  int64_t withdrawn = 0;          // decode servers that were told so, and then that it was for nothing
  Seconds prefill_seconds, handover_seconds, first_byte_seconds, request_seconds;
};

// As Prometheus reads it.
std::string router_metrics_text(const RouterMetrics& metrics,
                                const std::vector<std::unique_ptr<Backend>>& prefills,
                                const std::vector<std::unique_ptr<Backend>>& decodes);

}  // namespace ladder
