#pragma once
// Members of a choice that streamed and whole answers share.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step6_engine/request.h"
#include "step6_engine/server/openai/answer_plan.h"

namespace ladder {

// `"finish_reason":"stop","stop_reason":null`; "tool_calls" where a choice that stopped has called a tool.
void append_finish(std::string& out, FinishReason reason, const StopReason& stop_reason, bool has_called);

void append_ids(std::string& out, std::span<const int32_t> ids);  // [1,2]

// `"tool_calls":[..]`. Of a stream each has its index; what a piece does not bring is left out.
void append_tool_calls(std::string& out, std::span<const ToolCallDelta> calls, bool streamed);

// `{"id":..,"object":..,"created":..,"model":..,"choices":[`
std::string answer_head(const AnswerPlan& plan, std::string_view object);

}  // namespace ladder
