// Task 8.2: what NVIDIA's Model Optimizer writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "step1_layers/core/error.h"
#include "step1_layers/core/small_floats.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/json.h"
#include "step2_model/model.h"
#include "step8_advanced/quantization/config/quantization_config.h"
#include "step8_advanced/quantization/config/weights_note.h"
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
using testing::Random;

const Json kNumbers = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
const Json kFp8 = {
    {"quant_method", "modelopt"},
    {"quant_algo", "FP8"},
    {"producer", {{"name", "modelopt"}, {"version", "0.47.0"}}},
    {"config_groups",
     {{"group_0", {{"targets", {"Linear"}}, {"weights", kNumbers}, {"input_activations", kNumbers}}}}},
    {"kv_cache_scheme", kNumbers},
    {"ignore", {"lm_head", "model.layers.1.self_attn*", "*router*"}}};
const Json kOldFp8 = {{"producer", {{"name", "modelopt"}}},
                      {"quantization",
                       {{"quant_algo", "FP8"},
                        {"kv_cache_quant_algo", "FP8"},
                        {"exclude_modules", {"lm_head", "model.layers.1.self_attn*"}}}}};

const Json kFours = {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
const Json kNvfp4 = {
    {"quant_method", "modelopt"},
    {"quant_algo", "NVFP4"},
    {"producer", {{"name", "modelopt"}, {"version", "0.47.0"}}},
    {"config_groups",
     {{"group_0", {{"targets", {"Linear"}}, {"weights", kFours}, {"input_activations", kFours}}}}},
    {"ignore", {"lm_head"}}};
const Json kOldNvfp4 = {{"producer", {{"name", "modelopt"}}},
                        {"quantization",
                         {{"quant_algo", "NVFP4"},
                          {"kv_cache_quant_algo", nullptr},
                          {"group_size", 16},
                          {"exclude_modules", {"lm_head"}}}}};

Json with(Json json, const std::string& key, const Json& value) {
  json[key] = value;
  return json;
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

std::optional<StoredLinear> of(const Json& json, const std::string& name) {
  return QuantizationConfig::parse(json.dump(), "q").linear({&name, 1});
}

TEST(Task8_2_Modelopt, Fp8IsReadAsWhatItIs) {
  const auto linear = of(kFp8, "model.layers.0.self_attn.q_proj");
  ASSERT_TRUE(linear.has_value());
  EXPECT_EQ(linear->format, StoredFormat::plain);
  EXPECT_TRUE(linear->scheme.weights.is_float);
  EXPECT_EQ(linear->scheme.weights.strategy, ScaleStrategy::tensor);
  ASSERT_TRUE(linear->scheme.input_activations.has_value());
  EXPECT_FALSE(linear->scheme.input_activations->dynamic);
  EXPECT_TRUE(QuantizationConfig::parse(kFp8.dump(), "q").kv_cache().has_value());
  for (const char* name : {"lm_head", "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.router.proj"})
    EXPECT_EQ(of(kFp8, name), std::nullopt) << name;
  // A dot is a dot, and a name without * is the whole of it.
  for (const char* name : {"model.layers.10.self_attn.q_proj", "model_layers.1.self_attn.q_proj", "lm_head.x",
                           "x.model.layers.1.self_attn.q_proj"})
    EXPECT_TRUE(of(kFp8, name).has_value()) << name;
}

TEST(Task8_2_Modelopt, OtherAlgorithmsAreRefusedByName) {
  const auto refusal = [](const Json& json) {
    return error_of([&] { of(json, "model.layers.0.mlp.up_proj"); });
  };
  EXPECT_EQ(refusal(kFp8), "no error");
  for (const char* algorithm : {"NVFP4_SVD", "NVFP4_AWQ", "W4A8_AWQ", "W4A16_AWQ", "FP8_PB_WO",
                                "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "MIXED_PRECISION", ""})
    EXPECT_THAT(refusal(with(kFp8, "quant_algo", algorithm)),
                AllOf(HasSubstr("quant_algo"), HasSubstr(algorithm)));
  EXPECT_THAT(refusal(with(kFp8, "quantized_layers", Json::object())), HasSubstr("quantized_layers"));
  EXPECT_THAT(refusal(with(kFp8, "kv_cache_scheme", "NVFP4")), HasSubstr("kv_cache_scheme"));
  EXPECT_THAT(refusal(with(kFp8, "kv_cache_quant_algo", "INT8")), HasSubstr("kv_cache_quant_algo"));
  EXPECT_THAT(refusal(with(kFp8, "ignore", "lm_head")), HasSubstr("ignore"));
  EXPECT_THAT(refusal(with(kFp8, "group_size", 16)), HasSubstr("group_size"));
  EXPECT_THAT(refusal(with(kNvfp4, "group_size", 32)), HasSubstr("group_size"));
  // Groups that are not what the word says.
  EXPECT_THAT(refusal(with(kFp8, "quant_algo", "NVFP4")), HasSubstr("config_groups"));
  EXPECT_THAT(refusal(with(kNvfp4, "quant_algo", "W4A16_NVFP4")), HasSubstr("config_groups"));
  EXPECT_THAT(refusal(with(kNvfp4, "quant_algo", "FP8")), HasSubstr("config_groups"));
  const auto with_group = [&](const char* key, const Json& value) {
    Json json = kFp8;
    json["config_groups"]["group_0"][key] = value;
    return refusal(json);
  };
  EXPECT_THAT(with_group("input_activations", nullptr), HasSubstr("config_groups"));
  EXPECT_THAT(with_group("weights", with(kNumbers, "strategy", "channel")), HasSubstr("config_groups"));
  EXPECT_THAT(with_group("weights", with(kNumbers, "num_bits", 4)), HasSubstr("4 bits"));
  EXPECT_THAT(with_group("pre_quant_scale", true), HasSubstr("pre_quant_scale"));
}

Tensor logits_of(const std::filesystem::path& folder) {
  ModelOptions options;
  options.makers.linear_method = make_quantized_linear_methods();
  const auto model = load_model({}, folder, load_decoder_spec(folder), options);
  return testing::ModelSession(*model, {}).step({{0, {3, 1, 4, 1, 5, 9, 2, 6}}}).clone();
}

// The golden fp8 checkpoint with scales as ModelOpt has them: numbers without a dimension, and those of keys and values below
// their projections.
TEST(Task8_2_Modelopt, ItsFoldersLoadNewOnesAndOldOnes) {
  const std::filesystem::path golden = testing::source_folder() / "tests/goldens/quantized/fp8_static";
  testing::NamedTensors tensors;
  {
    const Checkpoint checkpoint(golden);
    for (const Checkpoint::Entry& entry : checkpoint.entries()) {
      const std::string& name = entry.info->name;
      const Tensor tensor = entry.tensor().clone();
      tensors.emplace_back(name, name.ends_with("_scale") ? tensor.view(Shape{}) : tensor);
    }
  }
  for (int layer = 0; layer < 2; ++layer)
    for (const char* name : {"k_proj.k_scale", "v_proj.v_scale"}) {
      const Tensor scale = Tensor::empty(Shape{}, DType::f32);
      scale.data<float>()[0] = 0.03f;
      tensors.emplace_back(fmt::format("model.layers.{}.self_attn.{}", layer, name), scale);
    }
  const Tensor expected = logits_of(golden);
  for (const bool is_old : {false, true}) {
    const testing::TemporaryFolder folder;
    testing::write_safetensors(folder / "model.safetensors", tensors);
    Json config = load_json(golden / "config.json");
    config.erase("quantization_config");
    Json of_optimizer = is_old ? kOldFp8 : kFp8;
    (is_old ? of_optimizer["quantization"]["exclude_modules"] : of_optimizer["ignore"]) = {"lm_head"};
    if (is_old)
      testing::write_file(folder / "hf_quant_config.json", of_optimizer.dump());
    else
      config["quantization_config"] = of_optimizer;
    testing::write_file(folder / "config.json", config.dump());
    EXPECT_TRUE(testing::bitwise_equal(logits_of(folder.path()), expected)) << is_old;
    const DecoderSpec spec = load_decoder_spec(folder.path());
    EXPECT_TRUE(QuantizationConfig::parse(spec.quantization_config, "q").kv_cache().has_value());
  }
}

// A model whose linears are random numbers in NVFP4, as one of three writes it: ModelOpt, compressed-tensors, and nobody, with the
// matrices that the codes stand for, in double precision. The tensor's scales are powers of two, so 1 / G is G's inverse.
enum class Writer { modelopt, compressed_tensors, dense };
void write_nvfp4(const std::filesystem::path& folder, Writer writer, uint64_t seed, bool rounds_inputs) {
  const std::filesystem::path golden = testing::source_folder() / "tests/goldens/qwen3_tied";
  Random random(seed);
  testing::NamedTensors tensors;
  const Checkpoint checkpoint(golden);
  const auto number = [](float value) { return Tensor::from<float>(std::vector<float>{value}, Shape{1}); };
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    const std::string& name = entry.info->name;
    const Tensor tensor = entry.tensor().clone();
    if (!name.ends_with("_proj.weight")) {
      tensors.emplace_back(name, tensor);
      continue;
    }
    const std::string linear = name.substr(0, name.size() - std::string("weight").size());
    const int64_t n = tensor.dim(0), k = tensor.dim(1), groups = k / 16;
    const Tensor codes = Tensor::empty({n, k / 2}, DType::u8),
                 scales = Tensor::empty({n, groups}, DType::f8_e4m3),
                 dense = Tensor::empty({n, k}, DType::f32);
    const float global = std::ldexp(1.0f, static_cast<int>(random.integer(6, 9))),
                of_inputs = std::ldexp(1.0f, static_cast<int>(random.integer(8, 10)));
    for (int64_t i = 0; i < n * groups; ++i)
      static_cast<uint8_t*>(scales.raw())[i] = float_to_e4m3(static_cast<float>(random.uniform(4, 16)));
    for (int64_t row = 0; row < n; ++row)
      for (int64_t column = 0; column < k; ++column) {
        const auto code = static_cast<uint8_t>(random.integer(0, 15));
        uint8_t& byte = codes.data<uint8_t>()[row * k / 2 + column / 2];
        byte = static_cast<uint8_t>(column % 2 == 0 ? code : byte | code << 4);
        const double scale = e4m3_to_float(static_cast<uint8_t*>(scales.raw())[row * groups + column / 16]);
        dense.at<float>({row, column}) = static_cast<float>(e2m1_to_float(code) * scale / global);
      }
    if (writer == Writer::dense) {
      tensors.emplace_back(name, dense);
      continue;
    }
    const bool modelopt = writer == Writer::modelopt;
    tensors.emplace_back(linear + (modelopt ? "weight" : "weight_packed"), codes);
    tensors.emplace_back(linear + "weight_scale", scales);
    tensors.emplace_back(linear + (modelopt ? "weight_scale_2" : "weight_global_scale"),
                         modelopt ? number(1 / global).view(Shape{}) : number(global));
    if (rounds_inputs)
      tensors.emplace_back(linear + (modelopt ? "input_scale" : "input_global_scale"),
                           modelopt ? number(1 / of_inputs).view(Shape{}) : number(of_inputs));
  }
  testing::write_safetensors(folder / "model.safetensors", tensors);
  testing::write_file(folder / "config.json", read_text_file(golden / "config.json"));
}

void set_config(const std::filesystem::path& folder, const Json& quantization_config) {
  Json config = load_json(folder / "config.json");
  config["quantization_config"] = quantization_config;
  testing::write_file(folder / "config.json", config.dump());
}

Json weights_alone(Json config) {
  config["quant_algo"] = "W4A16_NVFP4";
  config["config_groups"]["group_0"].erase("input_activations");
  return config;
}

TEST(Task8_2_Modelopt, Nvfp4ComputesWhatItsCodesStandFor) {
  const uint64_t seed = Random().seed();
  SCOPED_TRACE(Random(seed).describe());
  const testing::TemporaryFolder quantized, dense;
  write_nvfp4(quantized.path(), Writer::modelopt, seed, false);
  write_nvfp4(dense.path(), Writer::dense, seed, false);
  set_config(quantized.path(), weights_alone(kNvfp4));
  const Tensor expected = logits_of(dense.path());
  EXPECT_TRUE(testing::close_to(testing::to_double(logits_of(quantized.path())), testing::to_double(expected),
                                expected.dim(1), 1e-4));
}

// Inputs too: what is held against double precision is the product with them (Task8_4_QuantizedMatmul).
TEST(Task8_2_Modelopt, Nvfp4IsWhatCompressedTensorsCallsSo) {
  const uint64_t seed = Random().seed();
  SCOPED_TRACE(Random(seed).describe());
  const testing::TemporaryFolder named, same;
  write_nvfp4(named.path(), Writer::modelopt, seed, true);
  write_nvfp4(same.path(), Writer::compressed_tensors, seed, true);
  set_config(same.path(), {{"quant_method", "compressed-tensors"},
                           {"config_groups", {{"NVFP4", {"Linear"}}}},
                           {"ignore", {"lm_head"}}});
  set_config(named.path(), kNvfp4);
  const Tensor expected = logits_of(same.path());
  EXPECT_TRUE(testing::bitwise_equal(logits_of(named.path()), expected));
  // And it matters that inputs are rounded.
  const testing::TemporaryFolder alone;
  write_nvfp4(alone.path(), Writer::modelopt, seed, false);
  set_config(alone.path(), weights_alone(kNvfp4));
  EXPECT_FALSE(testing::close_to(testing::to_double(logits_of(alone.path())), testing::to_double(expected),
                                 expected.dim(1), 1e-3));
  // An older folder says the same beside config.json.
  const testing::TemporaryFolder old;
  write_nvfp4(old.path(), Writer::modelopt, seed, true);
  testing::write_file(old / "hf_quant_config.json", kOldNvfp4.dump());
  EXPECT_TRUE(testing::bitwise_equal(logits_of(old.path()), expected));
}

TEST(Task8_2_Modelopt, ABrokenFileOfItsIsNamed) {
  const std::filesystem::path golden = testing::source_folder() / "tests/goldens/qwen3_tied";
  const auto refusal = [&](const std::string& text) {
    const testing::TemporaryFolder folder;
    testing::write_file(folder / "config.json", read_text_file(golden / "config.json"));
    testing::write_file(folder / "hf_quant_config.json", text);
    return error_of([&] { load_decoder_spec(folder.path()); });
  };
  for (const char* text : {"", "{", "[]", "7", "{}", R"({"quantization": 1})", R"({"quantization": []})"})
    EXPECT_THAT(refusal(text), HasSubstr("hf_quant_config.json")) << text;
}

// Of a compressed-tensors config too, where the floats of four bits are one group of two.
TEST(Task8_2_Modelopt, ALineSaysThatAGpuOnlyKeepsFloatsOfFourBits) {
  const Device gpu{DeviceType::cuda, 0};
  const Json integers = {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}};
  const Json fours = {{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}};
  const Json mixed = {
      {"quant_method", "compressed-tensors"},
      {"config_groups",
       {{"group_0", {{"targets", {"re:.*up_proj"}}, {"weights", integers}, {"format", "pack-quantized"}}},
        {"group_1",
         {{"targets", {"re:.*down_proj"}}, {"weights", fours}, {"format", "nvfp4-pack-quantized"}}}}}};
  for (const Json& config : {kNvfp4, mixed}) {
    EXPECT_THAT(
        weights_note(config.dump(), gpu),
        AllOf(HasSubstr("floats of 4 bits"), HasSubstr("written out"), ::testing::Not(HasSubstr("\n"))));
    EXPECT_EQ(weights_note(config.dump(), Device{}), "");
  }
  EXPECT_EQ(weights_note(kFp8.dump(), gpu), "");
  EXPECT_EQ(weights_note("", gpu), "");
}

}  // namespace
}  // namespace ladder
