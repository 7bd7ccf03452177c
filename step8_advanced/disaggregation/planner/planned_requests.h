#pragma once
// Who is going to come: drawn from rates and lengths, or read from what a log says.
#include <cstdint>
#include <filesystem>
#include <vector>

#include "step8_advanced/disaggregation/planner/plan_problem.h"

namespace ladder {

struct RequestShape {
  int64_t prompt = 2048, output = 256;  // tokens, in the mean
  double spread = 0.5;                  // lengths are uniform in mean * [1 - spread, 1 + spread]; 0 to 1
  double hit_rate = 0;                  // of a prompt, its beginning, that the cache has; below 1
};

// Arrivals of a Poisson process at that rate. The same seed gives the same lengths, and the same arrivals but for their scale.
std::vector<PlannedRequest> draw_requests(int64_t count, double rate, const RequestShape& shape,
                                          uint64_t seed);

// One line a request, in any order, sorted by arrival: {"arrival": seconds, "prompt_tokens": n, "output_tokens": n,
// "cached_share": x}, the last 0 where absent. Error naming file, line and field, one that is none of these included; no request; more than a
// million.
std::vector<PlannedRequest> load_requests(const std::filesystem::path& file);

// Requests a second, by their arrivals. Error: fewer than two, or all at one time.
double rate_of(const std::vector<PlannedRequest>& requests);
// The same requests coming at another rate.
std::vector<PlannedRequest> at_rate(std::vector<PlannedRequest> requests, double rate);

}  // namespace ladder
