#pragma once
// JSON lines out: what other programs read. One line is one JSON object, complete, with a newline at its end.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step6_engine/request.h"

namespace ladder {

// {"index", "prompt_token_ids", "outputs": [{"token_ids", "text", "finish_reason", "stop_reason", "error"?,
// "logprobs"?, "top"?}], "metrics"}
//
// text is null without a tokenizer. stop_reason is the stop string or stop id that ended the completion, else
// null; error says what went wrong where finish_reason is "error". logprobs has one number per token; top,
// where some or all of the vocabulary were asked for, one list per token of {"token_id", "logprob"}, best
// first.
std::string generate_line(int64_t index, const RequestOutput& output, std::optional<int64_t> num_logprobs);

// {"index", "token_ids", "logprobs": [null, -1.25, ...], "top"?}: entry i is about token i, given those
// before it.
std::string score_line(int64_t index, const RequestOutput& output, int64_t num_top);

// The perplexity of that many tokens with this sum of log probabilities; null where there was nothing to
// score.
std::string score_summary_line(int64_t num_tokens, double sum_logprobs);

std::string json_string_literal(std::string_view text);  // with quotes
std::string json_list(std::span<const int32_t> ids);     // [1,2,3]
std::string json_float(double value);  // shortest digits that give it back; null if not finite

}  // namespace ladder
