#include "step6_engine/request_json.h"

#include <limits>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"

namespace ladder {

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

std::vector<int32_t> token_ids_of(const Json& value, const std::string& what) {
  LADDER_CHECK(value.is_array(), "{}: expected a list of token ids, found {}", what, json_brief(value));
  std::vector<int32_t> ids;
  for (size_t i = 0; i < value.size(); ++i)
    ids.push_back(static_cast<int32_t>(json_int(value[i], fmt::format("{}[{}]", what, i), 0, kMaxInt32)));
  return ids;
}

uint64_t seed_of(const Json& value, const std::string& what) {
  LADDER_CHECK(value.is_number_unsigned(), "{}: expected an integer in [0, 2^64), found {}", what,
               json_brief(value));
  return value.get<uint64_t>();
}

std::vector<std::string> strings_of(const Json& value, const std::string& what) {
  if (value.is_string()) return {value.get<std::string>()};
  LADDER_CHECK(value.is_array(), "{}: expected a string or a list of strings, found {}", what,
               json_brief(value));
  std::vector<std::string> strings;
  for (size_t i = 0; i < value.size(); ++i)
    strings.push_back(json_string(value[i], fmt::format("{}[{}]", what, i)));
  return strings;
}

// False: no such field.
bool set_sampling_field(SamplingParams& params, const std::string& key, const Json& value,
                        const std::string& what) {
  if (key == "max_tokens")
    params.max_tokens = json_int(value, what);
  else if (key == "temperature")
    params.temperature = json_number(value, what);
  else if (key == "top_k")
    params.top_k = json_int(value, what);
  else if (key == "top_p")
    params.top_p = json_number(value, what);
  else if (key == "min_p")
    params.min_p = json_number(value, what);
  else if (key == "repetition_penalty")
    params.repetition_penalty = json_number(value, what);
  else if (key == "presence_penalty")
    params.presence_penalty = json_number(value, what);
  else if (key == "frequency_penalty")
    params.frequency_penalty = json_number(value, what);
  else if (key == "seed")
    params.seed = seed_of(value, what);
  else if (key == "n")
    params.n = json_int(value, what);
  else if (key == "stop")
    params.stop = strings_of(value, what);
  else if (key == "stop_token_ids")
    params.stop_token_ids = token_ids_of(value, what);
  else if (key == "ignore_eos")
    params.ignore_eos = json_bool(value, what);
  else if (key == "logprobs")
    params.logprobs = json_int(value, what);
  else if (key == "priority")
    params.priority = static_cast<int32_t>(json_int(value, what, -kMaxInt32, kMaxInt32));
  else if (key == "cache_salt")
    params.cache_salt = json_string(value, what);
  else
    return false;
  return true;
}

}  // namespace

Request parse_request_json(std::string_view text, std::string_view where, const SamplingParams& defaults) {
  const Json object = parse_json(text, where);
  LADDER_CHECK(object.is_object(), "{}: expected an object like {{\"prompt\": \"...\"}}, found {}", where,
               json_brief(object));
  Request request;
  request.sampling = defaults;
  bool has_ids = false;
  for (const auto& [key, value] : object.items()) {
    const std::string what = fmt::format("{}: {}", where, key);
    if (key == "prompt") {
      request.prompt = json_string(value, what);
      LADDER_CHECK(!request.prompt->empty(), "{}: the prompt is empty", what);
    } else if (key == "prompt_token_ids") {
      request.prompt_token_ids = token_ids_of(value, what);
      LADDER_CHECK(!request.prompt_token_ids.empty(), "{}: the prompt is empty", what);
      has_ids = true;
    } else if (!set_sampling_field(request.sampling, key, value, what)) {
      fail(
          "{}: unknown field {}; expected prompt or prompt_token_ids, and max_tokens, temperature, "
          "top_k, top_p, "
          "min_p, repetition_penalty, presence_penalty, frequency_penalty, seed, n, stop, stop_token_ids, "
          "ignore_eos, "
          "logprobs, priority or cache_salt",
          where, json_brief(key));
    }
  }
  LADDER_CHECK(request.prompt.has_value() || has_ids, "{}: expected \"prompt\" or \"prompt_token_ids\"",
               where);
  LADDER_CHECK(!(request.prompt.has_value() && has_ids),
               "{}: \"prompt\" and \"prompt_token_ids\" exclude each other", where);
  return request;
}

}  // namespace ladder
