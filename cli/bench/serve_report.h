#pragma once
// The figures of a load, in the field's columns (those of vllm bench serve).
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/serve_load.h"
#include "step2_model/json.h"

namespace ladder {

struct Spread {
  double mean = 0.0, median = 0.0, p99 = 0.0, max = 0.0;
};
Spread spread_of(const std::vector<double>& values);

// What a request must keep to count for goodput; in milliseconds, none: no bound.
struct ServeObjective {
  std::optional<double> ttft, tpot, e2el;
  bool any() const { return ttft || tpot || e2el; }
};
// {"ttft:200", "tpot:50"}. Error: another name, or no number.
ServeObjective parse_goodput(const std::vector<std::string>& bounds);

// In seconds, of one record that did not fail:
double time_to_first_token(const ServeRecord& record);
// The mean time of the tokens after the first one, none where there is only one.
std::optional<double> time_per_output_token(const ServeRecord& record);
double end_to_end_latency(const ServeRecord& record);  // to the last token

struct ServeSummary {
  double seconds = 0.0;
  int64_t completed = 0, failed = 0;
  int64_t num_prompt_tokens = 0, num_output_tokens = 0,
          num_cached_tokens = 0;  // of completed requests, the server's count
  int64_t num_chunks = 0;  // that brought tokens; fewer than tokens where the server put several into one
  int64_t peak_in_flight = 0;
  Spread ttft, tpot, itl, e2el;  // ITL: the time between two chunks of a request, over all requests
  std::optional<int64_t> good;   // requests within the objective
  std::map<std::string, int64_t> errors;
  // The client: how late it sent, and how busy its busiest thread was (1: always).
  Spread late;
  double busiest_thread = 0.0, cpu_seconds = 0.0;

  double per_second(int64_t count) const {
    return seconds > 0.0 ? static_cast<double>(count) / seconds : 0.0;
  }
};

ServeSummary summarise(const LoadResult& result, const ServeObjective& objective);

std::string format_summary(const ServeSummary& summary);
Json summary_json(const ServeSummary& summary);
// Every request's own figures; with the time between its chunks where `gaps`.
Json requests_json(const LoadResult& result, bool gaps);

}  // namespace ladder
