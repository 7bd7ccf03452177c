#pragma once
// tokenizer_config.json and special_tokens_map.json: what a checkpoint says about its tokens beside
// tokenizer.json.
#include <filesystem>
#include <optional>
#include <string>

namespace ladder {

struct TokenizerConfig {
  std::string bos_token, eos_token;  // texts of the begin and the end token; empty: none is named
  std::string pad_token, unk_token;  // for chat templates, which may write them
  // Whether a text gets them; absent: tokenizer.json's post-processor decides.
  std::optional<bool> add_bos_token, add_eos_token;
};

// From the files in `directory`, either of which may be missing; what tokenizer_config.json says counts more.
// Error: malformed files, fields of another type.
TokenizerConfig load_tokenizer_config(const std::filesystem::path& directory);

}  // namespace ladder
