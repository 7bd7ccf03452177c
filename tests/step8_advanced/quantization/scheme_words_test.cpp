#include "step8_advanced/quantization/config/scheme_words.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/config/presets.h"
#include "step8_advanced/quantization/config/quantization_config.h"
#include "tests/support/source_folder.h"

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

TEST(Task8_2_Words, SayWhichLinearsAreLeftDense) {
  const std::filesystem::path golden =
      testing::source_folder() / "tests/goldens/quantized/auto_round_w4_g32/config.json";
  EXPECT_EQ(words_of_linears(load_json(golden).at("quantization_config").dump()),
            "int4 in groups of 32; dense (model.layers.0.mlp.down_proj)");

  Json rules = {
      {"-:.*down_proj", Json::object()}, {"-:.*up_proj", Json::object()}, {"-:.*o_proj", Json::object()}};
  const auto gptq = [&] {
    return words_of_linears(
        Json{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"dynamic", rules}}.dump());
  };
  EXPECT_EQ(gptq(), "int4 in groups of 128; dense (re:.*down_proj, re:.*o_proj and 1 more)");
  rules["+:.*q_proj"] = {{"bits", 8}};
  EXPECT_NE(gptq().find("int8 in groups of 128 (re:.*q_proj)"), std::string::npos) << gptq();
}

TEST(Task8_2_Words, SayWhichNamesAreQuantized) {
  const auto words = [](const char* modules) {
    return words_of_linears(fmt::format(R"({{"quant_method": "gptq", "bits": 4, "group_size": 128,
                        "modules_in_block_to_quantize": {}}})",
                                        modules));
  };
  EXPECT_EQ(words("null"), "int4 in groups of 128");
  EXPECT_EQ(words(R"([["self_attn.q_proj"], ["mlp.up_proj", "mlp.down_proj"]])"),
            "int4 in groups of 128; only names that end in self_attn.q_proj, mlp.up_proj and 1 more");
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
