#include "step1_layers/core/error.h"
#include "step2_model/chat/chat_template.h"
#include "step2_model/tokenizer/tokenizer_config.h"

namespace ladder {

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
  const TokenizerConfig named_tokens = load_tokenizer_config(directory);
  const ChatTokens tokens{named_tokens.bos_token, named_tokens.eos_token, named_tokens.pad_token,
                          named_tokens.unk_token};
  if (has_jinja) return ChatTemplate::parse(read_text_file(jinja_path), tokens, jinja_path.string());

  const Json* value = json_find(config, "chat_template", what);
  const std::string template_what = fmt::format("{}: chat_template", what);
  LADDER_CHECK(value != nullptr, "{}: there is no chat_template, so this model cannot chat", what);
  if (value->is_string())
    return ChatTemplate::parse(json_string(*value, template_what), tokens, template_what);
  LADDER_CHECK(value->is_array(), "{}: expected a string or a list of named templates, found {}",
               template_what, json_brief(*value));
  for (const Json& named : *value)
    if (json_string(json_at(named, "name", template_what), template_what) == "default")
      return ChatTemplate::parse(json_string(json_at(named, "template", template_what), template_what),
                                 tokens, template_what + " \"default\"");
  fail("{}: none of the named templates is called \"default\"", template_what);
}

}  // namespace ladder
