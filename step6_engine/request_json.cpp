#include "step6_engine/request_json.h"

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step6_engine/kv_transfer_json.h"
#include "step6_engine/sampling_json.h"

namespace ladder {

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
      request.prompt_token_ids = json_token_ids(value, what);
      LADDER_CHECK(!request.prompt_token_ids.empty(), "{}: the prompt is empty", what);
      has_ids = true;
    } else if (key == "request_id") {
      if (value.is_null()) continue;
      request.request_id = json_string(value, what);
      LADDER_CHECK(!request.request_id.empty(), "{}: it is empty", what);
    } else if (key == "kv_transfer_params") {
      if (value.is_null()) continue;
      request.kv_transfer = parse_kv_transfer(value, what);
    } else if (!set_sampling_field(request.sampling, key, value, what)) {
      fail(
          "{}: unknown field {}; expected prompt or prompt_token_ids, request_id, kv_transfer_params, and {}",
          where, json_brief(key), sampling_field_names());
    }
  }
  LADDER_CHECK(request.prompt.has_value() || has_ids, "{}: expected \"prompt\" or \"prompt_token_ids\"",
               where);
  LADDER_CHECK(!(request.prompt.has_value() && has_ids),
               "{}: \"prompt\" and \"prompt_token_ids\" exclude each other", where);
  return request;
}

}  // namespace ladder
