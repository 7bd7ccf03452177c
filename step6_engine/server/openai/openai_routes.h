#pragma once
// OpenAI's paths, answered by an engine:
//
//   GET  /v1/models, /v1/models/NAME    what is served
//   POST /v1/completions, /v1/chat/completions
//   POST /tokenize, /detokenize         vLLM's
//   GET  /tokenizer_info                vLLM's, where it is asked for: it shows the chat template
#include <memory>

#include "step6_engine/engine_client.h"
#include "step6_engine/server/http/router.h"
#include "step6_engine/server/openai/served_model.h"

namespace ladder {

struct OpenAiOptions {
  bool tokenizer_info = false;  // vLLM: --enable-tokenizer-info-endpoint
};

// `client` outlives the routes and all their answers.
void add_openai_routes(Router& router, EngineClient& client, std::shared_ptr<const ServedModel> model,
                       OpenAiOptions options = {});

}  // namespace ladder
