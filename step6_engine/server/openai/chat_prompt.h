#pragma once
// The part of a chat's body that becomes the prompt: /v1/chat/completions and /tokenize read it alike.
#include <cstdint>
#include <string>
#include <vector>

#include "step6_engine/server/openai/request_body.h"

namespace ladder {

struct ChatPrompt {
  std::vector<int32_t> token_ids;
  std::string last_assistant_text;  // of the last message, where it is the assistant's: what `echo` shows
  bool has_tools = false;
};

// Reads messages, tools, documents, chat_template_kwargs, reasoning_effort, add_generation_prompt,
// continue_final_message and add_special_tokens, renders and encodes. Content in parts is joined by newlines, as vLLM
// does for templates that take texts; the arguments of an earlier tool call, a JSON text, are read. Error: ApiError, and
// what the template refuses.
ChatPrompt chat_prompt(RequestBody& body, const ServedModel& model);

}  // namespace ladder
