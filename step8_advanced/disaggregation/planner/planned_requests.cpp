#include "step8_advanced/disaggregation/planner/planned_requests.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>
#include <string_view>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step7_parallel/data/simulation/draws.h"

namespace ladder {

namespace {

constexpr int64_t kMostTokens = 1 << 24, kMostRequests = 1'000'000;

void check_fields(const Json& line, const std::string& what) {
  constexpr std::string_view kFields[] = {"arrival", "prompt_tokens", "output_tokens", "cached_share"};
  for (const auto& [key, value] : line.items())
    LADDER_CHECK(std::ranges::find(kFields, key) != std::end(kFields),
                 "{}: unknown field {}; expected arrival, prompt_tokens, output_tokens and cached_share",
                 what, json_brief(Json(key)));
}

int64_t cached_tokens(int64_t prompt, double share) {
  return std::min(prompt - 1, static_cast<int64_t>(share * static_cast<double>(prompt)));
}

int64_t draw_length(std::mt19937_64& random, int64_t mean, double spread) {
  const auto away = static_cast<int64_t>(spread * static_cast<double>(mean));
  return std::max<int64_t>(1, draw_uniform(random, mean - away, mean + away));
}

}  // namespace

std::vector<PlannedRequest> draw_requests(int64_t count, double rate, const RequestShape& shape,
                                          uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<PlannedRequest> requests(static_cast<size_t>(count));
  double now = 0;
  for (PlannedRequest& request : requests) {
    now += draw_exponential(random, 1 / rate);
    request.arrival = now;
    request.num_prompt = draw_length(random, shape.prompt, shape.spread);
    request.num_output = draw_length(random, shape.output, shape.spread);
    request.num_cached = cached_tokens(request.num_prompt, shape.hit_rate);
  }
  return requests;
}

std::vector<PlannedRequest> load_requests(const std::filesystem::path& file) {
  std::istringstream text(read_text_file(file));
  std::vector<PlannedRequest> requests;
  int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string what = fmt::format("{}: line {}", file.string(), number);
    LADDER_CHECK(std::ssize(requests) < kMostRequests, "{}: expected at most {} requests", what,
                 kMostRequests);
    const Json json = parse_json(line, what);
    PlannedRequest request;
    request.arrival = json_number(json_at(json, "arrival", what), what + ": arrival");
    request.num_prompt =
        json_int(json_at(json, "prompt_tokens", what), what + ": prompt_tokens", 1, kMostTokens);
    request.num_output =
        json_int(json_at(json, "output_tokens", what), what + ": output_tokens", 1, kMostTokens);
    if (const Json* share = json_find(json, "cached_share", what)) {
      const double value = json_number(*share, what + ": cached_share");
      LADDER_CHECK(value >= 0 && value <= 1, "{}: cached_share is {}: expected 0 to 1", what, value);
      request.num_cached = cached_tokens(request.num_prompt, value);
    }
    check_fields(json, what);
    requests.push_back(request);
  }
  LADDER_CHECK(!requests.empty(), "{}: expected a request a line", file.string());
  std::ranges::stable_sort(requests, {}, &PlannedRequest::arrival);
  return requests;
}

double rate_of(const std::vector<PlannedRequest>& requests) {
  const double seconds = requests.empty() ? 0 : requests.back().arrival - requests.front().arrival;
  LADDER_CHECK(seconds > 0, "arrival: expected at least two requests, at different times");
  return static_cast<double>(requests.size() - 1) / seconds;
}

std::vector<PlannedRequest> at_rate(std::vector<PlannedRequest> requests, double rate) {
  const double scale = rate_of(requests) / rate, first = requests.front().arrival;
  for (PlannedRequest& request : requests) request.arrival = (request.arrival - first) * scale;
  return requests;
}

}  // namespace ladder
