#pragma once
// The tiny model's words over two narrow layers of random weights (LoadFormat::dummy), which cost a hundredth of its own: for
// tests of what happens to tokens on their way, whatever they say.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder::testing {

// Written once, gone when the process ends.
inline const std::filesystem::path& narrow_model() {
  static const TemporaryFolder folder;
  static const std::filesystem::path path = [] {
    const std::filesystem::path tiny = source_folder() / "models" / "tinyworld";
    for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(tiny / name, folder / name);
    nlohmann::json config = nlohmann::json::parse(std::ifstream(tiny / "config.json"));
    config.update({{"hidden_size", 64},
                   {"intermediate_size", 128},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2},
                   {"head_dim", 16}});
    std::ofstream(folder / "config.json") << config;
    return folder.path();
  }();
  return path;
}

}  // namespace ladder::testing
