#pragma once
// The fields of SamplingParams from JSON, under their names there: the one table that lines of a file
// (request_json.h) and bodies of HTTP requests (server/openai) are read with.
//
// A field that is null counts as absent, but where the default says something and there is an "off", null is off:
// max_tokens (to the end), top_k, seed, stop, logprobs, prompt_logprobs.
#include <cstdint>
#include <string>
#include <vector>

#include "step2_model/json.h"
#include "step3_sequence/sampling_params.h"

namespace ladder {

// Sets the field that is called `key`. False, and nothing is set: there is none. `what` names it in messages. Error,
// beginning with `what`: a value of the wrong type. Ranges are validate_sampling_params()'s.
bool set_sampling_field(SamplingParams& params, const std::string& key, const Json& value,
                        const std::string& what);
bool is_sampling_field(std::string_view key);
std::string sampling_field_names();  // "allowed_token_ids, bad_words, ..."

// A list of ids, each at least 0. Error, beginning with `what`.
std::vector<int32_t> json_token_ids(const Json& value, const std::string& what);

}  // namespace ladder
