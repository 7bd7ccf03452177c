#include "step8_advanced/quantization/config/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/config/presets.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;

const std::string kQ = "model.layers.3.self_attn.q_proj", kK = "model.layers.3.self_attn.k_proj",
                  kDown = "model.layers.3.mlp.down_proj", kGate = "model.layers.3.mlp.gate_proj";

QuantizationConfig parse(const Json& json) {
  return QuantizationConfig::parse(json.dump(), "config.json: quantization_config");
}

std::optional<StoredLinear> of(const QuantizationConfig& config, const std::string& name) {
  return config.linear(Names{name});
}

// The error, which has to be one and to begin with what is wrong.
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("config.json: quantization_config"));
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::string refusal(const Json& json) {
  return error_of([&] { parse(json); });
}

Json packed(const Json& weights, const Json& targets = {"Linear"}) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", {{"targets", targets}, {"weights", weights}}}}},
          {"ignore", {"lm_head"}}};
}

const Json kInt4 = {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 128}};

Json with(Json json, const std::string& key, const Json& value) {
  json[key] = value;
  return json;
}

// With one argument of the weights changed.
Json with_argument(const std::string& key, const Json& value) {
  return packed(with(kInt4, key, value));
}

QuantizationArgs weights_of(const Json& json) {
  const auto linear = of(parse(json), kQ);
  if (!linear) {
    ADD_FAILURE() << "dense";
    return {};
  }
  return linear->scheme.weights;
}

TEST(Task8_2_Config, ReadsWhatCompressedTensorsWritesForEveryPreset) {
  const Json golden = load_json(testing::source_folder() / "tests/goldens/quantization_presets.json");
  EXPECT_EQ(golden.at("presets").size(), preset_names().size());
  for (const auto& [name, json] : golden.at("presets").items()) {
    SCOPED_TRACE(name);
    const auto linear = of(parse(json), kQ);
    ASSERT_TRUE(linear.has_value());
    EXPECT_EQ(linear->scheme, preset_scheme(name));
    EXPECT_EQ(*linear, stored_linear(preset_scheme(name), name));
    EXPECT_EQ(of(parse(json), "lm_head"), std::nullopt);
  }
}

TEST(Task8_2_Config, EveryPresetComesBackFromItsFile) {
  std::vector<QuantizationGroup> all;
  for (const std::string_view name : preset_names()) {
    SCOPED_TRACE(name);
    const std::vector<QuantizationGroup> groups = {{{"Linear"}, stored_linear(preset_scheme(name), name)}};
    const Names ignore = {"lm_head", "re:.*router"};
    const QuantizationConfig read = QuantizationConfig::parse(to_json(groups, ignore), "written");
    EXPECT_EQ(read.groups(), groups);
    EXPECT_EQ(read.ignored(), ignore);
    if (name == "INT8") continue;  // another name of W8A8
    all.push_back({{fmt::format("model.layers.{}.mlp.up_proj", all.size())}, groups[0].linear});
  }
  const QuantizationConfig mixed = QuantizationConfig::parse(to_json(all, {}), "written");
  EXPECT_THAT(to_json(all, {}), HasSubstr("mixed-precision"));
  for (const QuantizationGroup& group : all) EXPECT_EQ(of(mixed, group.targets[0]), group.linear);
}

TEST(Task8_2_Config, APresetMayStandForAGroup) {
  const Json json = {{"quant_method", "compressed-tensors"},
                     {"config_groups", {{"fp8_dynamic", {"Linear"}}}}};
  EXPECT_EQ(of(parse(json), kQ)->scheme, preset_scheme("FP8_DYNAMIC"));
  EXPECT_EQ(of(parse(json), kQ)->format, StoredFormat::plain);
  EXPECT_THAT(refusal({{"quant_method", "compressed-tensors"}, {"config_groups", {{"W9A16", {"Linear"}}}}}),
              HasSubstr("W9A16"));
}

TEST(Task8_2_Config, TheStrategyFollowsFromTheGroup) {
  const auto strategy = [](const Json& group_size) {
    return weights_of(packed({{"num_bits", 4}, {"group_size", group_size}})).strategy;
  };
  EXPECT_EQ(strategy(nullptr), ScaleStrategy::tensor);
  EXPECT_EQ(strategy(-1), ScaleStrategy::channel);
  EXPECT_EQ(strategy(64), ScaleStrategy::group);
  EXPECT_THAT(refusal(packed({{"num_bits", 4}, {"group_size", 0}})), HasSubstr("group_size"));
  EXPECT_THAT(refusal(with_argument("strategy", "channel")), HasSubstr("group_size"));
}

TEST(Task8_2_Config, ActivationOrderHasAliases) {
  const auto order = [](const Json& value) { return weights_of(with_argument("actorder", value)).actorder; };
  for (const Json& value : {Json("group"), Json("dynamic"), Json(true)})
    EXPECT_EQ(order(value), ActivationOrder::group) << value;
  for (const Json& value : {Json("weight"), Json("static"), Json("Static")})
    EXPECT_EQ(order(value), ActivationOrder::weight) << value;
  for (const Json& value : {Json(), Json(false)}) EXPECT_EQ(order(value), ActivationOrder::none) << value;
  EXPECT_THAT(refusal(with_argument("actorder", "size")), HasSubstr("actorder"));
  EXPECT_THAT(refusal(packed({{"num_bits", 4}, {"strategy", "channel"}, {"actorder", "group"}})),
              HasSubstr("actorder"));
}

TEST(Task8_2_Config, BlocksMayBeWrittenAsText) {
  const auto block = [](const Json& structure) {
    Json json =
        packed({{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", structure}});
    json["format"] = "float-quantized";
    return json;
  };
  for (const Json& structure : {Json("64x32"), Json({64, 32})}) {
    const QuantizationArgs args = weights_of(block(structure));
    EXPECT_EQ(args.block_rows, 64);
    EXPECT_EQ(args.block_columns, 32);
  }
  for (const Json& structure :
       {Json("64"), Json("64x"), Json("x64"), Json("64x0"), Json("-1x2"), Json("9999999x1"), Json({64}),
        Json({64, 0}), Json({64, 1.5}), Json(7), Json()})
    EXPECT_THAT(refusal(block(structure)), HasSubstr("block_structure")) << structure;
}

TEST(Task8_2_Config, TheMostSpecificTargetCounts) {
  const auto group = [](int bits, const Json& targets) {
    return Json{{"targets", targets}, {"weights", with(kInt4, "num_bits", bits)}};
  };
  Json json = packed(kInt4);
  // Names before patterns before "Linear", wherever they stand.
  json["config_groups"] = {{"a", group(2, {kDown})},
                           {"b", group(3, {"re:.*down_proj"})},
                           {"c", group(4, {"Linear"})},
                           {"d", group(5, {"re:model\\.layers\\.[0-3]\\.self_attn"})}};
  const QuantizationConfig config = parse(json);
  EXPECT_EQ(of(config, kDown)->scheme.weights.num_bits, 2);
  EXPECT_EQ(of(config, "model.layers.4.mlp.down_proj")->scheme.weights.num_bits, 3);
  EXPECT_EQ(of(config, kGate)->scheme.weights.num_bits, 4);
  EXPECT_EQ(of(config, kQ)->scheme.weights.num_bits, 5) << "a pattern need not reach the end of the name";
  json["config_groups"].erase("c");
  EXPECT_EQ(of(parse(json), kGate), std::nullopt) << "named by no target";
  EXPECT_EQ(of(parse(json), "x." + kQ), std::nullopt) << "a pattern begins where the name does";
}

TEST(Task8_2_Config, TwoPatternsThatDisagreeAreAnError) {
  Json json = packed(kInt4, {"re:.*proj"});
  json["config_groups"]["other"] = {{"targets", {"re:.*q_proj"}}, {"weights", with(kInt4, "num_bits", 8)}};
  const QuantizationConfig config = parse(json);
  EXPECT_TRUE(of(config, kDown).has_value());
  EXPECT_THAT(error_of([&] { of(config, kQ); }),
              AllOf(HasSubstr("re:.*proj"), HasSubstr("re:.*q_proj"), HasSubstr(kQ)));
  json["config_groups"]["other"]["weights"] = kInt4;
  EXPECT_TRUE(of(parse(json), kQ).has_value()) << "they say the same";
  json["config_groups"]["other"]["weights"] = with(kInt4, "num_bits", 8);
  json["config_groups"]["name"] = {{"targets", {kQ}}, {"weights", with(kInt4, "num_bits", 2)}};
  EXPECT_EQ(of(parse(json), kQ)->scheme.weights.num_bits, 2) << "the name is more specific than both";
}

TEST(Task8_2_Config, WhatIsIgnoredIsDense) {
  const QuantizationConfig config =
      parse(with(packed(kInt4), "ignore", {"lm_head", kDown, "re:.*layers.5.*gate"}));
  EXPECT_EQ(of(config, kDown), std::nullopt);
  EXPECT_EQ(of(config, "lm_head"), std::nullopt);
  EXPECT_EQ(of(config, "model.layers.5.mlp.gate_proj"), std::nullopt);
  EXPECT_TRUE(of(config, kGate).has_value());
  EXPECT_TRUE(of(config, kDown + "2").has_value()) << "a name is not a beginning of names";
  EXPECT_EQ(of(parse(with(packed(kInt4), "ignore", {"Linear"})), kQ), std::nullopt);
  EXPECT_TRUE(of(parse(with(packed(kInt4), "ignore", nullptr)), "lm_head").has_value());
}

TEST(Task8_2_Config, PartsOfAMergedLinearMustAgree) {
  const QuantizationConfig config = parse(with(packed(kInt4), "ignore", {kQ}));
  EXPECT_THAT(error_of([&] {
                config.linear(Names{kQ, kK});
              }),
              AllOf(HasSubstr(kQ), HasSubstr(kK), HasSubstr("dense")));
  EXPECT_TRUE(config.linear(Names{kK, kGate}).has_value());
  EXPECT_EQ(config.linear(Names{kQ}), std::nullopt);
  Json json = packed(kInt4);
  json["config_groups"]["keys"] = {{"targets", {kK}}, {"weights", with(kInt4, "group_size", 64)}};
  EXPECT_THAT(error_of([&] { parse(json).linear(Names{kQ, kK}); }), AllOf(HasSubstr("128"), HasSubstr("64")));
}

TEST(Task8_2_Config, NothingUnknownIsReadOver) {
  EXPECT_THAT(refusal(with_argument("zero_points", 1)), HasSubstr("zero_points"));
  EXPECT_THAT(refusal(with_argument("strategy", "attn_head")), HasSubstr("attn_head"));
  EXPECT_THAT(refusal(with_argument("type", "nf4")), HasSubstr("nf4"));
  EXPECT_THAT(refusal(with_argument("num_bits", 9)), HasSubstr("num_bits"));
  EXPECT_THAT(refusal(with_argument("num_bits", 4.0)), HasSubstr("num_bits"));
  EXPECT_THAT(refusal(with_argument("dynamic", true)), HasSubstr("dynamic"));
  EXPECT_THAT(refusal(with_argument("dynamic", "local")), HasSubstr("local"));
  EXPECT_THAT(refusal(with_argument("scale_dtype", "torch.float8_e5m2")), HasSubstr("float8_e5m2"));
  EXPECT_THAT(refusal(with_argument("scale_dtype", "torch.uint8")), HasSubstr("scales"));
  EXPECT_THAT(refusal(with_argument("symmetric", "yes")), HasSubstr("symmetric"));
  Json inputs_alone = packed(nullptr);
  inputs_alone["config_groups"]["group_0"]["input_activations"] = kInt4;
  EXPECT_THAT(refusal(inputs_alone), HasSubstr("weights"));
  EXPECT_THAT(refusal(packed(kInt4, {"LlamaAttention"})), HasSubstr("LlamaAttention"));
  EXPECT_THAT(refusal(packed(kInt4, Json::array())), HasSubstr("targets"));
  EXPECT_THAT(refusal(packed(kInt4, "Linear")), HasSubstr("targets"));
  EXPECT_THAT(refusal(with(packed(kInt4), "quant_method", "bitsandbytes")), HasSubstr("bitsandbytes"));
  EXPECT_THAT(refusal(with(packed(kInt4), "format", "marlin-24")), HasSubstr("marlin-24"));
  EXPECT_THAT(refusal(with(packed(kInt4), "format", "int-quantized-2")), HasSubstr("int-quantized-2"));
  EXPECT_THAT(refusal(with(packed(kInt4), "format", "mixed-precision")), HasSubstr("format"));
  // Where the group names its own, too.
  Json both = packed(kInt4);
  both["config_groups"]["group_0"]["format"] = "pack-quantized";
  EXPECT_NO_THROW(parse(with(both, "format", "mixed-precision")));
  EXPECT_THAT(refusal(with(both, "format", "marlin-24")), HasSubstr("marlin-24"));
  EXPECT_THAT(refusal(with(packed(kInt4), "transform_config", {{"config_groups", 1}})),
              HasSubstr("transform_config"));
  EXPECT_THAT(refusal(with(packed(kInt4), "sparsity_config", {{"format", "sparse-bitmask"}})),
              AllOf(HasSubstr("sparsity_config"), HasSubstr("sparse-bitmask")));
  EXPECT_THAT(refusal(with(packed(kInt4), "quantization_status", "calibration")), HasSubstr("calibration"));
  EXPECT_THAT(refusal(with(packed(kInt4), "packing", "x")), HasSubstr("packing"));
  EXPECT_THAT(refusal(with(packed(kInt4), "config_groups", Json::object())), HasSubstr("config_groups"));
  EXPECT_THAT(error_of([] { QuantizationConfig::parse("[1", "config.json: quantization_config"); }),
              HasSubstr("JSON"));
  EXPECT_NO_THROW(parse(with(packed(kInt4), "sparsity_config", {{"format", "dense"}})));
  EXPECT_NO_THROW(parse(with(packed(kInt4), "sparsity_config", Json::object())));
  // Pruned alone, and the weights are whole: no groups, or none in them.
  const Json pruned = {{"quant_method", "compressed-tensors"},
                       {"sparsity_config", {{"format", "dense"}, {"sparsity_structure", "unstructured"}}}};
  EXPECT_EQ(of(parse(pruned), kQ), std::nullopt);
  EXPECT_EQ(of(parse(with(pruned, "config_groups", Json::object())), kQ), std::nullopt);
  const Json nothing = {{"quant_method", "compressed-tensors"}, {"config_groups", Json::object()}};
  EXPECT_EQ(of(parse(with(nothing, "format", "dense")), kQ), std::nullopt);
  EXPECT_THAT(refusal(nothing), HasSubstr("config_groups"));
}

TEST(Task8_2_Config, AFormatHoldsOnlyItsSchemes) {
  const auto as = [](const std::string& format, const std::string& preset) {
    Json json = {{"quant_method", "compressed-tensors"},
                 {"format", format},
                 {"config_groups", {{preset, {"Linear"}}}}};
    return refusal(json);
  };
  EXPECT_THAT(as("pack-quantized", "FP8"), HasSubstr("floats"));
  EXPECT_THAT(as("nvfp4-pack-quantized", "MXFP4"), HasSubstr("nvfp4"));
  EXPECT_THAT(as("mxfp4-pack-quantized", "MXFP8"), HasSubstr("mxfp4"));
  EXPECT_THAT(as("mxfp8-quantized", "W8A16"), HasSubstr("mxfp8"));
  EXPECT_THAT(as("float-quantized", "NVFP4"), HasSubstr("scales"));
  EXPECT_THAT(refusal(with(packed({{"num_bits", 4}, {"symmetric", false}}), "format", "pack-quantized")),
              HasSubstr("zero points"));
}

TEST(Task8_2_Config, ActivationsHaveRulesOfTheirOwn) {
  const auto inputs = [](const Json& arguments) {
    Json json = packed({{"num_bits", 8}, {"strategy", "channel"}});
    json["format"] = "int-quantized";
    json["config_groups"]["group_0"]["input_activations"] = arguments;
    return json;
  };
  const auto read = of(parse(inputs({{"strategy", "token"}, {"dynamic", true}, {"symmetric", false}})), kQ);
  ASSERT_TRUE(read && read->scheme.input_activations);
  EXPECT_FALSE(read->scheme.input_activations->symmetric);
  EXPECT_TRUE(read->scheme.input_activations->dynamic);
  EXPECT_FALSE(of(parse(inputs({{"strategy", "tensor"}})), kQ)->scheme.input_activations->dynamic);
  EXPECT_THAT(refusal(inputs({{"strategy", "token"}})), HasSubstr("dynamic"));
  EXPECT_THAT(refusal(inputs({{"strategy", "channel"}})), HasSubstr("input_activations"));
  EXPECT_THAT(refusal(inputs({{"strategy", "tensor"}, {"actorder", "weight"}})), HasSubstr("actorder"));
  Json json = inputs({{"strategy", "tensor"}});
  json["config_groups"]["group_0"]["output_activations"] = {{"num_bits", 8}};
  EXPECT_THAT(refusal(json), HasSubstr("output_activations"));
}

// As Python reads them: \w, \b and their opposites are of ASCII.
TEST(Task8_2_Config, WordsInPatternsAreThoseOfNames) {
  const auto names = [](const std::string& pattern, const std::string& name) {
    return of(parse(packed(kInt4, {"re:" + pattern})), name).has_value();
  };
  EXPECT_TRUE(names(R"(.*\bdown_proj\b)", kDown));
  EXPECT_FALSE(names(R"(.*\bproj\b)", kDown));
  EXPECT_TRUE(names(R"(.*down\B_\Bproj$)", kDown));
  EXPECT_FALSE(names(R"(.*mlp\B\.)", kDown));
  EXPECT_TRUE(names(R"(model\.layers\.\d+\.\w+\.down_proj$)", kDown));
  EXPECT_FALSE(names(R"(model\.\w+\.down_proj$)", kDown));
  EXPECT_TRUE(names(R"(model\.[\w.]+\.down_proj$)", kDown));
  EXPECT_FALSE(names(R"(model\.[^\w]+down_proj$)", kDown));
  EXPECT_TRUE(names(R"(model\Wlayers\W3)", kDown));
  EXPECT_TRUE(names(R"(.*\bdown_proj\b$|\\w)", kDown));
  EXPECT_THAT(refusal(packed(kInt4, {R"(re:[\W]odel)"})), HasSubstr("not supported"));
}

TEST(Task8_2_Config, AHostilePatternEndsInAnError) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string name(200, 'a');
  const QuantizationConfig config = parse(packed(kInt4, {"re:(a+)+$b|(a|a)*\\1c"}));
  EXPECT_THAT(error_of([&] { of(config, name + "b"); }), HasSubstr("(a+)+"));
  EXPECT_THAT(refusal(packed(kInt4, {"re:(("})), HasSubstr("(("));
  EXPECT_THAT(refusal(packed(kInt4, {"re:" + std::string(5000, 'a')})), HasSubstr("5003"));
  Json many = Json::array();
  for (int i = 0; i < 1100; ++i) many.push_back(fmt::format("re:{}", i));
  EXPECT_THAT(refusal(packed(kInt4, many)), HasSubstr("1024"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

TEST(Task8_2_Config, ReadsGptq) {
  const Json json = {{"quant_method", "gptq"},
                     {"bits", 4},
                     {"group_size", 128},
                     {"desc_act", false},
                     {"sym", true},
                     {"damp_percent", 0.01},
                     {"true_sequential", true},
                     {"checkpoint_format", "gptq"}};
  const auto linear = of(parse(json), kQ);
  ASSERT_TRUE(linear.has_value());
  EXPECT_EQ(linear->format, StoredFormat::gptq);
  EXPECT_EQ(linear->scheme.weights, (QuantizationArgs{.num_bits = 4,
                                                      .strategy = ScaleStrategy::group,
                                                      .group_size = 128,
                                                      .scale_format = ScaleFormat::f16}));
  EXPECT_FALSE(linear->scheme.input_activations.has_value());
  EXPECT_TRUE(linear->zeros_are_one_less);
  EXPECT_EQ(of(parse(json), "lm_head"), std::nullopt);
  EXPECT_EQ(of(parse(json), "model.layers.1.mlp.gate"), std::nullopt);

  EXPECT_FALSE(of(parse(with(json, "checkpoint_format", "gptq_v2")), kQ)->zeros_are_one_less);
  // Who took 1 off whole words.
  EXPECT_FALSE(linear->zeros_borrow);
  const auto written_by = [&](const Json& quantizer) {
    return with(json, "meta", {{"quantizer", quantizer}});
  };
  EXPECT_TRUE(of(parse(written_by("gptqmodel:4.0.0")), kQ)->zeros_borrow);
  EXPECT_TRUE(of(parse(written_by({"optimum:1.23", "gptqmodel:1.4"})), kQ)->zeros_borrow);
  EXPECT_FALSE(of(parse(written_by("auto_gptq:0.7")), kQ)->zeros_borrow);
  EXPECT_FALSE(
      of(parse(with(written_by("gptqmodel:4.0.0"), "checkpoint_format", "gptq_v2")), kQ)->zeros_borrow);
  EXPECT_FALSE(weights_of(with(json, "sym", false)).symmetric);
  EXPECT_EQ(weights_of(with(json, "group_size", -1)).strategy, ScaleStrategy::channel);
  const Json ordered = with(json, "desc_act", true);
  EXPECT_EQ(weights_of(ordered).actorder, ActivationOrder::group);
  EXPECT_EQ(weights_of(with(ordered, "static_groups", true)).actorder, ActivationOrder::weight);
  EXPECT_EQ(weights_of(with(ordered, "group_size", -1)).actorder, ActivationOrder::weight)
      << "rows have one group, in whatever order";
  for (const int bits : {2, 3, 8}) EXPECT_EQ(weights_of(with(json, "bits", bits)).num_bits, bits);
  // As GPTQModel writes it: under both names, and static_groups elsewhere.
  Json both = with(ordered, "format", "gptq");
  both["method"] = "gptq";
  both["lm_head"] = false;
  both["pack_dtype"] = "int32";
  both["meta"] = {{"quantizer", {"gptqmodel:5"}}, {"static_groups", true}};
  EXPECT_EQ(weights_of(both).actorder, ActivationOrder::weight);
  EXPECT_THAT(refusal(with(both, "format", "gptq_v2")), AllOf(HasSubstr("format"), HasSubstr("gptq_v2")));
  EXPECT_THAT(refusal(with(both, "method", "awq")), HasSubstr("method"));
  EXPECT_EQ(of(parse(both), "lm_head"), std::nullopt);
  EXPECT_TRUE(of(parse(with(both, "lm_head", true)), "lm_head").has_value());
  EXPECT_THAT(refusal(with(both, "lm_head", "yes")), HasSubstr("lm_head"));
  EXPECT_THAT(refusal(with(both, "pack_dtype", "int16")), HasSubstr("pack_dtype"));
  EXPECT_THAT(refusal(with(both, "rotation", "hadamard")), HasSubstr("rotation"));
  EXPECT_THAT(refusal(with(json, "bits", 5)), HasSubstr("bits"));
  EXPECT_THAT(refusal(with(json, "bits", nullptr)), HasSubstr("bits"));
  EXPECT_THAT(refusal(with(json, "checkpoint_format", "marlin")), HasSubstr("marlin"));
  EXPECT_THAT(refusal(with(json, "group_size", 0)), HasSubstr("group_size"));
  EXPECT_THAT(refusal(with(json, "something", 1)), HasSubstr("something"));
}

// GPTQModel's rules for single modules.
TEST(Task8_2_Config, GptqsDynamicRulesAreItsExceptions) {
  const Json json = {
      {"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"desc_act", true}, {"sym", false}};
  const auto with_rules = [&](const Json& rules) { return with(json, "dynamic", rules); };
  const auto config =
      parse(with_rules({{"-:.*down_proj", Json::object()},
                        {"+:model\\.layers\\.3\\.self_attn.*", {{"bits", 8}, {"group_size", 32}}},
                        {".*gate_proj", {{"desc_act", false}, {"sym", true}, {"damp_percent", 0.1}}}}));
  QuantizationArgs all = {
      .num_bits = 4, .symmetric = false, .strategy = ScaleStrategy::group, .group_size = 128};
  all.scale_format = ScaleFormat::f16;
  all.actorder = ActivationOrder::group;
  EXPECT_EQ(of(config, "model.layers.3.mlp.up_proj")->scheme.weights, all);
  EXPECT_EQ(of(config, kDown), std::nullopt);
  QuantizationArgs eight = all;
  eight.num_bits = 8;
  eight.group_size = 32;
  EXPECT_EQ(of(config, kQ)->scheme.weights, eight);
  EXPECT_EQ(of(config, kQ)->format, StoredFormat::gptq);
  EXPECT_EQ(of(config, "model.layers.4.self_attn.q_proj")->scheme.weights, all);
  QuantizationArgs no_order = all;
  no_order.actorder = ActivationOrder::none;
  no_order.symmetric = true;
  EXPECT_EQ(of(config, kGate)->scheme.weights, no_order);
  EXPECT_EQ(of(config, "lm_head"), std::nullopt);
  // A merged linear is stored one way.
  EXPECT_THAT(error_of([&] {
                parse(with_rules({{"-:.*q_proj", Json::object()}})).linear(Names{kQ, kK});
              }),
              AllOf(HasSubstr("q_proj"), HasSubstr("k_proj")));
  EXPECT_EQ(of(parse(with(json, "dynamic", Json::object())), kQ)->scheme.weights, all);
  EXPECT_THAT(refusal(with_rules({{".*q_proj", {{"bits", 5}}}})),
              AllOf(HasSubstr("dynamic"), HasSubstr("bits")));
  EXPECT_THAT(refusal(with_rules({{".*q_proj", {{"format", "marlin"}}}})),
              AllOf(HasSubstr(".*q_proj"), HasSubstr("format")));
  EXPECT_THAT(refusal(with_rules({{"-:((", Json::object()}})), HasSubstr("regular expression"));
  EXPECT_THAT(refusal(with_rules({{".*q_proj", 8}})), HasSubstr("dynamic"));
  EXPECT_THAT(refusal(with_rules(Json::array({1}))), HasSubstr("dynamic"));
}

// As GPTQModel and vLLM take them, in the order of the file, which is not that of the alphabet.
TEST(Task8_2_Config, TheFirstDynamicRuleThatFitsCounts) {
  const auto bits_of = [](const std::string& rules, const std::string& name) {
    const auto config = QuantizationConfig::parse(
        R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {)" + rules + "}}", "config");
    const auto linear = of(config, name);
    return linear ? linear->scheme.weights.num_bits : 16;
  };
  const std::string eight = R"("+:.*layers\\.3\\..*": {"bits": 8})", dense = R"("-:.*down_proj": {})",
                    three = R"(".*_proj": {"bits": 3})";
  EXPECT_EQ(bits_of(eight + "," + dense + "," + three, kDown), 8);
  EXPECT_EQ(bits_of(dense + "," + eight + "," + three, kDown), 16);
  EXPECT_EQ(bits_of(three + "," + eight + "," + dense, kDown), 3);
  EXPECT_EQ(bits_of(dense + "," + eight + "," + three, kQ), 8);
  EXPECT_EQ(bits_of(dense + "," + eight + "," + three, "model.layers.4.self_attn.q_proj"), 3);
  EXPECT_EQ(bits_of(dense + "," + eight + "," + three, "model.layers.4.mlp.down_proj"), 16);
}

// compressed-tensors' preset UNQUANTIZED, by its name or written out: what it names is dense, although another group names it too.
TEST(Task8_2_Config, AGroupMayLeaveItsLinearsDense) {
  Json json = packed(kInt4), by_name = json;
  json["config_groups"]["keys"] = {{"targets", {"re:.*mlp.*"}}, {"weights", nullptr}, {"format", nullptr}};
  by_name["config_groups"]["UNQUANTIZED"] = {"re:.*mlp.*"};
  for (const Json& config : {json, by_name}) {
    EXPECT_EQ(of(parse(config), kDown), std::nullopt);
    EXPECT_EQ(of(parse(config), kQ), of(parse(packed(kInt4)), kQ));
  }
  by_name["config_groups"]["UNQUANTIZED"] = Json::array();
  EXPECT_THAT(refusal(by_name), HasSubstr("targets"));
  json["config_groups"]["keys"]["targets"] = Json::array();
  EXPECT_THAT(refusal(json), HasSubstr("targets"));
}

// As optimum writes it for Mixtral and Qwen2's experts: the ends of the names, all others are dense.
TEST(Task8_2_Config, GptqMayNameWhatItQuantized) {
  const Json json = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"desc_act", false}};
  const auto named = [&](const Json& names) {
    return parse(with(json, "modules_in_block_to_quantize", names));
  };
  Json experts = Json::array();
  for (int expert = 0; expert < 128; ++expert)
    for (const char* matrix : {"gate_proj", "up_proj", "down_proj"})
      experts.push_back(fmt::format("mlp.experts.{}.{}", expert, matrix));
  const QuantizationConfig config = named({{"self_attn.q_proj", "self_attn.k_proj"}, experts});
  const auto quantized = of(parse(json), kQ);
  ASSERT_TRUE(quantized.has_value());
  EXPECT_EQ(of(config, kQ), quantized);
  for (int expert = 0; expert < 128; ++expert)
    EXPECT_EQ(of(config, fmt::format("model.layers.47.mlp.experts.{}.down_proj", expert)), quantized)
        << expert;
  for (const char* name : {"model.layers.3.self_attn.o_proj", "model.layers.3.mlp.down_proj", "lm_head",
                           "model.layers.3.mlp.experts.128.down_proj", "model.layers.3.self_attnxq_proj",
                           "model.layers.3.self_attn.q_proj_norm"})
    EXPECT_EQ(of(config, name), std::nullopt) << name;
  EXPECT_EQ(of(named({"self_attn.q_proj"}), kQ), quantized) << "a list alone";
  // Rules of "dynamic" are for some of these; as AutoRound writes both.
  Json both = with(json, "modules_in_block_to_quantize", {"self_attn.q_proj", "mlp.down_proj"});
  both["dynamic"] = {{"+:.*mlp.*", {{"bits", 8}}}};
  EXPECT_EQ(of(parse(both), kDown)->scheme.weights.num_bits, 8);
  EXPECT_EQ(of(parse(both), kGate), std::nullopt);
  EXPECT_EQ(of(parse(with(both, "lm_head", true)), "lm_head"), quantized) << "it is in no block";
  EXPECT_EQ(of(named({"self_attn.q_proj"}), kK), std::nullopt);
  for (const Json& none : {Json(nullptr), Json::array(), Json(false)})
    EXPECT_EQ(of(named(none), kK), quantized);
  for (const Json& wrong :
       {Json("self_attn.q_proj"), Json{1}, Json{{""}}, Json{{1}}, Json::object({{"a", 1}})})
    EXPECT_THAT(refusal(with(json, "modules_in_block_to_quantize", wrong)),
                HasSubstr("modules_in_block_to_quantize"))
        << wrong.dump();
}

// AutoRound's own form is GPTQ's without g_idx, or AWQ's.
TEST(Task8_2_Config, ReadsAutoRound) {
  const Json json = {{"quant_method", "auto-round"},
                     {"packing_format", "auto_round:auto_gptq"},
                     {"autoround_version", "0.16.1"},
                     {"block_name_to_quantize", "model.layers"},
                     {"bits", 4},
                     {"data_type", "int"},
                     {"group_size", 32},
                     {"iters", 200},
                     {"sym", true},
                     {"extra_config", {{kDown, {{"bits", 16}, {"data_type", "float"}}}}}};
  const auto linear = of(parse(json), kQ);
  ASSERT_TRUE(linear.has_value());
  EXPECT_EQ(linear->format, StoredFormat::gptq);
  EXPECT_FALSE(linear->has_g_idx);
  EXPECT_TRUE(linear->zeros_are_one_less);
  EXPECT_EQ(linear->scheme.weights.group_size, 32);
  EXPECT_TRUE(linear->scheme.weights.symmetric);
  EXPECT_EQ(of(parse(json), kDown), std::nullopt);
  EXPECT_EQ(of(parse(json), "lm_head"), std::nullopt);
  EXPECT_EQ(of(parse(json), "model.layers.3.mlp.gate"), std::nullopt) << "a router";
  const auto awq = of(parse(with(with(json, "packing_format", "auto_round:auto_awq"), "sym", false)), kQ);
  EXPECT_EQ(awq->format, StoredFormat::awq);
  EXPECT_FALSE(awq->scheme.weights.symmetric);
  // As transformers saves a model again that it has loaded.
  Json again = with(with(json, "backend", "auto"), "model_free", true);
  EXPECT_EQ(of(parse(again), kQ), linear);
  EXPECT_EQ(of(parse(with(again, "packing_format", "auto_round:gptq")), kQ), linear);
  EXPECT_EQ(of(parse(with(with(again, "packing_format", "auto_round:awq"), "sym", false)), kQ), awq);
  EXPECT_THAT(refusal(with(json, "packing_format", "auto_round")), HasSubstr("packing_format"));
  EXPECT_THAT(refusal(with(json, "packing_format", nullptr)), HasSubstr("packing_format"));
  for (const char* name : {"re:model.layers.0.mlp", "Linear"})
    EXPECT_THAT(refusal(with(json, "extra_config", {{name, {{"bits", 16}}}})), HasSubstr("pattern")) << name;
  EXPECT_THAT(refusal(with(json, "act_bits", 8)), HasSubstr("act_bits"));
  EXPECT_THAT(refusal(with(json, "something", 1)), HasSubstr("something"));
}

// As AutoRound 0.16 reads its extra_config: a pattern is looked for anywhere, a name goes before it, and what an entry does not say is the
// whole file's.
TEST(Task8_2_Config, ExceptionsOfAutoRoundArePatternsAndSchemesToo) {
  const Json json = {{"quant_method", "auto-round"},
                     {"packing_format", "auto_round:auto_gptq"},
                     {"bits", 4},
                     {"group_size", 32},
                     {"sym", true}};
  const auto exceptions = [&](const Json& entries) { return parse(with(json, "extra_config", entries)); };
  // What it writes for the routers of Qwen3's experts.
  const Json routers = {{".*model\\.layers\\.3\\.mlp\\.gate.*", {{"bits", 16}, {"data_type", "float"}}}};
  EXPECT_EQ(of(exceptions(routers), "model.layers.3.mlp.gate_proj"), std::nullopt);
  EXPECT_TRUE(of(exceptions(routers), "model.layers.3.mlp.experts.0.gate_proj").has_value());
  EXPECT_TRUE(of(exceptions(routers), "model.layers.13.mlp.gate_proj").has_value());
  for (const char* pattern : {"mlp.*down", "self_attn\\.q|down_proj$", "^x|down_proj$"})
    EXPECT_EQ(of(exceptions({{pattern, {{"bits", 16}}}}), kDown), std::nullopt) << pattern;
  for (const char* pattern :
       {".*mlpx*.down_proj", ".*m+lp.down_proj", ".*mlp\\.dow.*p+roj$", ".*down_projx*"})
    EXPECT_EQ(of(exceptions({{pattern, {{"bits", 16}}}}), kDown), std::nullopt) << pattern;
  for (const char* pattern : {"^mlp.*down", "mlp.*down$", "^down_proj|x", ".*mlp\\.x*down.xproj"})
    EXPECT_TRUE(of(exceptions({{pattern, {{"bits", 16}}}}), kDown).has_value()) << pattern;

  const QuantizationConfig mixed = exceptions(
      {{"mlp.*", {{"bits", 8}, {"data_type", "int"}}}, {kDown, {{"group_size", 64}, {"sym", false}}}});
  const auto up = of(mixed, "model.layers.3.mlp.up_proj"), down = of(mixed, kDown), q = of(mixed, kQ);
  ASSERT_TRUE(up && down && q);
  EXPECT_EQ(up->scheme.weights.num_bits, 8);
  EXPECT_EQ(up->scheme.weights.group_size, 32);
  EXPECT_FALSE(up->has_g_idx) << "the form is the whole file's";
  EXPECT_EQ(down->scheme.weights.num_bits, 4);
  EXPECT_EQ(down->scheme.weights.group_size, 64);
  EXPECT_FALSE(down->scheme.weights.symmetric);
  EXPECT_EQ(q->scheme.weights.num_bits, 4);

  const auto refused = [&](const Json& entry) {
    return refusal(with(json, "extra_config", {{kDown, entry}}));
  };
  EXPECT_THAT(refused({{"bits", 5}}), AllOf(HasSubstr(kDown), HasSubstr("bits")));
  EXPECT_THAT(refused({{"bits", 8}, {"data_type", "fp"}}), AllOf(HasSubstr(kDown), HasSubstr("data_type")));
  EXPECT_THAT(refused({{"bits", 8}, {"act_bits", 8}}), AllOf(HasSubstr(kDown), HasSubstr("act_bits")));
  EXPECT_THAT(refused({{"bits", 8}, {"super_bits", 6}}), AllOf(HasSubstr(kDown), HasSubstr("super_bits")));
  EXPECT_THAT(refused({{"bits", 16}, {"act_bits", 8}}), AllOf(HasSubstr(kDown), HasSubstr("act_bits")));
  EXPECT_THAT(refused(8), HasSubstr(kDown));
  const auto null =
      of(exceptions({{kDown, {{"bits", nullptr}, {"group_size", nullptr}, {"sym", nullptr}}}}), kDown);
  ASSERT_TRUE(null.has_value());
  EXPECT_EQ(null->scheme.weights.num_bits, 4) << "null is absent";
  EXPECT_EQ(null->scheme.weights.group_size, 32);
  EXPECT_THAT(refusal(with(json, "extra_config", {{"(", {{"bits", 16}}}})), HasSubstr("(?:()"));
  EXPECT_THAT(refusal(with(with(json, "packing_format", "auto_round:auto_awq"), "extra_config",
                           {{kDown, {{"group_size", 64}}}})),
              AllOf(HasSubstr(kDown), HasSubstr("auto_gptq")));
}

// Without a calibration AutoRound 0.16 quantizes a folder file by file ("model_free"), and writes down what its user wrote: pieces of
// names, beside the whole names of what it has left as it was.
TEST(Task8_2_Config, ExceptionsOfAutoRoundAsItsUserWroteThem) {
  const auto bits_of = [](const std::string& entries, const std::string& name) {
    const auto config = QuantizationConfig::parse(
        R"({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4,
            "group_size": 32, "sym": true, "data_type": "int", "iters": 0, "model_free": true,
            "block_name_to_quantize": "model.layers", "extra_config": {)" +
            entries + "}}",
        "config");
    const auto linear = of(config, name);
    return linear ? linear->scheme.weights.num_bits : 16;
  };
  const std::string down = R"("down_proj": {"bits": 8})", third = R"("layers.3.": {"bits": 3})",
                    left = R"("lm_head": {"bits": 16}, "model.layers.3.mlp.up_proj": {"bits": 16})";
  EXPECT_EQ(bits_of(down, kDown), 8);
  EXPECT_EQ(bits_of(down, kQ), 4);
  EXPECT_EQ(bits_of(down, "model.layers.3.mlp.experts.1.down_proj"), 8);
  EXPECT_EQ(bits_of(down + "," + third, kDown), 8) << "the first";
  EXPECT_EQ(bits_of(third + "," + down, kDown), 3);
  EXPECT_EQ(bits_of(third + "," + left, "model.layers.3.mlp.up_proj"), 16) << "a name before a pattern";
  EXPECT_EQ(bits_of(left, "model.layers.3.mlp.up_proj_of_another"), 4) << "a whole name is no pattern";
  EXPECT_EQ(bits_of(left, "model.layers.13.mlp.up_proj"), 4);
  // The head is an exception too, where it is in codes.
  EXPECT_EQ(bits_of(down, "lm_head"), 16);
  EXPECT_EQ(bits_of(left, "lm_head"), 16);
  EXPECT_EQ(bits_of(R"("lm_head": {"bits": 4, "group_size": 32, "act_bits": 16})", "lm_head"), 4);
  EXPECT_EQ(bits_of(R"("lm_head": {"bits": 8})", "lm_head"), 8);
}

// AutoRound's own words for MXFP4, MXFP8 and NVFP4 beside the tensors of compressed-tensors, as 0.16.1 saves them.
TEST(Task8_2_Config, ReadsSmallFloatsOfAutoRound) {
  const auto floats = [](int bits, int size, const char* type, const char* inputs) {
    return Json{{"quant_method", "auto-round"},
                {"packing_format", "auto_round:llm_compressor"},
                {"bits", bits},
                {"data_type", type},
                {"group_size", size},
                {"sym", true},
                {"act_bits", bits},
                {"act_data_type", inputs},
                {"act_dynamic", true},
                {"act_group_size", size},
                {"act_sym", true},
                {"extra_config", {{kDown, {{"bits", 16}, {"act_bits", 16}, {"data_type", "float"}}}}}};
  };
  const Json mxfp4 = floats(4, 32, "mx_fp", "mx_fp"), nvfp4 = floats(4, 16, "nv_fp", "nv_fp4_with_static_gs");
  EXPECT_EQ(of(parse(mxfp4), kQ), stored_linear(preset_scheme("MXFP4"), ""));
  EXPECT_EQ(of(parse(floats(8, 32, "mx_fp", "mx_fp")), kQ), stored_linear(preset_scheme("MXFP8"), ""));
  EXPECT_EQ(of(parse(nvfp4), kQ), stored_linear(preset_scheme("NVFP4"), ""));
  EXPECT_EQ(of(parse(with(mxfp4, "act_bits", 16)), kQ), stored_linear(preset_scheme("MXFP4A16"), ""));
  EXPECT_EQ(of(parse(mxfp4), kDown), std::nullopt);
  EXPECT_EQ(of(parse(mxfp4), "lm_head"), std::nullopt);
  for (const auto& [key, value] : {std::pair<const char*, Json>{"data_type", "mx_fp_rceil"},
                                   {"bits", 6},
                                   {"group_size", 16},
                                   {"sym", false},
                                   {"act_bits", 8},
                                   {"act_group_size", 16},
                                   {"act_data_type", "mx_fp_rceil"},
                                   {"act_dynamic", false},
                                   {"act_sym", false},
                                   {"lm_head", true}})
    EXPECT_THAT(refusal(with(mxfp4, key, value)), HasSubstr(key));
  EXPECT_THAT(refusal(with(mxfp4, "extra_config", {{kDown, {{"bits", 8}}}})), HasSubstr("auto_gptq"));
}

// AutoRound's fp8, as 0.16.1 saves it: beside DeepSeek's keys its own, which say the same.
TEST(Task8_2_Config, ReadsFp8OfAutoRound) {
  const Json plain = {{"quant_method", "fp8"},
                      {"fmt", "e4m3"},
                      {"activation_scheme", "dynamic"},
                      {"weight_block_size", {128, 128}}};
  Json json = plain;
  json.update({{"act_bits", 8},
               {"act_data_type", "fp"},
               {"act_dynamic", true},
               {"act_group_size", 128},
               {"act_sym", true},
               {"autoround_version", "0.16.1"},
               {"bits", 8},
               {"block_name_to_quantize", "model.layers"},
               {"data_type", "fp"},
               {"enable_quanted_input", false},
               {"group_size", {128, 128}},
               {"sym", true}});
  EXPECT_EQ(of(parse(json), kDown), of(parse(plain), kDown));
  EXPECT_EQ(of(parse(json), "lm_head"), std::nullopt);
  const std::pair<const char*, Json> others[] = {
      {"act_bits", 16},      {"bits", 4},        {"data_type", "int"},      {"act_data_type", "fp_dynamic"},
      {"sym", false},        {"act_sym", false}, {"group_size", {128, 64}}, {"act_group_size", 64},
      {"act_dynamic", false}};
  for (const auto& [key, value] : others)
    EXPECT_THAT(refusal(with(json, key, value)), HasSubstr(key)) << value.dump();
}

TEST(Task8_2_Config, ReadsAwq) {
  const Json json = {{"quant_method", "awq"}, {"bits", 4},
                     {"group_size", 64},      {"zero_point", true},
                     {"version", "GEMM"},     {"modules_to_not_convert", {"layers.3.mlp.down"}}};
  const auto linear = of(parse(json), kQ);
  ASSERT_TRUE(linear.has_value());
  EXPECT_EQ(linear->format, StoredFormat::awq);
  EXPECT_EQ(linear->scheme.weights, (QuantizationArgs{.num_bits = 4,
                                                      .symmetric = false,
                                                      .strategy = ScaleStrategy::group,
                                                      .group_size = 64,
                                                      .scale_format = ScaleFormat::f16}));
  EXPECT_EQ(of(parse(json), kDown), std::nullopt) << "any piece of the name";
  EXPECT_EQ(of(parse(json), "lm_head"), std::nullopt);
  const Json old = {{"quant_method", "awq"}, {"w_bit", 4}, {"q_group_size", -1}, {"zero_point", false}};
  EXPECT_EQ(weights_of(old).strategy, ScaleStrategy::channel);
  EXPECT_TRUE(weights_of(old).symmetric);
  EXPECT_THAT(refusal(with(old, "bits", 3)), AllOf(HasSubstr("bits"), HasSubstr("w_bit")));
  EXPECT_EQ(weights_of(with(old, "bits", 4)).num_bits, 4) << "twice the same";
  EXPECT_THAT(refusal(with(json, "checkpoint_format", "gemv")), HasSubstr("gemv"));
  for (const char* version : {"gemv", "gemv_fast", "marlin"})
    EXPECT_THAT(refusal(with(json, "version", version)), HasSubstr(version));
  EXPECT_THAT(refusal(with(json, "bits", 8)), HasSubstr("bits"));
}

TEST(Task8_2_Config, ReadsFp8) {
  const Json blocks = {{"quant_method", "fp8"},
                       {"fmt", "e4m3"},
                       {"activation_scheme", "dynamic"},
                       {"weight_block_size", {128, 128}},
                       {"modules_to_not_convert", {"mlp.gate", "model.layers.0"}}};
  const auto linear = of(parse(blocks), kQ);
  ASSERT_TRUE(linear.has_value());
  EXPECT_EQ(linear->format, StoredFormat::plain);
  EXPECT_TRUE(linear->scale_is_inverse);
  EXPECT_EQ(linear->stored_scales, ScaleFormat::f32);
  EXPECT_EQ(linear->scheme.weights.strategy, ScaleStrategy::block);
  EXPECT_EQ(linear->scheme.weights.block_columns, 128);
  EXPECT_EQ(linear->scheme.input_activations->strategy, ScaleStrategy::group);
  EXPECT_TRUE(of(parse(blocks), kGate).has_value()) << "mlp.gate is a module, not the beginning of one";
  EXPECT_EQ(of(parse(blocks), "model.layers.3.mlp.gate"), std::nullopt);
  EXPECT_EQ(of(parse(blocks), "model.layers.0.mlp.down_proj"), std::nullopt);
  EXPECT_TRUE(of(parse(blocks), "model.layers.01.mlp.down_proj").has_value());

  const Json whole = {
      {"quant_method", "fp8"}, {"activation_scheme", "static"}, {"ignored_layers", {"lm_head"}}};
  EXPECT_EQ(weights_of(whole).strategy, ScaleStrategy::tensor);
  EXPECT_FALSE(of(parse(whole), kQ)->scale_is_inverse);
  EXPECT_FALSE(of(parse(whole), kQ)->scheme.input_activations->dynamic);
  EXPECT_EQ(of(parse(with(whole, "activation_scheme", "dynamic")), kQ)->scheme.input_activations->strategy,
            ScaleStrategy::token);
  EXPECT_THAT(refusal(with(whole, "activation_scheme", "none")), HasSubstr("activation_scheme"));
  EXPECT_THAT(refusal(with(whole, "fmt", "e5m2")), HasSubstr("e5m2"));
  EXPECT_THAT(refusal(with(whole, "weight_block_size", {128, 128})), HasSubstr("weight_block_size"));
  EXPECT_THAT(refusal(with(blocks, "weight_block_size", {128})), HasSubstr("weight_block_size"));
}

TEST(Task8_2_Config, OnlyCompressedTensorsFormatsAreWritten) {
  const auto written = [](StoredLinear linear) {
    const std::vector<QuantizationGroup> groups = {{{"Linear"}, linear}};
    return to_json(groups, {});
  };
  StoredLinear linear = stored_linear(preset_scheme("FP8_BLOCK"), "w");
  linear.scale_is_inverse = true;
  EXPECT_THROW(written(linear), Error);
  linear = stored_linear(preset_scheme("W4A16"), "w");
  linear.format = StoredFormat::gptq;
  EXPECT_THROW(written(linear), Error);
  linear.format = StoredFormat::mx;
  EXPECT_THROW(written(linear), Error);
  EXPECT_THROW(to_json({}, {}), Error);
}

}  // namespace
}  // namespace ladder
