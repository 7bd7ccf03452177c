#include "step2_model/tokenizer/tokenizer_config.h"

#include "step1_layers/core/error.h"
#include "step2_model/json.h"

namespace ladder {
namespace {

// A string, or an object such as {"content": "<|begin_of_text|>", ...}; null where it is absent.
void read_token(const Json& config, const std::string& key, std::string_view what, std::string& token) {
  const Json* value = json_find(config, key, what);
  if (value == nullptr || !token.empty()) return;
  const std::string field = fmt::format("{}: {}", what, key);
  token = json_string(value->is_object() ? json_at(*value, "content", field) : *value, field);
}

void read_flag(const Json& config, const std::string& key, std::string_view what, std::optional<bool>& flag) {
  if (const Json* value = json_find(config, key, what))
    flag = json_bool(*value, fmt::format("{}: {}", what, key));
}

}  // namespace

TokenizerConfig load_tokenizer_config(const std::filesystem::path& directory) {
  TokenizerConfig result;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::filesystem::path path = directory / name;
    if (!std::filesystem::exists(path)) continue;
    const Json config = load_json(path);
    const std::string what = path.string();
    read_token(config, "bos_token", what, result.bos_token);
    read_token(config, "eos_token", what, result.eos_token);
    read_token(config, "pad_token", what, result.pad_token);
    read_token(config, "unk_token", what, result.unk_token);
    if (std::string_view(name) != "tokenizer_config.json") continue;
    read_flag(config, "add_bos_token", what, result.add_bos_token);
    read_flag(config, "add_eos_token", what, result.add_eos_token);
  }
  return result;
}

}  // namespace ladder
