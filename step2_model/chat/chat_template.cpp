#include "step2_model/chat/chat_template.h"

#include "step1_layers/core/error.h"
#include "step2_model/chat/known_templates.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {
namespace {

constexpr std::string_view kThinkEnd = "</think>";

// Builds segments: `fixed` is what the template writes, `typed` what came from outside.
struct Segments {
  std::vector<TextSegment> list;

  Segments& fixed(std::string_view text) { return add(text, true); }
  Segments& typed(std::string_view text) { return add(text, false); }

 private:
  Segments& add(std::string_view text, bool trusted) {
    if (!text.empty()) {
      if (list.empty() || list.back().trusted != trusted) list.push_back({"", trusted});
      list.back().text.append(text);
    }
    return *this;
  }
};

std::string_view strip_newlines(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) text.remove_prefix(1);
  while (right && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// Python's str.strip(), which is Jinja's `trim`: Unicode's white space and the four separators U+001C to
// U+001F.
std::string_view trim(std::string_view text) {
  const auto is_space = [](uint32_t c) {
    return (unicode_classes(c) & kSpace) != 0 || (c >= 0x1c && c <= 0x1f);
  };
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (!step.valid || !is_space(utf8_decode(text.data()).code_point)) break;
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (text[last] & 0xc0) == 0x80) --last;
    const Utf8Step step = utf8_step(text.substr(last));
    if (!step.valid || !is_space(utf8_decode(text.data() + last).code_point)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

// >>> task 2.6: render a conversation as ChatML, with old thoughts dropped where the model thinks, and as Llama 3
Segments render_chatml(const ChatFormat& format, std::span<const ChatMessage> messages) {
  Segments out;
  if (messages[0].role != "system" && !format.default_system.empty())
    out.fixed("<|im_start|>system\n").fixed(format.default_system).fixed("<|im_end|>\n");
  for (const ChatMessage& message : messages)
    out.fixed("<|im_start|>").fixed(message.role).fixed("\n").typed(message.content).fixed("<|im_end|>\n");
  return out;
}

Segments render_thinking(std::span<const ChatMessage> messages) {
  // Thoughts are only kept after the last question.
  size_t last_query = messages.size() - 1;
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string_view content = messages[i].content;
    if (messages[i].role == "user" &&
        !(content.starts_with("<tool_response>") && content.ends_with("</tool_response>"))) {
      last_query = i;
      break;
    }
  }
  Segments out;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    out.fixed("<|im_start|>").fixed(message.role).fixed("\n");
    std::string_view content = message.content, thoughts;
    if (message.role == "assistant") {
      if (const size_t first_end = content.find(kThinkEnd); first_end != std::string_view::npos) {
        thoughts = strip_newlines(content.substr(0, first_end), false, true);
        if (const size_t begin = thoughts.rfind("<think>"); begin != std::string_view::npos)
          thoughts.remove_prefix(begin + std::string_view("<think>").size());
        thoughts = strip_newlines(thoughts, true, true);
        content = strip_newlines(content.substr(content.rfind(kThinkEnd) + kThinkEnd.size()), true, false);
      }
      if (i > last_query && (i + 1 == messages.size() || !thoughts.empty())) {
        out.fixed("<think>\n").typed(thoughts).fixed("\n</think>\n\n");
        content = strip_newlines(content, true, false);
      }
    }
    out.typed(content).fixed("<|im_end|>\n");
  }
  return out;
}

Segments render_llama3(const ChatFormat& format, std::span<const ChatMessage> messages,
                       std::string_view bos_token, std::string_view date) {
  Segments out;
  out.fixed(bos_token);
  const auto header = [&out](std::string_view role) {
    out.fixed("<|start_header_id|>").fixed(role).fixed("<|end_header_id|>\n\n");
  };
  if (format.writes_dates) {
    header("system");
    out.fixed("Cutting Knowledge Date: December 2023\nToday Date: ").typed(date).fixed("\n\n");
    if (messages[0].role == "system") {
      out.typed(trim(messages[0].content));
      messages = messages.subspan(1);
    }
    out.fixed("<|eot_id|>");
  }
  for (const ChatMessage& message : messages) {
    header(message.role);
    out.typed(trim(message.content)).fixed("<|eot_id|>");
  }
  return out;
}
// <<< task 2.6

}  // namespace

ChatTemplate::ChatTemplate(const ChatFormat& format, std::string_view bos_token, std::string_view what)
    : format_(&format) {
  if (format.style != TurnStyle::llama3) return;
  LADDER_CHECK(!bos_token.empty(), "{}: the chat template {} writes a begin token, and bos_token names none",
               what, format.name);
  bos_token_ = bos_token;
}

ChatTemplate ChatTemplate::recognise(std::string_view jinja, std::string_view bos_token,
                                     std::string_view what) {
  const std::string sha256 = chat_template_sha256(jinja);
  const ChatFormat* format = find_chat_format(sha256);
  LADDER_CHECK(
      format != nullptr,
      "{}: this chat template is not known (SHA-256 {}): its text as a whole is none of {}; a prompt "
      "that is already rendered needs no template (generate)",
      what, sha256, chat_format_names());
  return {*format, bos_token, what};
}

ChatTemplate ChatTemplate::named(std::string_view name, std::string_view bos_token) {
  return {chat_format_named(name), bos_token, name};
}

std::string_view ChatTemplate::name() const {
  return format_->name;
}

bool ChatTemplate::has_thinking_switch() const {
  return format_->thinking == Thinking::optional;
}

bool ChatTemplate::has_date() const {
  return format_->writes_dates;
}

std::vector<std::string_view> ChatTemplate::control_tokens() const {
  std::vector<std::string_view> tokens(format_->control_tokens.begin(), format_->control_tokens.end());
  if (!bos_token_.empty()) tokens.push_back(bos_token_);
  return tokens;
}

std::vector<TextSegment> ChatTemplate::render_segments(std::span<const ChatMessage> messages,
                                                       const ChatOptions& options) const {
  LADDER_CHECK(!messages.empty(), "chat: expected at least one message");
  for (const ChatMessage& message : messages)
    LADDER_CHECK(message.role == "system" || message.role == "user" || message.role == "assistant",
                 "chat: expected a message of the role system, user or assistant, found {}",
                 json_brief(message.role));
  LADDER_CHECK(!options.enable_thinking || has_thinking_switch(),
               "chat: the template {} has no enable_thinking", name());
  LADDER_CHECK(!options.date || has_date(), "chat: the template {} has no date", name());

  const bool prompts = options.add_generation_prompt || format_->always_prompts;
  if (format_->style == TurnStyle::llama3) {
    Segments out = render_llama3(*format_, messages, bos_token_, options.date.value_or("26 Jul 2024"));
    if (prompts) out.fixed("<|start_header_id|>assistant<|end_header_id|>\n\n");
    return std::move(out.list);
  }
  Segments out =
      format_->thinking == Thinking::none ? render_chatml(*format_, messages) : render_thinking(messages);
  if (prompts) {
    out.fixed("<|im_start|>assistant\n");
    if (format_->thinking == Thinking::always) out.fixed("<think>\n");
    if (!options.enable_thinking.value_or(true)) out.fixed("<think>\n\n</think>\n\n");
  }
  return std::move(out.list);
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  std::string text;
  for (const TextSegment& segment : render_segments(messages, options)) text.append(segment.text);
  return text;
}

std::vector<int32_t> encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                 std::span<const ChatMessage> messages, const ChatOptions& options) {
  return tokenizer.encode(chat_template.render_segments(messages, options), false,
                          chat_template.control_tokens());
}

}  // namespace ladder
