#pragma once
// The bodies of the two POSTs that generate, as plans. Error: ApiError, Error beginning with the field.
#include <memory>

#include "step6_engine/server/http/exchange.h"
#include "step6_engine/server/openai/answer_plan.h"

namespace ladder {

// Sequences that one body may ask for: prompts times n. A prompt list is cut into requests of the engine, which all
// wait in its queue.
inline constexpr int64_t kMaxSequencesOfBody = 2048;

GenerationPlan completion_plan(const HttpRequest& request, std::shared_ptr<const ServedModel> model);
GenerationPlan chat_plan(const HttpRequest& request, std::shared_ptr<const ServedModel> model);

}  // namespace ladder
