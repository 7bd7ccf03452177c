#pragma once
// Task 2.6: the chat templates that this project knows, and what each of them writes, as data.
//
// A template is known where its text as a whole is one of the table's: templates that look alike differ in a
// token that matters (a begin token before the first turn, a default system message, a thought that is opened
// for the model). The table holds the SHA-256 of each text. Before hashing, only what Jinja itself does
// before it reads a text is done: every line break becomes \n, and one at the very end does not count.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ladder {

enum class TurnStyle : uint8_t {
  chatml,  // <|im_start|>user\nHi<|im_end|>\n
  llama3,  // <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>, after the begin token
};

enum class Thinking : uint8_t {
  none,      // the template knows no thoughts: they are text like any other
  optional,  // old thoughts are dropped; enable_thinking = false closes the new one before it begins
  always,    // old thoughts are dropped; a new one is opened
};

struct ChatFormat {
  std::string_view name;  // "qwen2.5"
  TurnStyle style = TurnStyle::chatml;
  std::string_view default_system = {};  // chatml: the system message of a conversation without one
  Thinking thinking = Thinking::none;    // chatml
  bool writes_dates = false;             // llama3: the system turn begins with two dates
  bool always_prompts = false;           // llama3: the answer's turn is begun whether asked for or not
  // The added tokens that the template's text writes in any branch, the begin token aside.
  std::span<const std::string_view> control_tokens = {};
};

// By the hash of a template's text. nullptr: none of the known ones has it, and ChatTemplate::recognise
// (chat_template.cpp) refuses the text by name.
const ChatFormat* find_chat_format(std::string_view sha256);
// Error: no known template has this name; lists the names.
const ChatFormat& chat_format_named(std::string_view name);
// "chatml, qwen1.5, ...", for messages.
std::string chat_format_names();

// Of a template's text, in hexadecimal.
std::string chat_template_sha256(std::string_view jinja);

}  // namespace ladder
