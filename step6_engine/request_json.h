#pragma once
// A request from JSON, as a line of a file or the body of an HTTP request has it:
//
//   {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
//   {"prompt_token_ids": [1, 2, 3], "stop": ["\n"], "seed": 7}
//
// The fields are those of SamplingParams (sampling_json.h), request_id, and kv_transfer_params (kv_transfer_json.h).
#include <string_view>

#include "step6_engine/request.h"

namespace ladder {

// `defaults`: the sampling of a request that says nothing else. `where` names the text in messages. Error,
// beginning with `where`: not a JSON object, neither or both of prompt and prompt_token_ids, an unknown
// field, a value of the wrong type, an empty prompt.
Request parse_request_json(std::string_view text, std::string_view where, const SamplingParams& defaults);

}  // namespace ladder
