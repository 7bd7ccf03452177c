#pragma once
// vLLM's /tokenize and /detokenize: bodies to answers.
#include <string>

#include "step6_engine/server/http/exchange.h"
#include "step6_engine/server/openai/served_model.h"

namespace ladder {

// {"prompt": "..."} or {"messages": [...]} to {"count":..,"max_model_len":..,"tokens":[..],"token_strs":..}; the
// strings where return_token_strs asks for them.
std::string tokenize_answer(const HttpRequest& request, const ServedModel& model);
// {"tokens": [..]} to {"prompt": "..."}.
std::string detokenize_answer(const HttpRequest& request, const ServedModel& model);

}  // namespace ladder
