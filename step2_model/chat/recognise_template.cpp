// Which of the built-in templates a checkpoint's Jinja text is.
#include <algorithm>

#include "step1_layers/core/error.h"
#include "step2_model/chat/chat_template.h"

namespace ladder {
namespace {

// The program in one spelling: no space outside of strings, strings in single quotes with their line breaks
// as \n, message.role for message['role'].
std::string canonical(std::string_view jinja) {
  std::string out;
  char quote = 0;
  for (size_t i = 0; i < jinja.size(); ++i) {
    const char c = jinja[i];
    if (quote == 0 && jinja.substr(i).starts_with("{#")) {
      const size_t end = jinja.find("#}", i);
      i = end == std::string_view::npos ? jinja.size() : end + 1;
    } else if (quote != 0 && c == '\\' && i + 1 < jinja.size()) {
      out.append(jinja.substr(i++, 2));
    } else if (quote != 0 && c == '\n') {
      out.append("\\n");
    } else if (c == quote || (quote == 0 && (c == '\'' || c == '"'))) {
      quote = quote == 0 ? c : 0;
      out.push_back('\'');
    } else if (quote != 0 || std::string_view(" \t\r\n").find(c) == std::string_view::npos) {
      out.push_back(c);
    }
  }
  for (const std::string_view key : {"role", "content"}) {
    const std::string item = fmt::format("['{}']", key);
    for (size_t at; (at = out.find(item)) != std::string::npos;)
      out.replace(at, item.size(), fmt::format(".{}", key));
  }
  return out;
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [text](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

bool contains(std::string_view text, std::string_view part) {
  return contains_any(text, {part});
}

// ChatML templates differ in one thing that matters: the system message that some put where there is none. It
// stands in the program as '<|im_start|>system\nYOU ARE ...<|im_end|>\n'.
std::string default_system_of(std::string_view program) {
  constexpr std::string_view kBegin = "<|im_start|>system\\n", kEnd = "<|im_end|>\\n";
  for (size_t at = program.find(kBegin); at != std::string_view::npos; at = program.find(kBegin, at + 1)) {
    std::string text;
    size_t i = at + kBegin.size();
    while (i < program.size() && program[i] != '\'' && !program.substr(i).starts_with(kEnd)) {
      if (program[i] == '\\' && i + 1 < program.size()) {
        ++i;
        text.push_back(program[i] == 'n' ? '\n' : program[i]);
      } else {
        text.push_back(program[i]);
      }
      ++i;
    }
    if (!text.empty() && program.substr(i).starts_with(kEnd)) return text;
  }
  return {};
}

}  // namespace

ChatTemplate ChatTemplate::recognise(std::string_view jinja, std::string_view bos_token,
                                     std::string_view what) {
  const std::string program = canonical(jinja);
  ChatTemplate result;
  result.bos_token_ = bos_token;
  const bool is_chatml =
      contains_any(program, {"'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>'+'\\n'",
                             "'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>\\n'",
                             "'<|im_start|>'+message.role+'\\n'+content+'<|im_end|>'+'\\n'"}) &&
      contains(program, "'<|im_start|>assistant\\n'");
  const bool thinks = contains_any(program, {"<think>", "</think>", "enable_thinking"});
  const bool is_llama = contains(program,
                                 "'<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'"
                                 "+message.content|trim+'<|eot_id|>'") &&
                        contains(program, "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'") &&
                        contains(program, "bos_token");
  if (is_chatml && !thinks) {
    result.kind_ = Kind::kChatMl;
    result.default_system_ = default_system_of(program);
  } else if (is_chatml && contains(program, "enable_thinkingisfalse") &&
             contains(program, "last_query_index") && contains(program, "'<think>\\n\\n</think>\\n\\n'")) {
    result.kind_ = Kind::kQwen3;
  } else if (is_llama) {
    result.kind_ = contains(program, "Cutting Knowledge Date:") ? Kind::kLlama31 : Kind::kLlama3;
    LADDER_CHECK(
        result.kind_ == Kind::kLlama3 || (contains(program, "Cutting Knowledge Date: December 2023\\n") &&
                                          contains(program, "26 Jul 2024")),
        "{}: a Llama 3.1 chat template with other dates than December 2023 and 26 Jul 2024 is not supported",
        what);
    result.always_prompt_ = !contains(program, "add_generation_prompt");
    LADDER_CHECK(!bos_token.empty(),
                 "{}: the chat template writes bos_token, and tokenizer_config.json names none", what);
  } else {
    fail(
        "{}: the chat template is none of the built-in ones (ChatML as Qwen2, Qwen2.5 and Qwen3 write it, "
        "Llama 3 "
        "and 3.1)",
        what);
  }
  return result;
}

ChatTemplate load_chat_template(const std::filesystem::path& directory) {
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  const std::filesystem::path jinja_path = directory / "chat_template.jinja";
  const std::string what = config_path.string();
  const bool has_config = std::filesystem::exists(config_path),
             has_jinja = std::filesystem::exists(jinja_path);
  LADDER_CHECK(has_config || has_jinja,
               "{}: no chat template: neither chat_template.jinja nor tokenizer_config.json",
               directory.string());
  const Json config = has_config ? load_json(config_path) : Json::object();

  // A string, or an object such as {"content": "<|begin_of_text|>", ...}.
  std::string bos_token;
  if (const Json* bos = json_find(config, "bos_token", what)) {
    const std::string bos_what = fmt::format("{}: bos_token", what);
    bos_token = json_string(bos->is_object() ? json_at(*bos, "content", bos_what) : *bos, bos_what);
  }
  if (has_jinja) return ChatTemplate::recognise(read_text_file(jinja_path), bos_token, jinja_path.string());

  const Json* value = json_find(config, "chat_template", what);
  const std::string template_what = fmt::format("{}: chat_template", what);
  LADDER_CHECK(value != nullptr, "{}: there is no chat_template, so this model cannot chat", what);
  if (value->is_string())
    return ChatTemplate::recognise(json_string(*value, template_what), bos_token, template_what);
  LADDER_CHECK(value->is_array(), "{}: expected a string or a list of named templates, found {}",
               template_what, json_brief(*value));
  for (const Json& named : *value)
    if (json_string(json_at(named, "name", template_what), template_what) == "default")
      return ChatTemplate::recognise(json_string(json_at(named, "template", template_what), template_what),
                                     bos_token, template_what);
  fail("{}: none of the named templates is called \"default\"", template_what);
}

}  // namespace ladder
