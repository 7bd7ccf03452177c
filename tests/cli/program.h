#pragma once
// What the tests of the program share: small models, the lines it prints, and what a refusal looks like.
//
// Tests must fail, not fault, where the program prints nothing: what it printed is read with at(), which
// throws.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/run_binary.h"
#include "tests/support/model_devices.h"
#include "tests/support/source_folder.h"

namespace ladder::testing {

using Json = nlohmann::json;

inline std::string tied_model() {  // no tokenizer, a vocabulary of 131
  return (source_folder() / "tests" / "goldens" / "qwen3_tied").string();
}
inline std::string tinyworld() {
  return (source_folder() / "models" / "tinyworld").string();
}

inline std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

inline std::vector<std::string> with_small_cache(std::vector<std::string> arguments,
                                                 DeviceType device = DeviceType::cpu) {
  arguments.insert(arguments.end(),
                   {"--kv-memory", "4MiB", "--dtype", "f32", "--device", device_word(device)});
  return arguments;
}

// `generate` with the tied model.
inline BinaryResult generate(std::vector<std::string> arguments, DeviceType device = DeviceType::cpu) {
  arguments.insert(arguments.begin(), {"generate", "--model", tied_model()});
  return run_binary(with_small_cache(std::move(arguments), device));
}

// A user's mistake: exit code 2, one line on standard error that has the word, nothing on standard output.
inline void expect_refused(const BinaryResult& result, const std::string& word) {
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("ladder: error: ")) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(word), std::string::npos) << "expected \"" << word << "\" in " << result.err;
}

inline std::string comma_separated(const std::vector<int32_t>& ids) {
  std::string text;
  for (int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

// For the contract that does not depend on where the model runs.
class OnDevice : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { need_device(GetParam()); }
};

}  // namespace ladder::testing
