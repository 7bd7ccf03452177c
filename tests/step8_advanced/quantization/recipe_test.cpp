#include "step8_advanced/quantization/quantizer/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step2_model/model.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;

std::filesystem::path tinyworld() {
  return testing::source_folder() / "models" / "tinyworld";
}

std::vector<CheckpointLinear> tinyworld_linears() {
  return find_linears(Checkpoint(tinyworld()), load_decoder_spec(tinyworld()));
}

std::vector<CheckpointLinear> assigned(const std::string& recipe) {
  std::vector<CheckpointLinear> linears = tinyworld_linears();
  assign_stages(parse_recipe(recipe, "recipe.json", DType::bf16), linears);
  if (!linears.back().is_changed()) linears.pop_back();  // the head
  return linears;
}

void expect_refused(const std::string& recipe, const std::string& word, const std::string& other_word = "") {
  try {
    assigned(recipe);
    ADD_FAILURE() << recipe;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(word));
    EXPECT_THAT(error.what(), HasSubstr(other_word));
    EXPECT_THAT(error.what(), HasSubstr("recipe.json"));
  }
}

int count_of(const std::vector<CheckpointLinear>& linears, int stage) {
  return static_cast<int>(
      std::count_if(linears.begin(), linears.end(), [&](const auto& one) { return one.stage == stage; }));
}

TEST(Task8_5_Recipe, FindsTheLinearsOfEveryLayer) {
  const std::vector<CheckpointLinear> linears = tinyworld_linears();
  ASSERT_EQ(linears.size(), 8u * 7u + 1u);  // no norm, no embedding
  EXPECT_TRUE(linears.back().is_head);
  int64_t layer = 0;
  for (const CheckpointLinear& linear : linears) {
    EXPECT_GE(linear.layer, layer);
    layer = linear.layer;
    if (linear.name != "model.layers.3.mlp.down_proj") continue;
    EXPECT_EQ(linear.linear, "layers.3.down_proj");
    EXPECT_EQ(linear.n, 256);
    EXPECT_EQ(linear.k, 640);
  }
}

TEST(Task8_5_Recipe, MixesPrecisionsByName) {
  const auto linears = assigned(R"({"stages": [
    {"method": "rtn", "scheme": "W8A16", "targets": ["re:.*down_proj"]},
    {"method": "gptq", "scheme": "W4A16", "ignore": ["re:.*down_proj", "model.layers.0.self_attn.o_proj"]}]})");
  EXPECT_EQ(count_of(linears, 0), 8);
  EXPECT_EQ(count_of(linears, 1), 8 * 6 - 1);
  EXPECT_EQ(count_of(linears, -1), 1);
  for (const CheckpointLinear& linear : linears)
    EXPECT_EQ(linear.stage == 0, linear.name.ends_with("down_proj")) << linear.name;
}

// "Linear" are those of the layers, whatever class a head is of.
TEST(Task8_5_Recipe, TheHeadIsRoundedWhereAPatternNamesIt) {
  const std::string layers = R"({"method": "gptq", "scheme": "W4A16"})";
  const auto stages = [](const std::string& all) { return "{\"stages\": [" + all + "]}"; };
  const auto has_head = [](const std::vector<CheckpointLinear>& linears) { return linears.back().is_head; };
  EXPECT_FALSE(has_head(assigned(stages(layers))));
  EXPECT_FALSE(has_head(assigned(stages(R"({"method": "rtn", "scheme": "W4A16", "ignore": ["lm_head"]})"))));
  for (const char* pattern : {"lm_head", "re:lm_.*"}) {
    const auto linears = assigned(stages(
        fmt::format(R"({}, {{"method": "rtn", "scheme": "W8A8", "targets": ["{}"]}})", layers, pattern)));
    ASSERT_TRUE(has_head(linears));
    EXPECT_EQ(count_of(linears, 1), 1);
    EXPECT_EQ(linears.back().name, "lm_head");
    EXPECT_EQ(linears.back().n, 3072);
    EXPECT_EQ(linears.back().k, 256);
  }
  for (const char* stage : {R"("method": "gptq", "scheme": "W4A16")", R"("method": "awq", "scheme": "W4A16")",
                            R"("method": "rtn", "scheme": "FP8")", R"("method": "magnitude")"})
    expect_refused(stages(fmt::format(R"({{{}, "targets": ["lm_head"]}})", stage)), "lm_head", "rtn");
}

TEST(Task8_5_Recipe, ReadsOptionsAndSchemes) {
  const Recipe recipe = parse_recipe(R"({"stages": [{"method": "gptq", "actorder": "none", "damping": 0.05,
    "block_size": 64, "clipped_grids": true,
    "scheme": {"weights": {"num_bits": 3, "type": "int", "symmetric": false, "strategy": "group", "group_size": 64}}}]})",
                                     "recipe.json", DType::f16);
  const RecipeStage& stage = recipe.stages.at(0);
  EXPECT_EQ(stage.method, QuantizationMethod::gptq);
  EXPECT_EQ(stage.actorder, ActivationOrder::none);
  EXPECT_EQ(stage.damping, 0.05);
  EXPECT_EQ(stage.block_size, 64);
  EXPECT_TRUE(stage.clipped_grids);
  ASSERT_TRUE(stage.linear.has_value());
  const QuantizationArgs& weights = stage.linear->scheme.weights;
  EXPECT_EQ(stage.linear->format, StoredFormat::packed);
  EXPECT_EQ(weights.num_bits, 3);
  EXPECT_FALSE(weights.symmetric);
  EXPECT_EQ(weights.group_size, 64);
  EXPECT_EQ(stage.linear->stored_scales, ScaleFormat::f16);  // the model's dtype
  EXPECT_EQ(weights.scale_format, ScaleFormat::f16);
  EXPECT_TRUE(recipe.needs_calibration());
  EXPECT_FALSE(recipe_of("FP8_DYNAMIC", "rtn", DType::bf16).needs_calibration());
  EXPECT_TRUE(recipe_of("FP8", "rtn", DType::bf16).needs_calibration());  // scales of its activations
}

TEST(Task8_5_Recipe, MistakesAreNamed) {
  const auto stage = [](const std::string& fields) { return "{\"stages\": [{" + fields + "}]}"; };
  expect_refused("[]", "object");
  expect_refused("{\"stages\": []}", "stages");
  expect_refused(R"({"stages": [{"method": "rtn", "scheme": "W8A16"}], "model": 1})", "\"model\"");
  expect_refused(stage(R"("scheme": "W4A16")"), "method", "stages[0]");
  expect_refused(stage(R"("method": "awk", "scheme": "W4A16")"), "awk", "gptq");
  expect_refused(stage(R"("method": "rtn")"), "scheme");
  expect_refused(stage(R"("method": "rtn", "scheme": "W4A17")"), "W4A17");
  expect_refused(stage(R"("method": "rtn", "scheme": 4)"), "scheme");
  expect_refused(stage(R"("method": "rtn", "scheme": {})"), "scheme", "weights");
  expect_refused(stage(R"("method": "rtn", "scheme": "W4A16", "damping": 0.1)"), "damping");
  expect_refused(stage(R"("method": "gptq", "scheme": "W4A16", "damping": 0)"), "damping");
  expect_refused(stage(R"("method": "gptq", "scheme": "W4A16", "actorder": "up")"), "\"up\"");
  expect_refused(stage(R"("method": "gptq", "scheme": "FP8_DYNAMIC", "actorder": "group")"), "actorder");
  const std::string rows = R"({"weights": {"num_bits": 4, "strategy": "channel"}})";
  expect_refused(stage(R"("method": "gptq", "actorder": "group", "scheme": )" + rows), "in groups");
  expect_refused(
      stage(
          R"("method": "gptq", "scheme": {"weights": {"num_bits": 4, "group_size": 32, "actorder": "group"}})"),
      "actorder", "beside the scheme");
  expect_refused(stage(R"("method": "rtn", "scheme": "NVFP4")"), "NVFP4A16");
  expect_refused(stage(R"("method": "rtn", "scheme": {"weights": {"num_bits": 4, "bits": 4}})"), "bits");
  expect_refused(stage(R"("method": "rtn", "scheme": "W4A16", "targets": [])"), "targets");
}

TEST(Task8_5_Recipe, PrunesAloneBeforeRoundingOrTogether) {
  const auto linears = assigned(R"({"stages": [
    {"method": "wanda", "targets": ["re:.*down_proj", "re:.*o_proj"]},
    {"method": "sparsegpt", "scheme": "W4A16", "damping": 0.02, "targets": ["re:.*(gate|up)_proj"]},
    {"method": "rtn", "scheme": "W8A16", "targets": ["re:.*o_proj"]}]})");
  for (const CheckpointLinear& linear : linears) {
    const auto is = [&](const char* part) { return linear.name.find(part) != std::string::npos; };
    EXPECT_EQ(linear.prune_stage, is("down_proj") || is("o_proj") ? 0 : is("mlp") ? 1 : -1) << linear.name;
    EXPECT_EQ(linear.stage, is("o_proj") ? 2 : is("gate_proj") || is("up_proj") ? 1 : -1) << linear.name;
    EXPECT_EQ(linear.is_changed(), !is("q_proj") && !is("k_proj") && !is("v_proj")) << linear.name;
  }
  const auto needs_calibration = [](const std::string& stage) {
    return parse_recipe("{\"stages\": [" + stage + "]}", "recipe.json", DType::bf16).needs_calibration();
  };
  EXPECT_FALSE(needs_calibration(R"({"method": "magnitude"}, {"method": "rtn", "scheme": "W8A16"})"));
  EXPECT_TRUE(needs_calibration(R"({"method": "wanda"})"));
}

TEST(Task8_5_Recipe, MistakesInPruningAreNamed) {
  const auto stages = [](const std::string& all) { return "{\"stages\": [" + all + "]}"; };
  const std::string wanda = R"({"method": "wanda"})", rtn = R"({"method": "rtn", "scheme": "W8A16"})";
  expect_refused(stages(R"({"method": "magnitude", "scheme": "W4A16"})"), "scheme", "magnitude has");
  expect_refused(stages(R"({"method": "sparsegpt", "clipped_grids": true})"), "clipped_grids");
  expect_refused(stages(R"({"method": "sparsegpt", "scheme": "W4A16", "actorder": "group"})"), "actorder");
  expect_refused(stages(wanda + ", " + wanda), "pruned by stages[0]", "stages[1]");
  expect_refused(stages(rtn + ", " + wanda), "rounded by stages[0]", "stages[1]");
  expect_refused(stages(wanda + R"(, {"method": "sparsegpt", "scheme": "W4A16"})"), "pruned by stages[0]");
  expect_refused(stages(wanda + R"(, {"method": "smoothquant"}, )" + rtn), "smoothquant", "before");
  expect_refused(stages(R"({"method": "smoothquant"})"), "no stage");
  expect_refused(
      stages(R"({"method": "sparsegpt", "scheme": {"weights": {"num_bits": 4, "group_size": 2}}})"),
      "groups of 2", "multiple of 4");
}

// It moves factors between a norm and what reads it: elsewhere it would do nothing and say nothing (llm-compressor's pull request 2422).
TEST(Task8_5_Recipe, SmoothingThatChangesNothingIsRefused) {
  const auto stages = [](const std::string& targets, const std::string& ignore) {
    return fmt::format(R"({{"stages": [{{"method": "smoothquant", "targets": [{}]}},
                                       {{"method": "rtn", "scheme": "W8A8", "ignore": [{}]}}]}})",
                       targets, ignore);
  };
  for (const CheckpointLinear& linear : assigned(stages(R"("Linear")", R"("re:.*down_proj")")))
    EXPECT_EQ(linear.smooth_stage == 0,
              !linear.is_head && !linear.name.ends_with("down_proj") && !linear.name.ends_with("o_proj"))
        << linear.name;
  expect_refused(stages(R"("re:.*down_proj")", ""), "re:.*down_proj", "reads a norm");
  expect_refused(stages(R"("re:.*mlp.*", "re:.*o_proj")", ""), "re:.*o_proj", "reads a norm");
  expect_refused(stages(R"("Linear")", R"("re:.*layers.7.mlp.*")"), "model.layers.7.mlp.gate_proj",
                 "not rounded");
  const std::filesystem::path post_norm =
      testing::source_folder() / "tests" / "goldens" / "opt_post_norm_f16";
  std::vector<CheckpointLinear> linears = find_linears(Checkpoint(post_norm), load_decoder_spec(post_norm));
  EXPECT_THROW(assign_stages(parse_recipe(stages(R"("Linear")", ""), "recipe.json", DType::f16), linears),
               Error);
}

TEST(Task8_5_Recipe, APatternThatNamesNothingIsRefused) {
  expect_refused(R"({"stages": [{"method": "rtn", "scheme": "W4A16", "targets": ["re:.*qkv"]}]})",
                 "re:.*qkv");
  expect_refused(R"({"stages": [{"method": "rtn", "scheme": "W4A16", "targets": ["Linear", "q_proj"]}]})",
                 "q_proj");
  expect_refused(R"({"stages": [{"method": "rtn", "scheme": "W4A16", "ignore": ["re:.*experts"]}]})",
                 "re:.*experts");
  // Each pattern names some, and none is left.
  expect_refused(R"({"stages": [{"method": "rtn", "scheme": "W4A16", "ignore": ["re:.*"]}]})", "stages[0]",
                 "ignores every linear");
}

TEST(Task8_5_Recipe, ALinearOfTwoStagesIsRefused) {
  expect_refused(R"({"stages": [{"method": "rtn", "scheme": "W8A16", "targets": ["re:.*down_proj"]},
                                {"method": "rtn", "scheme": "W4A16"}]})",
                 "down_proj", "stages[1]");
}

TEST(Task8_5_Recipe, PartsOfOneLinearThatDifferAreRefused) {
  std::vector<CheckpointLinear> linears = tinyworld_linears();
  try {
    assign_stages(
        parse_recipe(R"({"stages": [{"method": "rtn", "scheme": "W8A16", "ignore": ["re:.*q_proj"]}]})",
                     "recipe.json", DType::bf16),
        linears);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("q_proj"));
    EXPECT_THAT(error.what(), HasSubstr("k_proj"));
  }
}

TEST(Task8_5_Recipe, AGroupThatDoesNotDivideIsFoundBeforeCalibration) {
  expect_refused(
      R"({"stages": [{"method": "gptq", "scheme": {"weights": {"num_bits": 4, "group_size": 256}}}]})",
      "groups of 256", "640 columns");
}

}  // namespace
}  // namespace ladder
