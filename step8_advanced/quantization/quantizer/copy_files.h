#pragma once
// What a model's folder holds beside the weights and config.json.
#include <filesystem>

namespace ladder {

// The tokenizer's files, chat templates, defaults of generation and the licence, those that are there.
void copy_other_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace ladder
