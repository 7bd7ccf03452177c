#include "step6_engine/server/openai/choice_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "step6_engine/server/openai/json_text.h"
#include "step6_engine/server/openai/usage.h"

namespace ladder {

void append_finish(std::string& out, FinishReason reason, const StopReason& stop_reason, bool has_called) {
  if (reason == FinishReason::none) {
    out += "\"finish_reason\":null,\"stop_reason\":null";
    return;
  }
  out += "\"finish_reason\":\"";
  out += has_called && reason == FinishReason::stop ? "tool_calls" : finish_reason_name(reason);
  out += "\",\"stop_reason\":";
  if (const auto* id = std::get_if<int32_t>(&stop_reason))
    out += std::to_string(*id);
  else if (const auto* text = std::get_if<std::string>(&stop_reason))
    append_json_string(out, *text);
  else
    out += "null";
}

void append_ids(std::string& out, std::span<const int32_t> ids) {
  fmt::format_to(std::back_inserter(out), "[{}]", fmt::join(ids, ","));
}

void append_tool_calls(std::string& out, std::span<const ToolCallDelta> calls, bool streamed) {
  out += "\"tool_calls\":[";
  for (const ToolCallDelta& call : calls) {
    if (out.back() != '[') out += ',';
    out += '{';
    if (streamed) fmt::format_to(std::back_inserter(out), "\"index\":{},", call.index);
    if (!call.id.empty()) {
      out += "\"id\":";
      append_json_string(out, call.id);
      out += ",\"type\":\"function\",";
    }
    out += "\"function\":{";
    if (!call.name.empty()) {
      out += "\"name\":";
      append_json_string(out, call.name);
      out += ',';
    }
    out += "\"arguments\":";
    append_json_string(out, call.arguments);
    out += "}}";
  }
  out += ']';
}

std::string answer_head(const AnswerPlan& plan, std::string_view object) {
  std::string head = "{\"id\":";
  append_json_string(head, plan.id);
  fmt::format_to(std::back_inserter(head), ",\"object\":\"{}\",\"created\":{},\"model\":", object,
                 plan.created);
  append_json_string(head, plan.model->names.front());
  head += ",\"choices\":[";
  return head;
}

void append_usage(std::string& out, const Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"prompt_tokens\":{},\"total_tokens\":{},\"completion_tokens\":{}",
                 usage.num_prompt_tokens, usage.num_prompt_tokens + usage.num_completion_tokens,
                 usage.num_completion_tokens);
  if (usage.num_cached_tokens)
    fmt::format_to(std::back_inserter(out), ",\"prompt_tokens_details\":{{\"cached_tokens\":{}}}",
                   *usage.num_cached_tokens);
  out += '}';
}

}  // namespace ladder
