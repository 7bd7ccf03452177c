#pragma once
// Chat templates: a conversation as the one text that a chat model was trained on.
//
//     <|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
//
// A checkpoint brings its template as a Jinja program; it is read when the checkpoint is (jinja/parser.h) and run for
// every conversation (jinja/interpreter.h), with the result that transformers has with jinja2. What it may use is
// bounded (jinja/budget.h).
//
// What people typed never becomes a control token: a conversation is rendered in segments (tokenizer.h), of which only
// those that the template itself wrote are trusted, however it cuts and joins texts. Typing <|im_end|> does not end
// one's turn, whether the tokenizer calls <|im_end|> special or not.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step2_model/json.h"
#include "step2_model/tokenizer/tokenizer.h"

namespace ladder {

struct ChatMessage {
  std::string role;  // system, user, assistant, or what else the template knows
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;                   // end with the beginning of the assistant's turn
  std::optional<bool> enable_thinking = std::nullopt;  // Qwen3: false closes the thinking before it begins
  // Llama 3.1 and later: today's date, the template's date_string. Without it the date is the one that the template
  // falls back on, so that a prompt, and what the prefix cache holds of it, stays the same from day to day.
  std::optional<std::string> date = std::nullopt;
  // What the template's clock (strftime_now) shows; without it the 26th of July 2024, for the same reason.
  std::optional<std::chrono::system_clock::time_point> now = std::nullopt;
};

// A conversation as a request brings it.
struct ChatRequest {
  // A list of objects, each with a role. What else they have is between the request and the template: content (a
  // string, null, or parts), name, reasoning_content, tool_calls, tool_call_id.
  OrderedJson messages;
  OrderedJson tools, documents;  // null: none
  // Further variables of the template (chat_template_kwargs): an object whose names are none of the template's own.
  OrderedJson variables = OrderedJson::object();
  ChatOptions options;
};

// The texts of the tokens that a template may write by name; empty: there is none.
struct ChatTokens {
  std::string bos_token, eos_token, pad_token, unk_token;
};

class ChatTemplate {
 public:
  // Reads a template; `what` is what errors call it. Error, with the line: no Jinja, a statement, filter or test that is
  // not supported, a bos_token or eos_token that it writes and that is not in `tokens`.
  static ChatTemplate parse(std::string_view jinja, const ChatTokens& tokens, std::string_view what);

  bool has_thinking_switch()
      const;               // whether ChatOptions::enable_thinking may be given: it reads enable_thinking
  bool has_date() const;   // whether ChatOptions::date may be given: it reads date_string
  bool has_clock() const;  // whether ChatOptions::now may be given: it calls strftime_now
  bool has_tools() const;  // whether it reads tools: else a request's tools would go unseen

  // The tokenizer's added tokens in <> or [] that the template writes: in what people typed they are plain text. A
  // token counts as written where its text stands in the template, or its parts around the name of a role do: phi's
  // '<|' + role + '|>'.
  std::vector<std::string_view> control_tokens(const Tokenizer& tokenizer) const;

  // The conversation in segments; all of them one after the other are the text. Error: no messages, one without a role,
  // options that the template does not read, and with the template's name and line what the template refuses, what is
  // not supported, and what exceeds the limits.
  std::vector<TextSegment> render_segments(const ChatRequest& request) const;
  std::vector<TextSegment> render_segments(std::span<const ChatMessage> messages,
                                           const ChatOptions& options = {}) const;
  std::string render(const ChatRequest& request) const;
  std::string render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

 private:
  struct Program;
  explicit ChatTemplate(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  bool reads(std::string_view name) const;

  std::shared_ptr<const Program> program_;  // never changes: a template may render in several threads
};

// The template of a checkpoint's folder: chat_template.jinja, else `chat_template` in tokenizer_config.json
// (a string, or a list of named ones of which "default" is taken). Error where there is none, or it cannot be read.
ChatTemplate load_chat_template(const std::filesystem::path& directory);

// The control tokens of the template that end a turn, such as <|im_end|>: an answer ends there, even where the checkpoint
// lists another end token only.
std::vector<int32_t> turn_end_token_ids(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// The prompt's token ids. The template writes the begin token itself where its model wants one.
// Besides control_tokens(), those are control tokens that the template has put together in this conversation.
std::vector<int32_t> encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                 const ChatRequest& request);
std::vector<int32_t> encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                 std::span<const ChatMessage> messages, const ChatOptions& options = {});

}  // namespace ladder
