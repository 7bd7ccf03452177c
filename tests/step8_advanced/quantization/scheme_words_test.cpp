#include "step8_advanced/quantization/config/scheme_words.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/config/presets.h"
#include "step8_advanced/quantization/config/quantization_config.h"

namespace ladder {
namespace {

std::string words(const std::vector<QuantizationGroup>& groups) {
  return words_of_linears(to_json(groups, {}));
}

TEST(Task8_2_Words, SayWhatSharesAScale) {
  const auto weights = [](const char* preset) { return words_of(preset_scheme(preset).weights); };
  EXPECT_EQ(weights("W4A16"), "int4 in groups of 128");
  EXPECT_EQ(weights("W4A16_ASYM"), "int4 in groups of 128 with zero points");
  EXPECT_EQ(weights("W8A8"), "int8, a scale per row");
  EXPECT_EQ(weights("FP8"), "fp8, one scale");
  EXPECT_EQ(weights("FP8_BLOCK"), "fp8 in blocks of 128 x 128");
  EXPECT_EQ(weights("NVFP4A16"), "fp4 in groups of 16");
}

TEST(Task8_2_Words, SayWhichLinearsWhereThereAreSeveralSchemes) {
  const QuantizationGroup down{.targets = {"re:.*down_proj"}, .linear = {.scheme = preset_scheme("W8A8")}},
      rest{.targets = {"Linear"},
           .linear = {.format = StoredFormat::packed, .scheme = preset_scheme("W4A16")}};
  EXPECT_EQ(words({rest}), "int4 in groups of 128");
  EXPECT_EQ(words({down, rest}),
            "int8, a scale per row, inputs in int8, a scale per token (re:.*down_proj); "
            "int4 in groups of 128 (Linear)");
  QuantizationGroup many = down;
  many.targets = {"a.q_proj", "b.q_proj", "c.q_proj", "d.q_proj"};
  EXPECT_NE(words({many, rest}).find("(a.q_proj, b.q_proj and 2 more)"), std::string::npos)
      << words({many, rest});
}

TEST(Task8_2_Words, SayWhichLinearsHaveTwoOfFour) {
  const auto stored = [](const char* groups) {
    return words_of_linears(fmt::format(
        R"({{"quant_method": "compressed-tensors", "format": "{}", "config_groups": {}, "ignore": [],
             "sparsity_config": {{"format": "sparse-24-bitmask", "targets": ["Linear"], "ignore": []}}}})",
        std::string_view(groups) == "{}" ? "dense" : "float-quantized", groups));
  };
  EXPECT_EQ(stored("{}"), "two of four weights (Linear)");
  EXPECT_EQ(
      stored(
          R"({"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}})"),
      "fp8, a scale per row; two of four weights (Linear)");
}

TEST(Task8_2_Words, OfADenseModelAreOne) {
  EXPECT_EQ(words_of_linears(""), "dense");
  EXPECT_THROW(words_of_linears(R"({"quant_method": "other"})"), Error);
}

}  // namespace
}  // namespace ladder
