#pragma once
// The small checkpoints under tests/goldens and what transformers answers on them (tools/goldens).
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ladder::testing {

struct GoldenPrompt {
  std::vector<int32_t> token_ids;
  std::vector<int64_t> logit_positions;
  std::vector<std::vector<double>> logits;  // one row per position
  std::vector<int32_t> greedy_token_ids;
};

struct GoldenCheckpoint {
  std::string name;
  std::filesystem::path directory;
  int64_t max_model_len = 0;  // 0: the config's
  std::vector<int32_t> eos_token_ids;
  std::vector<GoldenPrompt> prompts;
};

inline GoldenCheckpoint load_golden(const std::filesystem::path& directory) {
  const auto json = nlohmann::json::parse(std::ifstream(directory / "golden.json"));
  GoldenCheckpoint golden;
  golden.name = directory.filename().string();
  golden.directory = directory;
  golden.max_model_len = json.value("max_model_len", int64_t{0});
  golden.eos_token_ids = json.at("eos_token_ids").get<std::vector<int32_t>>();
  for (const auto& prompt : json.at("prompts"))
    golden.prompts.push_back({prompt.at("token_ids").get<std::vector<int32_t>>(),
                              prompt.at("logit_positions").get<std::vector<int64_t>>(),
                              prompt.at("logits").get<std::vector<std::vector<double>>>(),
                              prompt.at("greedy_token_ids").get<std::vector<int32_t>>()});
  return golden;
}

// The names of all folders that hold a golden.json, sorted. Those of models with experts are of a task's own tests only
// where the task is about them (2.7).
inline std::vector<std::string> golden_names(const std::filesystem::path& goldens) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(goldens))
    if (std::filesystem::exists(entry.path() / "golden.json"))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline bool has_experts(const std::filesystem::path& golden) {
  const auto config = nlohmann::json::parse(std::ifstream(golden / "config.json"));
  return config.contains("num_experts") || config.contains("num_local_experts");
}

inline std::vector<std::string> golden_names(const std::filesystem::path& goldens, bool with_experts) {
  std::vector<std::string> names = golden_names(goldens);
  std::erase_if(names, [&](const std::string& name) { return has_experts(goldens / name) != with_experts; });
  return names;
}

}  // namespace ladder::testing
