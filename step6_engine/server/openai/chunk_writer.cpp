#include "step6_engine/server/openai/chunk_writer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "step1_layers/core/task_not_implemented.h"
#include "step6_engine/kv_transfer_json.h"
#include "step6_engine/server/openai/choice_text.h"
#include "step6_engine/server/openai/json_text.h"
#include "step6_engine/server/openai/logprobs_text.h"

namespace ladder {

ChunkWriter::ChunkWriter(const AnswerPlan& plan)
    : plan_(plan),
      head_("data: " +
            answer_head(plan, plan.api == Api::chat ? "chat.completion.chunk" : "text_completion")),
      choices_(plan.prompts.size() * static_cast<size_t>(plan.n)) {
  for (const AnswerPlan::Prompt& prompt : plan.prompts) usage_.num_prompt_tokens += prompt.num_tokens;
  usage_.num_cached_tokens = 0;
  if (plan.tool_call_parser)
    for (Choice& choice : choices_) choice.tools = plan.tool_call_parser();
}

void ChunkWriter::write_role(std::string& out, int64_t prompt, int64_t index) const {
  fmt::format_to(std::back_inserter(out),
                 "{}{{\"index\":{},\"delta\":{{\"role\":\"assistant\",\"content\":", head_, index);
  append_json_string(out, plan_.prompts[static_cast<size_t>(prompt)].echo);
  out += "},\"logprobs\":null,\"finish_reason\":null}]";
  if (plan_.return_token_ids) {
    out += ",\"prompt_token_ids\":";
    append_ids(out, plan_.prompts[static_cast<size_t>(prompt)].token_ids);
  }
  if (plan_.continuous_usage) {
    out += ",\"usage\":";
    append_usage(out, {plan_.prompts[static_cast<size_t>(prompt)].num_tokens, 0, {}});
  }
  out += "}\n\n";
}

bool ChunkWriter::write_delta(std::string& out, Choice& choice, const CompletionUpdate& update) const {
  if (!choice.tools) {
    out += ",\"delta\":{\"content\":";
    append_json_string(out, update.text);
    out += '}';
    return true;
  }
  ToolTextDelta delta = choice.tools->append(update.text);
  const bool ends = update.finish_reason != FinishReason::none;
  if (ends) {
    ToolTextDelta rest = choice.tools->finish();
    delta.content += rest.content;
    for (ToolCallDelta& call : rest.tool_calls) delta.tool_calls.push_back(std::move(call));
  }
  choice.has_called |= !delta.tool_calls.empty();
  if (delta.content.empty() && delta.tool_calls.empty() && !ends && !plan_.logprobs &&
      !plan_.return_token_ids)
    return false;
  out += ",\"delta\":{";
  if (!delta.content.empty()) {
    out += "\"content\":";
    append_json_string(out, delta.content);
  }
  if (!delta.tool_calls.empty()) {
    if (!delta.content.empty()) out += ',';
    append_tool_calls(out, delta.tool_calls, true);
  }
  out += '}';
  return true;
}

// >>> task 6.7: updates to chunks, and what they took
void ChunkWriter::write(std::string& out, int64_t prompt, const CompletionUpdate& update) {
  const int64_t index = prompt * plan_.n + update.completion;
  Choice& choice = choices_[static_cast<size_t>(index)];
  const bool ends = update.finish_reason != FinishReason::none;
  if (update.token_ids.empty() && !ends) return;
  const bool first = !std::exchange(choice.begun, true);
  if (!plan_.only_echo) {
    choice.num_tokens += static_cast<int64_t>(update.token_ids.size());
    usage_.num_completion_tokens += static_cast<int64_t>(update.token_ids.size());
  }

  if (first && plan_.api == Api::chat) write_role(out, prompt, index);
  const size_t begin = out.size();
  fmt::format_to(std::back_inserter(out), "{}{{\"index\":{}", head_, index);
  if (plan_.api == Api::chat) {
    if (!write_delta(out, choice, update)) return out.resize(begin);
  } else {
    out += ",\"text\":\"";
    if (first) append_json_escaped(out, plan_.prompts[static_cast<size_t>(prompt)].echo);
    if (!plan_.only_echo) append_json_escaped(out, update.text);
    out += '"';
    if (first && plan_.return_token_ids) {
      out += ",\"prompt_token_ids\":";
      append_ids(out, plan_.prompts[static_cast<size_t>(prompt)].token_ids);
    }
  }
  end_chunk(out, prompt, choice, update);
}

void ChunkWriter::end_chunk(std::string& out, int64_t prompt, Choice& choice,
                            const CompletionUpdate& update) const {
  out += ",\"logprobs\":";
  if (!plan_.logprobs || plan_.only_echo)
    out += "null";
  else if (plan_.api == Api::chat)
    append_chat_logprobs(out, plan_, update.logprobs);
  else
    append_completion_logprobs(out, plan_, {}, {}, update.logprobs, choice.text_offset);
  out += ',';
  append_finish(out, update.finish_reason, update.stop_reason, choice.has_called);
  if (plan_.return_token_ids) {
    out += ",\"token_ids\":";
    append_ids(out, plan_.only_echo ? std::span<const int32_t>() : update.token_ids);
  }
  out += "}]";
  if (plan_.continuous_usage) {
    out += ",\"usage\":";
    append_usage(out, {plan_.prompts[static_cast<size_t>(prompt)].num_tokens, choice.num_tokens, {}});
  } else if (plan_.include_usage) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

void ChunkWriter::count(const RequestOutput& output) {
  *usage_.num_cached_tokens += output.metrics.num_cached_tokens;
  kv_transfer_ = output.kv_transfer;
}

void ChunkWriter::finish(std::string& out) const {
  if (plan_.include_usage || kv_transfer_) {
    out += head_ + "]";
    if (plan_.include_usage) {
      out += ",\"usage\":";
      append_usage(out, usage_);
    }
    if (kv_transfer_) out += ",\"kv_transfer_params\":" + kv_transfer_text(*kv_transfer_);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}
// <<< task 6.7

}  // namespace ladder
