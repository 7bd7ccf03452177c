#include "cli/bench/serve_plan.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <numbers>
#include <random>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// In (0, 1), of 53 bits. The standard library's distributions differ from one implementation to the next.
double uniform(std::mt19937_64& random) {
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}

double normal(std::mt19937_64& random) {  // Box and Muller
  const double radius = std::sqrt(-2.0 * std::log(uniform(random)));
  return radius * std::cos(2.0 * std::numbers::pi * uniform(random));
}

// Of mean `shape`: Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
double gamma(std::mt19937_64& random, double shape) {
  if (shape < 1.0) return gamma(random, shape + 1.0) * std::pow(uniform(random), 1.0 / shape);
  const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = normal(random), v = std::pow(1.0 + c * x, 3.0);
    if (v > 0.0 && std::log(uniform(random)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

std::string joined(const std::vector<int32_t>& ids) {
  std::string text = "[";
  for (size_t i = 0; i < ids.size(); ++i)
    fmt::format_to(std::back_inserter(text), "{}{}", i == 0 ? "" : ",", ids[i]);
  return text + "]";
}

}  // namespace

std::string authorization(const std::string& api_key) {
  return api_key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", api_key);
}

ServeRequest make_message(const Request& request, const MessageOptions& options) {
  const SamplingParams& sampling = request.sampling;
  LADDER_CHECK(sampling.max_tokens, "every request of a load needs max_tokens");
  ServeRequest made;
  made.max_tokens = *sampling.max_tokens;
  made.exact = sampling.ignore_eos;
  Json fields = {{"model", options.model},
                 {options.chat ? "max_completion_tokens" : "max_tokens", made.max_tokens},
                 {"temperature", sampling.temperature},
                 {"ignore_eos", sampling.ignore_eos},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
  fields.update(options.extra_body);
  std::string prompt;
  if (options.chat) {
    LADDER_CHECK(request.prompt.has_value(), "a chat needs a text, not token ids");
    prompt = "\"messages\":" + Json::array({{{"role", "user"}, {"content", *request.prompt}}}).dump();
  } else if (request.prompt) {
    prompt = "\"prompt\":" + Json(*request.prompt).dump();
  } else {
    made.num_prompt_tokens = static_cast<int64_t>(request.prompt_token_ids.size());
    prompt = "\"prompt\":" + joined(request.prompt_token_ids);
  }
  const std::string body = fmt::format("{{{},{}", prompt, fields.dump().substr(1));
  made.message = fmt::format(
      "POST {}{} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n{}"
      "Content-Length: {}\r\n\r\n{}",
      options.address.path, options.chat ? "/v1/chat/completions" : "/v1/completions",
      options.address.authority, authorization(options.api_key), body.size(), body);
  return made;
}

void words_for_ids(std::vector<Request>& requests) {
  constexpr std::array<const char*, 32> kWords = {
      "the", "day",   "went",  "said",  "was",  "little", "happy", "dog",  "cat", "big",   "play",
      "to",  "and",   "with",  "house", "tree", "they",   "saw",   "very", "red", "ball",  "friend",
      "one", "found", "water", "home",  "sun",  "bird",   "good",  "new",  "old", "wanted"};
  for (Request& request : requests) {
    std::string text;
    for (const int32_t id : request.prompt_token_ids) {
      if (!text.empty()) text += ' ';
      text += kWords[static_cast<size_t>(id) % kWords.size()];
    }
    request.prompt = std::move(text);
    request.prompt_token_ids.clear();
  }
}

std::vector<double> arrival_times(int64_t count, double rate, double burstiness, uint64_t seed) {
  if (rate <= 0.0) return {};
  std::mt19937_64 random(seed);
  std::vector<double> times(static_cast<size_t>(count));
  double sum = 0.0;
  for (double& time : times) {
    time = sum;  // the first at once
    sum += burstiness > 0.0 ? gamma(random, burstiness) : 1.0;
  }
  const double scale = static_cast<double>(count) / rate / sum;
  for (double& time : times) time *= scale;
  return times;
}

}  // namespace ladder
