#include "step6_engine/server/openai/logprobs_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "step6_engine/server/openai/json_text.h"

namespace ladder {

namespace {

void append_number(std::string& out, int64_t number) {
  fmt::format_to(std::back_inserter(out), "{}", number);
}

// Code points, as Python counts a text's characters; the name of a broken character is one U+FFFD or more.
int64_t num_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

// {"text":logprob,..}: the chosen one first.
void append_top_of_completion(std::string& out, const AnswerPlan& plan, const PositionLogprobs& position) {
  std::vector<std::pair<std::string, float>> entries;
  const auto add = [&](const TokenLogprob& token) {
    std::string name = token_name(plan, token.token_id);
    const auto same =
        std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.first == name; });
    if (same == entries.end())
      entries.emplace_back(std::move(name), token.logprob);
    else
      same->second = std::max(same->second, token.logprob);
  };
  add(position.chosen);
  for (const TokenLogprob& token : position.top) add(token);
  out += '{';
  for (const auto& [name, logprob] : entries) {
    if (out.back() != '{') out += ',';
    append_json_string(out, name);
    out += ':';
    append_json_logprob(out, logprob);
  }
  out += '}';
}

// "token":..,"logprob":..,"bytes":[..]
void append_chat_token(std::string& out, const AnswerPlan& plan, const TokenLogprob& token) {
  out += "\"token\":";
  append_json_string(out, token_name(plan, token.token_id));
  out += ",\"logprob\":";
  append_json_logprob(out, token.logprob);
  const Tokenizer* tokenizer = plan.model->tokenizer.get();
  if (tokenizer == nullptr || !tokenizer->has_token(token.token_id)) {
    out += ",\"bytes\":null";
    return;
  }
  out += ",\"bytes\":[";
  for (const char byte : tokenizer->token_bytes(token.token_id)) {
    if (out.back() != '[') out += ',';
    append_number(out, static_cast<unsigned char>(byte));
  }
  out += ']';
}

}  // namespace

std::string token_name(const AnswerPlan& plan, int32_t id) {
  const Tokenizer* tokenizer = plan.model->tokenizer.get();
  if (plan.return_tokens_as_token_ids || tokenizer == nullptr || !tokenizer->has_token(id))
    return fmt::format("token_id:{}", id);
  return tokenizer->decode({&id, 1});
}

void append_completion_logprobs(std::string& out, const AnswerPlan& plan, std::span<const int32_t> prompt,
                                std::span<const PositionLogprobs> prompt_logprobs,
                                std::span<const PositionLogprobs> logprobs, int64_t& text_offset) {
  std::string offsets, values, tokens, top;
  const auto add_token = [&](int32_t id) {
    const std::string name = token_name(plan, id);
    append_number(offsets, text_offset);
    append_json_string(tokens, name);
    text_offset += num_characters(name);
  };
  const auto add = [&](const PositionLogprobs& position) {
    if (!tokens.empty())
      for (std::string* list : {&offsets, &values, &tokens, &top}) *list += ',';
    add_token(position.chosen.token_id);
    append_json_logprob(values, position.chosen.logprob);
    append_top_of_completion(top, plan, position);
  };
  if (!prompt.empty()) {
    add_token(prompt[0]);
    values += "null";
    top += "null";
  }
  for (const PositionLogprobs& position : prompt_logprobs) add(position);
  for (const PositionLogprobs& position : logprobs) add(position);
  fmt::format_to(std::back_inserter(out),
                 "{{\"text_offset\":[{}],\"token_logprobs\":[{}],\"tokens\":[{}],\"top_logprobs\":[{}]}}",
                 offsets, values, tokens, top);
}

void append_chat_logprobs(std::string& out, const AnswerPlan& plan,
                          std::span<const PositionLogprobs> logprobs) {
  out += "{\"content\":[";
  for (const PositionLogprobs& position : logprobs) {
    if (out.back() != '[') out += ',';
    out += '{';
    append_chat_token(out, plan, position.chosen);
    out += ",\"top_logprobs\":[";
    for (const TokenLogprob& token : position.top) {
      if (out.back() != '[') out += ',';
      out += '{';
      append_chat_token(out, plan, token);
      out += '}';
    }
    out += "]}";
  }
  out += "]}";
}

void append_prompt_logprobs(std::string& out, const AnswerPlan& plan,
                            std::span<const PositionLogprobs> prompt_logprobs) {
  out += "[null";
  for (const PositionLogprobs& position : prompt_logprobs) {
    out += ",{";
    const auto add = [&](const TokenLogprob& token, int64_t rank) {
      if (out.back() != '{') out += ',';
      fmt::format_to(std::back_inserter(out), "\"{}\":{{\"logprob\":", token.token_id);
      append_json_logprob(out, token.logprob);
      out += ",\"rank\":";
      if (rank > 0)
        append_number(out, rank);
      else
        out += "null";  // it is not among those listed
      out += ",\"decoded_token\":";
      append_json_string(out, token_name(plan, token.token_id));
      out += '}';
    };
    int64_t rank_of_chosen = 0;
    for (size_t i = 0; i < position.top.size(); ++i)
      if (position.top[i].token_id == position.chosen.token_id) rank_of_chosen = static_cast<int64_t>(i) + 1;
    add(position.chosen, rank_of_chosen);
    for (size_t i = 0; i < position.top.size(); ++i)
      if (position.top[i].token_id != position.chosen.token_id)
        add(position.top[i], static_cast<int64_t>(i) + 1);
    out += '}';
  }
  out += ']';
}

}  // namespace ladder
