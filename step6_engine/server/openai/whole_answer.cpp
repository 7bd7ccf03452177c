#include "step6_engine/server/openai/whole_answer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "step6_engine/kv_transfer_json.h"
#include "step6_engine/server/openai/choice_text.h"
#include "step6_engine/server/openai/json_text.h"
#include "step6_engine/server/openai/logprobs_text.h"
#include "step6_engine/server/openai/usage.h"

namespace ladder {

namespace {

// `"message":{..}`; whether a tool was called.
bool append_message(std::string& out, const AnswerPlan& plan, const std::string& text) {
  ToolTextDelta message{plan.prompts[0].echo + text, {}};
  if (plan.tool_call_parser) {
    const std::unique_ptr<ToolCallParser> parser = plan.tool_call_parser();
    message.content = plan.prompts[0].echo;
    for (const bool last : {false, true}) {
      ToolTextDelta delta = last ? parser->finish() : parser->append(text);
      message.content += delta.content;
      for (ToolCallDelta& piece : delta.tool_calls) {
        if (static_cast<size_t>(piece.index) == message.tool_calls.size())
          message.tool_calls.push_back(std::move(piece));
        else
          message.tool_calls[static_cast<size_t>(piece.index)].arguments += piece.arguments;
      }
    }
  }
  out += "\"message\":{\"role\":\"assistant\",\"content\":";
  if (message.content.empty() && !message.tool_calls.empty())
    out += "null";
  else
    append_json_string(out, message.content);
  out += ",\"refusal\":null,";
  append_tool_calls(out, message.tool_calls, false);
  out += '}';
  return !message.tool_calls.empty();
}

void append_choice(std::string& out, const AnswerPlan& plan, size_t prompt, const RequestOutput& output,
                   const CompletionOutput& completion) {
  const AnswerPlan::Prompt& asked = plan.prompts[prompt];
  const std::string text = plan.only_echo ? "" : completion.text.value_or("");
  bool has_called = false;
  if (plan.api == Api::chat) {
    has_called = append_message(out, plan, text);
  } else {
    out += "\"text\":";
    append_json_string(out, asked.echo + text);
  }
  out += ",\"logprobs\":";
  if (!plan.logprobs) {
    out += "null";
  } else if (plan.api == Api::chat) {
    append_chat_logprobs(out, plan, completion.logprobs);
  } else {
    int64_t text_offset = 0;
    std::span<const int32_t> prompt_ids;
    std::span<const PositionLogprobs> prompt_logprobs, logprobs;
    if (plan.echo) prompt_ids = output.prompt_token_ids, prompt_logprobs = output.prompt_logprobs;
    if (!plan.only_echo) logprobs = completion.logprobs;
    append_completion_logprobs(out, plan, prompt_ids, prompt_logprobs, logprobs, text_offset);
  }
  out += ',';
  append_finish(out, completion.finish_reason, completion.stop_reason, has_called);
  if (plan.api == Api::completions && plan.prompt_logprobs) {
    out += ",\"prompt_logprobs\":";
    append_prompt_logprobs(out, plan, output.prompt_logprobs);
  }
  if (!plan.return_token_ids) return;
  if (plan.api == Api::completions) {
    out += ",\"prompt_token_ids\":";
    append_ids(out, output.prompt_token_ids);
  }
  out += ",\"token_ids\":";
  append_ids(out, plan.only_echo ? std::span<const int32_t>() : completion.token_ids);
}

}  // namespace

std::string whole_answer(const AnswerPlan& plan, const std::vector<RequestOutput>& outputs) {
  std::string out = answer_head(plan, plan.api == Api::chat ? "chat.completion" : "text_completion");
  Usage usage{.num_cached_tokens = 0};
  for (size_t prompt = 0; prompt < outputs.size(); ++prompt) {
    const RequestOutput& output = outputs[prompt];
    usage.num_prompt_tokens += plan.prompts[prompt].num_tokens;
    *usage.num_cached_tokens += output.metrics.num_cached_tokens;
    for (size_t i = 0; i < output.completions.size(); ++i) {
      const CompletionOutput& completion = output.completions[i];
      if (!plan.only_echo) usage.num_completion_tokens += static_cast<int64_t>(completion.token_ids.size());
      if (out.back() != '[') out += ',';
      fmt::format_to(std::back_inserter(out), "{{\"index\":{},", prompt * static_cast<size_t>(plan.n) + i);
      append_choice(out, plan, prompt, output, completion);
      out += '}';
    }
  }
  out += "],\"usage\":";
  append_usage(out, usage);
  if (plan.api == Api::chat && plan.prompt_logprobs) {
    out += ",\"prompt_logprobs\":";
    append_prompt_logprobs(out, plan, outputs[0].prompt_logprobs);
  }
  if (plan.api == Api::chat && plan.return_token_ids) {
    out += ",\"prompt_token_ids\":";
    append_ids(out, outputs[0].prompt_token_ids);
  }
  if (outputs[0].kv_transfer) out += ",\"kv_transfer_params\":" + kv_transfer_text(*outputs[0].kv_transfer);
  out += '}';
  return out;
}

}  // namespace ladder
