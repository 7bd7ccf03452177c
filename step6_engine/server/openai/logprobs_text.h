#pragma once
// Log probabilities as the two APIs write them.
#include <cstdint>
#include <span>
#include <string>

#include "step4_runner/executor.h"
#include "step6_engine/server/openai/answer_plan.h"

namespace ladder {

// How a token is called in an answer: its text, which may be half a character; "token_id:7" where ids are asked for or
// it has no text.
std::string token_name(const AnswerPlan& plan, int32_t id);

// /v1/completions: {"text_offset":[..],"token_logprobs":[..],"tokens":[..],"top_logprobs":[{..},..]}. `prompt`: where it
// is echoed its tokens come first, the first of them without a log probability, and `prompt_logprobs` has one entry
// fewer than tokens. `text_offset`: the characters that the tokens before have, moved on. Of two tokens with the same
// text top_logprobs has the likelier one; the chosen token is always among them.
void append_completion_logprobs(std::string& out, const AnswerPlan& plan, std::span<const int32_t> prompt,
                                std::span<const PositionLogprobs> prompt_logprobs,
                                std::span<const PositionLogprobs> logprobs, int64_t& text_offset);

// /v1/chat/completions: {"content":[{"token":..,"logprob":..,"bytes":[..],"top_logprobs":[..]},..]}.
void append_chat_logprobs(std::string& out, const AnswerPlan& plan,
                          std::span<const PositionLogprobs> logprobs);

// vLLM's prompt_logprobs: [null,{"7":{"logprob":..,"rank":..,"decoded_token":..},..},..].
void append_prompt_logprobs(std::string& out, const AnswerPlan& plan,
                            std::span<const PositionLogprobs> prompt_logprobs);

}  // namespace ladder
