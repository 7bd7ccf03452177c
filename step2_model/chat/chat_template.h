#pragma once
// Chat templates: a conversation as the one text that a chat model was trained on.
//
//     <|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
//
// A checkpoint brings its template as a Jinja program. We run no programs from checkpoints: the templates of
// the supported families are built in (known_templates.h), and the checkpoint's text as a whole says which of
// them it is. A template that is none of them is an error, for a prompt that is slightly wrong gives answers
// that are slightly wrong.
//
// What people typed never becomes a control token: a conversation is rendered in segments (tokenizer.h), of
// which only those that the template wrote are trusted. Typing <|im_end|> does not end one's turn, whether the
// tokenizer calls <|im_end|> special or not.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step2_model/tokenizer/tokenizer.h"

namespace ladder {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;                   // end with the beginning of the assistant's turn
  std::optional<bool> enable_thinking = std::nullopt;  // Qwen3: false closes the thinking before it begins
  // Llama 3.1 and later: today's date. Without it the date is the one that the template falls back on, so
  // that a prompt, and what the prefix cache holds of it, stays the same from day to day.
  std::optional<std::string> date = std::nullopt;
};

struct ChatFormat;  // known_templates.h

class ChatTemplate {
 public:
  // The built-in template whose text equals `jinja` as a whole. `bos_token` is the text of the begin token,
  // for templates that write it. Error, starting with `what`, where the text is none of the known ones, or
  // its template writes a begin token and there is none.
  static ChatTemplate recognise(std::string_view jinja, std::string_view bos_token, std::string_view what);
  // The built-in template of this name. Error: there is none; lists the names.
  static ChatTemplate named(std::string_view name, std::string_view bos_token);

  std::string_view name() const;     // "qwen3", "qwen2.5", "llama3.1", ...
  bool has_thinking_switch() const;  // whether ChatOptions::enable_thinking may be given
  bool has_date() const;             // whether ChatOptions::date may be given

  // The added tokens that the template writes: in what people typed they are plain text.
  std::vector<std::string_view> control_tokens() const;

  // The conversation in segments; all of them one after the other are the text. Error for no messages, or a
  // role that is none of system, user and assistant.
  std::vector<TextSegment> render_segments(std::span<const ChatMessage> messages,
                                           const ChatOptions& options = {}) const;
  std::string render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

 private:
  ChatTemplate(const ChatFormat& format, std::string_view bos_token, std::string_view what);

  const ChatFormat* format_;
  std::string bos_token_;  // empty where the template writes none
};

// The template of a checkpoint's folder: chat_template.jinja, else `chat_template` in tokenizer_config.json
// (a string, or a list of named ones of which "default" is taken). Error where there is none, or it is not
// known.
ChatTemplate load_chat_template(const std::filesystem::path& directory);

// The prompt's token ids. The template writes the begin token itself where its model wants one.
std::vector<int32_t> encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                 std::span<const ChatMessage> messages, const ChatOptions& options = {});

}  // namespace ladder
