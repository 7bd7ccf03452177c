// Task 8.2: checkpoints whose quantization_config has a scheme for keys and values, and the scales that it brings.
#include "step2_model/loading/kv_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step2_model/model.h"
#include "step8_advanced/quantization/config/kv_cache_note.h"
#include "step8_advanced/quantization/config/quantization_config.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "tests/support/model_session.h"
#include "tests/support/numerics.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::filesystem::path kGolden =
    testing::source_folder() / "tests/goldens/quantized/ct_w4a16_g32_kv_fp8";  // two layers, two heads

// The golden checkpoint without its scales and with these instead.
void write_with(const testing::NamedTensors& scales, const testing::TemporaryFolder& folder) {
  testing::NamedTensors tensors;
  const Checkpoint checkpoint(kGolden);
  for (const Checkpoint::Entry& entry : checkpoint.entries())
    if (!is_kv_scale(entry.info->name)) tensors.emplace_back(entry.info->name, entry.tensor().clone());
  tensors.insert(tensors.end(), scales.begin(), scales.end());
  testing::write_safetensors(folder / "model.safetensors", tensors);
  testing::write_file(folder / "config.json", read_text_file(kGolden / "config.json"));
}

Tensor logits_of(const std::filesystem::path& folder) {
  ModelOptions options;
  options.makers.linear_method = make_quantized_linear_methods();
  const auto model = load_model({}, folder, load_decoder_spec(folder), options);
  return testing::ModelSession(*model, {}).step({{0, {3, 1, 4, 1, 5, 9, 2, 6}}}).clone();
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

std::string refusal_of(const testing::NamedTensors& scales) {
  const testing::TemporaryFolder folder;
  write_with(scales, folder);
  return error_of([&] { logits_of(folder.path()); });
}

std::string attention(int layer) {
  return fmt::format("model.layers.{}.self_attn", layer);
}

Tensor scale_of(float value, const Shape& shape = {1}) {
  const Tensor tensor = Tensor::empty(shape, DType::f32);
  std::fill_n(tensor.data<float>(), tensor.numel(), value);
  return tensor;
}

testing::NamedTensors in_both_layers(const std::vector<std::string>& names, const Tensor& scale) {
  testing::NamedTensors all;
  for (int layer = 0; layer < 2; ++layer)
    for (const std::string& name : names) all.emplace_back(attention(layer) + name, scale);
  return all;
}

TEST(Task8_2_KvScales, ACheckpointWithThemLoadsUnderEachOfTheirNames) {
  const Tensor expected = logits_of(kGolden);
  const auto expect_loaded = [&](const testing::NamedTensors& scales) {
    const testing::TemporaryFolder folder;
    write_with(scales, folder);
    EXPECT_TRUE(testing::bitwise_equal(logits_of(folder.path()), expected))
        << (scales.empty() ? "none" : scales[0].first);
  };
  expect_loaded({});
  const std::vector<std::string> usual = {".k_scale", ".v_scale"};
  for (const auto& names :
       {usual, {".kv_scale"}, {".k_proj.k_scale", ".v_proj.v_scale"}, {".k_proj.output_scale", ".v_scale"}})
    expect_loaded(in_both_layers(names, scale_of(0.02f)));
  for (const Shape& shape : {Shape{}, Shape{2}, Shape{2, 1, 1}})
    expect_loaded(in_both_layers(usual, scale_of(3, shape)));
  expect_loaded(in_both_layers(usual, scale_of(0.02f).to(DType::bf16)));
}

TEST(Task8_2_KvScales, WhatNoScaleCanBeIsRefusedByName) {
  const std::string name = attention(1) + ".v_scale";
  const auto with = [&](const Tensor& scale) {
    testing::NamedTensors scales = in_both_layers({".k_scale", ".v_scale"}, scale_of(1));
    for (auto& [known, tensor] : scales)
      if (known == name) tensor = scale;
    return refusal_of(scales);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {nan, INFINITY, 0.0f, -1.0f})
    EXPECT_THAT(with(scale_of(value)), AllOf(HasSubstr(name), HasSubstr(fmt::format("is {}", value))));
  const Tensor second = scale_of(1, {2});
  second.data<float>()[1] = nan;
  EXPECT_THAT(with(second), AllOf(HasSubstr(name), HasSubstr("nan")));
  for (const Shape& shape : {Shape{0}, Shape{3}, Shape{2, 1}, Shape{1, 2, 1}, Shape{1, 1}})
    EXPECT_THAT(with(scale_of(1, shape)), AllOf(HasSubstr(name), HasSubstr(shape.str())));
  EXPECT_THAT(with(Tensor::zeros({1}, DType::i32)), AllOf(HasSubstr(name), HasSubstr("dtype")));
}

TEST(Task8_2_KvScales, NoneIsMissingTwiceThereOrOfALayerThatIsNotThere) {
  testing::NamedTensors scales = in_both_layers({".k_scale", ".v_scale"}, scale_of(1));
  scales.pop_back();
  EXPECT_THAT(refusal_of(scales), HasSubstr(attention(1) + ".v_scale is missing"));
  scales.emplace_back(attention(1) + ".v_scale", scale_of(1));
  scales.emplace_back(attention(0) + ".kv_scale", scale_of(1));
  EXPECT_THAT(refusal_of(scales), AllOf(HasSubstr(attention(0) + ".kv_scale"), HasSubstr("expected one")));
  scales.back().first = attention(2) + ".k_scale";
  EXPECT_THAT(refusal_of(scales), AllOf(HasSubstr(attention(2) + ".k_scale"), HasSubstr("2 layers")));
}

// A name that is nearly one of theirs is unexpected like any other, and so is theirs where nothing is quantized.
TEST(Task8_2_KvScales, OtherNamesAreUnexpected) {
  for (const char* name :
       {"model.layers.0.self_attn.q_scale", "model.layers.-1.self_attn.k_scale",
        "model.layers..self_attn.k_scale", "model.layers.0x.self_attn.k_scale",
        "model.layers.99999999999999999999.self_attn.k_scale", "k_scale",
        "model.layers.0.self_attn.k_proj.v_scale", "self_attn.k_scale", "model.layers.0.mlp.k_scale"}) {
    EXPECT_FALSE(is_kv_scale(name)) << name;
    EXPECT_THAT(refusal_of({{name, scale_of(1)}}), HasSubstr("unexpected")) << name;
  }
  const testing::TemporaryFolder folder;
  const std::filesystem::path dense = testing::source_folder() / "tests/goldens/qwen3_tied";
  testing::NamedTensors tensors;
  const Checkpoint checkpoint(dense);
  for (const Checkpoint::Entry& entry : checkpoint.entries())
    tensors.emplace_back(entry.info->name, entry.tensor().clone());
  tensors.emplace_back(attention(0) + ".k_scale", scale_of(1));
  testing::write_safetensors(folder / "model.safetensors", tensors);
  testing::write_file(folder / "config.json", read_text_file(dense / "config.json"));
  EXPECT_THAT(error_of([&] { logits_of(folder.path()); }),
              AllOf(HasSubstr("unexpected"), HasSubstr("k_scale")));
}

const Json kFp8Cache = {
    {"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"symmetric", true}, {"dynamic", false}};

Json with(Json json, const std::string& key, const Json& value) {
  json[key] = value;
  return json;
}

Json config_with(const Json& scheme) {
  return {{"quant_method", "compressed-tensors"},
          {"kv_cache_scheme", scheme},
          {"config_groups", {{"W8A16", {"Linear"}}}}};
}

std::optional<StoredKvCache> read(const Json& config) {
  return QuantizationConfig::parse(config.dump(), "q").kv_cache();
}

TEST(Task8_2_KvScales, TheirSchemeIsRead) {
  EXPECT_EQ(read(config_with(nullptr)), std::nullopt);
  EXPECT_EQ(read(config_with(Json::object())), std::nullopt);
  const auto whole = read(config_with(kFp8Cache));
  ASSERT_TRUE(whole.has_value());
  EXPECT_TRUE(whole->args.is_float);
  EXPECT_EQ(whole->args.num_bits, 8);
  EXPECT_FALSE(whole->args.dynamic);
  EXPECT_FALSE(whole->per_head);
  const auto per_head = read(config_with(with(kFp8Cache, "strategy", "attn_head")));
  ASSERT_TRUE(per_head.has_value());
  EXPECT_TRUE(per_head->per_head);
  EXPECT_FALSE(read(config_with(with(kFp8Cache, "type", "int")))->args.is_float);

  const Json fp8 = {{"quant_method", "fp8"}, {"activation_scheme", "static"}, {"kv_cache_scheme", "static"}};
  EXPECT_EQ(read(fp8), whole->args.scale_format == ScaleFormat::bf16
                           ? std::optional(StoredKvCache{.args = {.is_float = true}})
                           : std::nullopt);
  EXPECT_TRUE(read(with(fp8, "kv_cache_scheme", "dynamic"))->args.dynamic);
}

TEST(Task8_2_KvScales, ASchemeThatIsNotKnownIsRefusedByName) {
  const auto refusal = [](const Json& scheme) { return error_of([&] { read(config_with(scheme)); }); };
  for (const auto& [key, value] : {std::pair<std::string, Json>{"strategy", "channel"},
                                   {"strategy", "token"},
                                   {"strategy", "heads"},
                                   {"symmetric", false},
                                   {"num_bits", 16},
                                   {"num_bits", 5},
                                   {"type", "posit"},
                                   {"scales", 1},
                                   {"group_size", 16},
                                   {"actorder", "weight"},
                                   {"dynamic", "local"}})
    EXPECT_THAT(refusal(with(kFp8Cache, key, value)), HasSubstr("q: kv_cache_scheme")) << key << value;
  EXPECT_THAT(refusal("fp8"), HasSubstr("kv_cache_scheme"));
  const Json fp8 = {{"quant_method", "fp8"}, {"kv_cache_scheme", "int4"}};
  EXPECT_THAT(error_of([&] { read(fp8); }), AllOf(HasSubstr("kv_cache_scheme"), HasSubstr("int4")));
}

TEST(Task8_2_KvScales, TheirSchemeComesBackFromItsFile) {
  const QuantizationConfig config = QuantizationConfig::parse(config_with(kFp8Cache).dump(), "q");
  for (const bool per_head : {false, true}) {
    StoredKvCache cache = *config.kv_cache();
    cache.per_head = per_head;
    const std::string text = to_json(config.groups(), {}, cache);
    EXPECT_EQ(QuantizationConfig::parse(text, "written").kv_cache(), cache) << text;
  }
  EXPECT_EQ(QuantizationConfig::parse(to_json(config.groups(), {}), "written").kv_cache(), std::nullopt);
}

// What a user is told: the engine does not do what the checkpoint asks for.
TEST(Task8_2_KvScales, ALineSaysThatTheyAreNotUsed) {
  EXPECT_EQ(kv_cache_note("", KvCacheDType::automatic), "");
  EXPECT_EQ(kv_cache_note(config_with(nullptr).dump(), KvCacheDType::fp8), "");
  const std::string text = config_with(kFp8Cache).dump();
  EXPECT_THAT(kv_cache_note(text, KvCacheDType::automatic),
              AllOf(HasSubstr("kv_cache_scheme"), HasSubstr("floats of 8 bits"), HasSubstr("not done"),
                    HasSubstr("--kv-cache-dtype fp8"), ::testing::Not(HasSubstr("\n"))));
  EXPECT_THAT(kv_cache_note(text, KvCacheDType::int8),
              AllOf(HasSubstr("scale of each layer: not used"), HasSubstr("--kv-cache-dtype int8")));
  EXPECT_THAT(kv_cache_note(config_with(with(kFp8Cache, "strategy", "attn_head")).dump(), KvCacheDType::fp8),
              HasSubstr("scale of each head: not used"));
}

}  // namespace
}  // namespace ladder
