#include "step6_engine/request_json.h"

#include <charconv>
#include <limits>
#include <map>

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

std::map<int32_t, double> logit_bias_of(const Json& value, const std::string& what) {
  LADDER_CHECK(value.is_object(), "{}: expected an object like {{\"42\": -1.5}}, found {}", what,
               json_brief(value));
  std::map<int32_t, double> bias;
  for (const auto& [key, number] : value.items()) {
    int32_t id = -1;
    const auto [rest, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    LADDER_CHECK(error == std::errc() && rest == key.data() + key.size() && id >= 0,
                 "{}: expected a token id, found {}", what, json_brief(Json(key)));
    LADDER_CHECK(bias.emplace(id, json_number(number, what + ": " + key)).second, "{}: token {} occurs twice",
                 what, id);
  }
  return bias;
}

// How a field of SamplingParams is set from a value that is not null; and from null, where that is "off".
struct Field {
  void (*set)(SamplingParams& params, const Json& value, const std::string& what);
  void (*set_off)(SamplingParams& params) = nullptr;
};

using P = SamplingParams;
using S = std::string;

const std::map<std::string, Field, std::less<>>& sampling_fields() {
  static const std::map<std::string, Field, std::less<>> fields = {
      {"max_tokens",
       {[](P& p, const Json& v, const S& what) { p.max_tokens = json_int(v, what); },
        [](P& p) { p.max_tokens.reset(); }}},
      {"min_tokens", {[](P& p, const Json& v, const S& what) { p.min_tokens = json_int(v, what); }}},
      {"temperature", {[](P& p, const Json& v, const S& what) { p.temperature = json_number(v, what); }}},
      {"top_k",
       {[](P& p, const Json& v, const S& what) { p.top_k = json_int(v, what); }, [](P& p) { p.top_k = 0; }}},
      {"top_p", {[](P& p, const Json& v, const S& what) { p.top_p = json_number(v, what); }}},
      {"min_p", {[](P& p, const Json& v, const S& what) { p.min_p = json_number(v, what); }}},
      {"repetition_penalty",
       {[](P& p, const Json& v, const S& what) { p.repetition_penalty = json_number(v, what); }}},
      {"presence_penalty",
       {[](P& p, const Json& v, const S& what) { p.presence_penalty = json_number(v, what); }}},
      {"frequency_penalty",
       {[](P& p, const Json& v, const S& what) { p.frequency_penalty = json_number(v, what); }}},
      {"seed",
       {[](P& p, const Json& v, const S& what) { p.seed = seed_of(v, what); }, [](P& p) { p.seed.reset(); }}},
      {"n", {[](P& p, const Json& v, const S& what) { p.n = json_int(v, what); }}},
      {"logit_bias", {[](P& p, const Json& v, const S& what) { p.logit_bias = logit_bias_of(v, what); }}},
      {"allowed_token_ids",
       {[](P& p, const Json& v, const S& what) { p.allowed_token_ids = token_ids_of(v, what); }}},
      {"bad_words", {[](P& p, const Json& v, const S& what) { p.bad_words = strings_of(v, what); }}},
      {"stop",
       {[](P& p, const Json& v, const S& what) { p.stop = strings_of(v, what); },
        [](P& p) { p.stop.clear(); }}},
      {"stop_token_ids",
       {[](P& p, const Json& v, const S& what) { p.stop_token_ids = token_ids_of(v, what); }}},
      {"include_stop_str_in_output",
       {[](P& p, const Json& v, const S& what) { p.include_stop_str_in_output = json_bool(v, what); }}},
      {"skip_special_tokens",
       {[](P& p, const Json& v, const S& what) { p.skip_special_tokens = json_bool(v, what); }}},
      {"ignore_eos", {[](P& p, const Json& v, const S& what) { p.ignore_eos = json_bool(v, what); }}},
      {"logprobs",
       {[](P& p, const Json& v, const S& what) { p.logprobs = json_int(v, what); },
        [](P& p) { p.logprobs.reset(); }}},
      {"prompt_logprobs",
       {[](P& p, const Json& v, const S& what) { p.prompt_logprobs = json_int(v, what); },
        [](P& p) { p.prompt_logprobs.reset(); }}},
      {"logprob_token_ids",
       {[](P& p, const Json& v, const S& what) { p.logprob_token_ids = token_ids_of(v, what); }}},
      {"priority", {[](P& p, const Json& v, const S& what) {
         p.priority = static_cast<int32_t>(json_int(v, what, -kMaxInt32, kMaxInt32));
       }}},
      {"cache_salt", {[](P& p, const Json& v, const S& what) { p.cache_salt = json_string(v, what); }}},
  };
  return fields;
}

// False: no such field.
bool set_sampling_field(SamplingParams& params, const std::string& key, const Json& value,
                        const std::string& what) {
  const auto field = sampling_fields().find(key);
  if (field == sampling_fields().end()) return false;
  if (!value.is_null())
    field->second.set(params, value, what);
  else if (field->second.set_off != nullptr)
    field->second.set_off(params);
  return true;
}

std::string names_of_fields() {
  std::string names;
  for (const auto& [name, field] : sampling_fields()) names += (names.empty() ? "" : ", ") + name;
  return names;
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
      if (value.is_null()) continue;
      request.prompt = json_string(value, what);
      LADDER_CHECK(!request.prompt->empty(), "{}: the prompt is empty", what);
    } else if (key == "prompt_token_ids") {
      if (value.is_null()) continue;
      request.prompt_token_ids = token_ids_of(value, what);
      LADDER_CHECK(!request.prompt_token_ids.empty(), "{}: the prompt is empty", what);
      has_ids = true;
    } else if (key == "request_id") {
      if (value.is_null()) continue;
      request.request_id = json_string(value, what);
      LADDER_CHECK(!request.request_id.empty(), "{}: it is empty", what);
    } else if (!set_sampling_field(request.sampling, key, value, what)) {
      fail("{}: unknown field {}; expected prompt or prompt_token_ids, request_id, and {}", where,
           json_brief(key), names_of_fields());
    }
  }
  LADDER_CHECK(request.prompt.has_value() || has_ids, "{}: expected \"prompt\" or \"prompt_token_ids\"",
               where);
  LADDER_CHECK(!(request.prompt.has_value() && has_ids),
               "{}: \"prompt\" and \"prompt_token_ids\" exclude each other", where);
  return request;
}

}  // namespace ladder
