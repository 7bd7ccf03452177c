#include "step6_engine/sampling_json.h"

#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "step1_layers/core/error.h"
#include "step2_model/json_packed_ids.h"

namespace ladder {

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

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
       {[](P& p, const Json& v, const S& what) { p.allowed_token_ids = json_token_ids(v, what); }}},
      {"bad_words", {[](P& p, const Json& v, const S& what) { p.bad_words = strings_of(v, what); }}},
      {"stop",
       {[](P& p, const Json& v, const S& what) { p.stop = strings_of(v, what); },
        [](P& p) { p.stop.clear(); }}},
      {"stop_token_ids",
       {[](P& p, const Json& v, const S& what) { p.stop_token_ids = json_token_ids(v, what); }}},
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
       {[](P& p, const Json& v, const S& what) { p.logprob_token_ids = json_token_ids(v, what); }}},
      {"priority", {[](P& p, const Json& v, const S& what) {
         p.priority = static_cast<int32_t>(json_int(v, what, -kMaxInt32, kMaxInt32));
       }}},
      {"cache_salt", {[](P& p, const Json& v, const S& what) { p.cache_salt = json_string(v, what); }}},
  };
  return fields;
}

}  // namespace

std::vector<int32_t> json_token_ids(const Json& value, const std::string& what) {
  if (std::optional<std::vector<int32_t>> packed = packed_ids(value)) return std::move(*packed);
  LADDER_CHECK(value.is_array(), "{}: expected a list of token ids, found {}", what, json_brief(value));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value) {
    if (id.is_number_unsigned() && id.get<uint64_t>() <= uint64_t{kMaxInt32})
      ids.push_back(id.get<int32_t>());
    else  // the place of the wrong one is only written where there is one: a prompt may have a million ids
      json_int(id, fmt::format("{}[{}]", what, ids.size()), 0, kMaxInt32);
  }
  return ids;
}

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

bool is_sampling_field(std::string_view key) {
  return sampling_fields().contains(key);
}

std::string sampling_field_names() {
  std::string names;
  for (const auto& [name, field] : sampling_fields()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace ladder
