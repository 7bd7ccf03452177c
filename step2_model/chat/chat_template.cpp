#include "step2_model/chat/chat_template.h"

#include <algorithm>
#include <array>

#include "step1_layers/core/error.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/json_value.h"
#include "step2_model/chat/jinja/parser.h"

namespace ladder {
namespace {

using jinja::Interpreter;
using jinja::Value;

// Names that a request cannot give: they are set here, or mean something to the caller of transformers' function.
constexpr std::string_view kOwnNames[] = {
    "messages",     "tools",          "documents",     "add_generation_prompt",
    "bos_token",    "eos_token",      "pad_token",     "unk_token",
    "range",        "dict",           "namespace",     "raise_exception",
    "strftime_now", "tokenize",       "chat_template", "continue_final_message",
    "return_dict",  "return_tensors", "padding",       "truncation",
    "max_length",   "loop",           "caller",        "varargs",
    "kwargs"};

// Roles are part of control tokens in some templates ('<|' + role + '|>'): these words may be.
constexpr std::string_view kRoles[] = {"system",    "user",     "assistant", "tool",
                                       "developer", "function", "ipython"};

// A message as the template sees it: all of it from outside but the name of a known role.
Value message_value(Interpreter& in, const OrderedJson& message) {
  const Value value = jinja::value_of_json(in, message);
  jinja::Dict::Items items = value.dict()->items;
  for (auto& [key, held] : items) {
    if (key.string()->text.bytes() != "role") continue;
    const std::string& role = held.string()->text.bytes();
    if (std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles)) held = in.text(role);
  }
  return in.dict(std::move(items), jinja::Origin::outside);
}

void check_messages(const OrderedJson& messages) {
  LADDER_CHECK(messages.is_array() && !messages.empty(), "chat: expected at least one message");
  for (const OrderedJson& message : messages) {
    LADDER_CHECK(message.is_object(), "chat: expected every message to be an object");
    const auto role = message.find("role");
    LADDER_CHECK(role != message.end() && role->is_string(), "chat: expected every message to have a role");
  }
}

ChatRequest request_of(std::span<const ChatMessage> messages, const ChatOptions& options) {
  ChatRequest request;
  request.messages = OrderedJson::array();
  for (const ChatMessage& message : messages)
    request.messages.push_back({{"role", message.role}, {"content", message.content}});
  request.options = options;
  return request;
}

// The added tokens that a template may write to steer the model.
bool is_bracketed(std::string_view token) {
  return (token.starts_with('<') && token.ends_with('>')) || (token.starts_with('[') && token.ends_with(']'));
}

std::string text_of(const std::vector<TextSegment>& segments) {
  std::string text;
  for (const TextSegment& segment : segments) text.append(segment.text);
  return text;
}

}  // namespace

struct ChatTemplate::Program {
  std::string what;
  ChatTokens tokens;
  jinja::Tree tree;
  std::string written;  // all texts that the template itself can write, with a zero byte behind each
};

ChatTemplate ChatTemplate::parse(std::string_view jinja, const ChatTokens& tokens, std::string_view what) {
  auto program = std::make_shared<Program>();
  program->what = what;
  program->tokens = tokens;
  int line = 1;
  try {
    program->tree = jinja::parse_template(jinja, line);
  } catch (const jinja::Refusal& refusal) {
    fail("{}: line {}: {}", what, line, refusal.what());
  }
  for (const std::string& text : program->tree.constants) program->written.append(text).push_back('\0');
  for (const auto& [name, token] :
       {std::pair("bos_token", tokens.bos_token), std::pair("eos_token", tokens.eos_token)}) {
    const auto& names = program->tree.names;
    const auto symbol = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    LADDER_CHECK(symbol == names.size() || !token.empty() || !program->tree.read[symbol] ||
                     program->tree.tested[symbol],
                 "{}: the chat template writes {}, and the checkpoint names none", what, name);
    if (!token.empty()) program->written.append(token).push_back('\0');
  }
  return ChatTemplate(std::move(program));
}

bool ChatTemplate::reads(std::string_view name) const {
  const jinja::Tree& tree = program_->tree;
  for (size_t symbol = 0; symbol < tree.names.size(); ++symbol)
    if (tree.names[symbol] == name) return tree.read[symbol];
  return false;
}

bool ChatTemplate::has_thinking_switch() const {
  return reads("enable_thinking");
}
bool ChatTemplate::has_date() const {
  return reads("date_string");
}
bool ChatTemplate::has_clock() const {
  return reads("strftime_now");
}
bool ChatTemplate::has_tools() const {
  return reads("tools");
}

std::vector<std::string_view> ChatTemplate::control_tokens(const Tokenizer& tokenizer) const {
  const std::string& written = program_->written;
  const auto is_written = [&](std::string_view token) {
    if (written.find(token) != std::string::npos) return true;
    for (const std::string_view role : kRoles)
      if (const size_t at = token.find(role);
          at != std::string_view::npos && at > 0 && at + role.size() < token.size())
        if (written.find(token.substr(0, at)) != std::string::npos &&
            written.find(token.substr(at + role.size())) != std::string::npos)
          return true;
    return false;
  };
  std::vector<std::string_view> tokens;
  for (const auto& [content, id] : tokenizer.added_tokens()) {
    if (is_bracketed(content) && is_written(content)) tokens.push_back(content);
  }
  return tokens;
}

std::vector<TextSegment> ChatTemplate::render_segments(const ChatRequest& request) const {
  const ChatOptions& options = request.options;
  check_messages(request.messages);
  LADDER_CHECK(!options.enable_thinking || has_thinking_switch(), "chat: {} has no enable_thinking",
               program_->what);
  LADDER_CHECK(!options.date || has_date(), "chat: {} has no date", program_->what);
  LADDER_CHECK(!options.now || has_clock(), "chat: {} asks for no time", program_->what);
  LADDER_CHECK(request.variables.is_object(), "chat: expected the template's variables to be an object");
  for (const auto& [name, value] : request.variables.items())
    LADDER_CHECK(std::find(std::begin(kOwnNames), std::end(kOwnNames), name) == std::end(kOwnNames),
                 "chat: the template's variable {} cannot be given by a request", name);

  Interpreter interpreter(program_->tree, jinja::Limits{});
  std::vector<TextSegment> segments;
  try {
    jinja::define_functions(interpreter, options.now);
    for (const auto& [name, value] : request.variables.items())
      interpreter.define(name, jinja::value_of_json(interpreter, value));
    if (options.enable_thinking) interpreter.define("enable_thinking", Value::of(*options.enable_thinking));
    if (options.date) interpreter.define("date_string", jinja::value_of_json(interpreter, *options.date));
    interpreter.define("add_generation_prompt", Value::of(options.add_generation_prompt));
    interpreter.define("tools", jinja::value_of_json(interpreter, request.tools));
    interpreter.define("documents", jinja::value_of_json(interpreter, request.documents));
    const ChatTokens& tokens = program_->tokens;
    for (const auto& [name, token] :
         {std::pair<std::string_view, const std::string&>("bos_token", tokens.bos_token),
          {"eos_token", tokens.eos_token},
          {"pad_token", tokens.pad_token},
          {"unk_token", tokens.unk_token}})
      if (!token.empty()) interpreter.define(name, interpreter.text(token));
    std::vector<Value> messages;
    for (const OrderedJson& message : request.messages)
      messages.push_back(message_value(interpreter, message));
    interpreter.define("messages",
                       interpreter.list(std::move(messages), jinja::Sequence::list, jinja::Origin::outside));
    interpreter.run().for_each_stretch([&](std::string_view bytes, jinja::Origin origin) {
      segments.push_back({std::string(bytes), origin == jinja::Origin::trusted});
    });
  } catch (const jinja::Refusal& refusal) {
    fail("{}: line {}: {}", program_->what, interpreter.line(), refusal.what());
  }
  return segments;
}

std::vector<TextSegment> ChatTemplate::render_segments(std::span<const ChatMessage> messages,
                                                       const ChatOptions& options) const {
  return render_segments(request_of(messages, options));
}

std::string ChatTemplate::render(const ChatRequest& request) const {
  return text_of(render_segments(request));
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  return text_of(render_segments(messages, options));
}

std::vector<int32_t> turn_end_token_ids(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const std::string_view token : chat_template.control_tokens(tokenizer))
    for (const std::string_view end : {"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>"})
      if (token == end) ids.push_back(*tokenizer.token_to_id(token));
  return ids;
}

std::vector<int32_t> encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                 const ChatRequest& request) {
  const std::vector<TextSegment> segments = chat_template.render_segments(request);
  std::vector<std::string_view> control = chat_template.control_tokens(tokenizer);
  // And those that it put together from pieces of its own: '<|' ~ 'im_end' ~ '|>'.
  for (const auto& [content, id] : tokenizer.added_tokens())
    if (is_bracketed(content) &&
        std::any_of(segments.begin(), segments.end(), [&](const TextSegment& segment) {
          return segment.trusted && segment.text.find(content) != std::string::npos;
        }))
      control.push_back(content);
  return tokenizer.encode(segments, false, control);
}

std::vector<int32_t> encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                 std::span<const ChatMessage> messages, const ChatOptions& options) {
  return encode_chat(chat_template, tokenizer, request_of(messages, options));
}

}  // namespace ladder
