#pragma once
// An answer that is sent when all of it is there.
#include <string>
#include <vector>

#include "step6_engine/request.h"
#include "step6_engine/server/openai/answer_plan.h"

namespace ladder {

// The JSON of a body. `outputs[i]` is that of plan.prompts[i].
std::string whole_answer(const AnswerPlan& plan, const std::vector<RequestOutput>& outputs);

}  // namespace ladder
