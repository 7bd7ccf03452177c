#pragma once
// Chat templates: a conversation as the one text that a chat model was trained on.
//
//     <|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
//
// A checkpoint brings its template as a Jinja program. We run no programs from checkpoints: the templates of
// the supported families are built in, and the checkpoint's text only says which of them it is. A template
// that is none of them is an error, for a prompt that is slightly wrong gives answers that are slightly
// wrong.
//
// What people typed is never parsed for special tokens: a conversation is rendered in segments (tokenizer.h),
// of which only those that the template wrote are trusted. Typing <|im_end|> does not end one's turn.
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

class ChatTemplate {
 public:
  // Recognises the template's text. `bos_token` is the text of the begin token, for templates that write it.
  // Error, starting with `what`, where it is none of the built-in ones.
  static ChatTemplate recognise(std::string_view jinja, std::string_view bos_token, std::string_view what);

  // The built-in template's name: "qwen3", "chatml", "llama3" or "llama3.1".
  std::string_view name() const;

  // The conversation in segments; all of them one after the other are the text. Error for no messages, or a
  // role that is none of system, user and assistant.
  std::vector<TextSegment> render_segments(std::span<const ChatMessage> messages,
                                           const ChatOptions& options = {}) const;
  std::string render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

 private:
  enum class Kind { kChatMl, kQwen3, kLlama3, kLlama31 };

  Kind kind_ = Kind::kChatMl;
  std::string default_system_;  // ChatML: the system message where the conversation has none; empty: none
  std::string bos_token_;       // Llama
  bool always_prompt_ = false;  // Llama 3's first template asks for an answer whether wanted or not
};

// The template of a checkpoint's folder: chat_template.jinja, else `chat_template` in tokenizer_config.json
// (a string, or a list of named ones of which "default" is taken). Error where there is none, or it is not
// supported.
ChatTemplate load_chat_template(const std::filesystem::path& directory);

// The prompt's token ids. The template writes the begin token itself where its model wants one.
std::vector<int32_t> encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                 std::span<const ChatMessage> messages, const ChatOptions& options = {});

}  // namespace ladder
