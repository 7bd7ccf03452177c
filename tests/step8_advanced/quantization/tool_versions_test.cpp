// Task 8.2: what older and newer versions of the tools write than those that made the golden checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/json.h"
#include "step2_model/model.h"
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

std::filesystem::path golden(const std::string& name) {
  return testing::source_folder() / "tests/goldens/quantized" / name;
}

Json config_of(const std::string& name) {
  return load_json(golden(name) / "config.json").at("quantization_config");
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

std::optional<StoredLinear> of(const Json& json) {
  const std::string name = "model.layers.0.mlp.up_proj";
  return QuantizationConfig::parse(json.dump(), "q").linear({&name, 1});
}

Tensor logits_of(const std::filesystem::path& folder) {
  ModelOptions options;
  options.makers.linear_method = make_quantized_linear_methods();
  const auto model = load_model({}, folder, load_decoder_spec(folder), options);
  return testing::ModelSession(*model, {}).step({{0, {3, 1, 4, 1, 5, 9, 2, 6}}}).clone();
}

// The golden checkpoint again, with `more` tensors, and what its quantization_config says in a file of that name beside config.json.
void write_again(const std::filesystem::path& folder, const std::string& name,
                 const testing::NamedTensors& more, const std::string& beside = {},
                 const Json& quantization = {}) {
  testing::NamedTensors tensors;
  const Checkpoint checkpoint(golden(name));
  for (const Checkpoint::Entry& entry : checkpoint.entries())
    tensors.emplace_back(entry.info->name, entry.tensor().clone());
  tensors.insert(tensors.end(), more.begin(), more.end());
  testing::write_safetensors(folder / "model.safetensors", tensors);
  Json config = load_json(golden(name) / "config.json");
  if (!beside.empty()) {
    config.erase("quantization_config");
    testing::write_file(folder / beside, quantization.dump());
  }
  testing::write_file(folder / "config.json", config.dump());
}

// compressed-tensors 0.20 writes moe_sparsity_config, transformers 5 modules_to_convert and its like.
TEST(Task8_2_ToolVersions, AKeyThatIsNullIsAbsent) {
  for (const char* name : {"ct_w4a16_g32_sym", "gptq_w4_g128_sym", "awq_g32", "fp8_block"}) {
    Json json = config_of(name);
    const auto expected = of(json);
    ASSERT_TRUE(expected.has_value());
    json["of_the_next_version"] = nullptr;
    EXPECT_EQ(of(json), expected) << name;
    json["of_the_next_version"] = false;
    EXPECT_THAT(error_of([&] { of(json); }), HasSubstr("of_the_next_version")) << name;
  }
  Json sparse = config_of("ct_w4a16_g32_sym");
  sparse["moe_sparsity_config"] = {{"some", 1}};
  EXPECT_THAT(error_of([&] { of(sparse); }), HasSubstr("moe_sparsity_config"));
}

// As transformers 5.17 saves a model in fp8 blocks.
TEST(Task8_2_ToolVersions, Fp8OfTransformers) {
  Json json = config_of("fp8_block");
  const auto expected = of(json);
  json["modules_to_convert"] = nullptr;
  json["dequantize"] = false;
  json["scale_fmt"] = "float";
  EXPECT_EQ(of(json), expected);
  json["dequantize"] = true;
  EXPECT_THAT(error_of([&] { of(json); }), HasSubstr("dequantize"));
  json["dequantize"] = false;
  json["modules_to_convert"] = {"mlp"};
  EXPECT_THAT(error_of([&] { of(json); }), HasSubstr("modules_to_convert"));
}

// transformers 5 saves GPTQ's keys with an AWQ model, whatever the file holds.
TEST(Task8_2_ToolVersions, AwqOfTransformers) {
  const Json json = {{"quant_method", "awq"},
                     {"bits", 4},
                     {"group_size", 32},
                     {"zero_point", true},
                     {"version", "gemm"},
                     {"format", "gemm"},
                     {"backend", "auto"},
                     {"modules_to_not_convert", nullptr},
                     {"sym", true},
                     {"desc_act", false},
                     {"damp_percent", 0.1},
                     {"act_group_aware", true},
                     {"true_sequential", true},
                     {"cache_block_outputs", true},
                     {"batch_size", 1},
                     {"tokenizer", nullptr},
                     {"modules_in_block_to_quantize", nullptr}};
  const auto linear = of(json);
  ASSERT_TRUE(linear.has_value());
  EXPECT_FALSE(linear->scheme.weights.symmetric) << "the file has zero points";
  Json some = json;
  some["modules_in_block_to_quantize"] = {{"self_attn.q_proj"}};
  EXPECT_THAT(error_of([&] { of(some); }), HasSubstr("modules_in_block_to_quantize"));
}

// AutoRound's own keys beside those of the form it writes, and GPTQModel 4's hyb_act.
TEST(Task8_2_ToolVersions, HowTheCodesWereFoundIsNotAsked) {
  for (const char* name : {"gptq_w4_g128_sym", "awq_g32"}) {
    Json json = config_of(name);
    const auto expected = of(json);
    json["provider"] = "auto-round";
    json["autoround_version"] = "0.4.1";
    json["data_type"] = "int";
    json["iters"] = 200;
    json["lr"] = 0.005;
    json["amp"] = true;
    json["enable_quanted_input"] = true;
    json["act_bits"] = 16;
    json["act_dynamic"] = true;
    json["super_bits"] = nullptr;
    json["model_free"] = true;
    json["dataset"] = "NeelNanda/pile-10k";
    json["quant_block_list"] = {{"model.layers.0", "model.layers.1"}};
    json["hyb_act"] = false;
    EXPECT_EQ(of(json), expected) << name;
    Json other = json;
    other["act_bits"] = 8;
    EXPECT_THAT(error_of([&] { of(other); }), AllOf(HasSubstr("act_bits"), HasSubstr("8"))) << name;
    other = json;
    other["data_type"] = "mx_fp";
    EXPECT_THAT(error_of([&] { of(other); }), HasSubstr("mx_fp")) << name;
    other = json;
    other["super_bits"] = 6;
    EXPECT_THAT(error_of([&] { of(other); }), HasSubstr("super_bits")) << name;
  }
}

// Before transformers read them, AutoGPTQ and AutoAWQ wrote files of their own, without the method's name.
TEST(Task8_2_ToolVersions, AConfigInAFileOfItsOwn) {
  const testing::TemporaryFolder gptq, awq, named, broken;
  Json old = config_of("gptq_w4_g128_sym");
  for (const char* key : {"quant_method", "method", "checkpoint_format", "format", "meta"}) old.erase(key);
  write_again(gptq.path(), "gptq_w4_g128_sym", {}, "quantize_config.json", old);
  EXPECT_TRUE(testing::bitwise_equal(logits_of(gptq.path()), logits_of(golden("gptq_w4_g128_sym"))));
  testing::write_file(gptq.path() / "quantize_config.json", R"({"dynamic":{"z":{},"a":{}},"bits":4})");
  EXPECT_EQ(load_decoder_spec(gptq.path()).quantization_config,
            R"({"dynamic":{"z":{},"a":{}},"bits":4,"quant_method":"gptq"})")
      << "rules in their order";
  write_again(awq.path(), "awq_g32", {}, "quant_config.json",
              {{"zero_point", true}, {"q_group_size", 32}, {"w_bit", 4}, {"version", "GEMM"}});
  EXPECT_TRUE(testing::bitwise_equal(logits_of(awq.path()), logits_of(golden("awq_g32"))));
  // GPTQModel, whose file names the method, has the same file for either.
  write_again(named.path(), "awq_g32", {}, "quantize_config.json", config_of("awq_g32"));
  EXPECT_TRUE(testing::bitwise_equal(logits_of(named.path()), logits_of(golden("awq_g32"))));
  // config.json goes before it.
  write_again(broken.path(), "gptq_w4_g128_sym", {});
  testing::write_file(broken.path() / "quantize_config.json", "[]");
  EXPECT_EQ(error_of([&] { load_decoder_spec(broken.path()); }), "no error");
  write_again(broken.path(), "gptq_w4_g128_sym", {}, "quantize_config.json", Json::array());
  EXPECT_THAT(error_of([&] { load_decoder_spec(broken.path()); }), HasSubstr("quantize_config.json"));
}

// AutoGPTQ's linears have a bias where the model's have none, as in Qwen2.5's and many Llamas' files.
TEST(Task8_2_ToolVersions, BiasesOfZerosOfGptq) {
  const auto biases = [](float last, const std::string& linear) {
    testing::NamedTensors tensors;
    for (int layer = 0; layer < 2; ++layer) {
      const Tensor bias = Tensor::zeros({128}, DType::f32);
      bias.data<float>()[127] = last;
      tensors.emplace_back(fmt::format("model.layers.{}.{}.bias", layer, linear), bias);
    }
    return tensors;
  };
  const testing::TemporaryFolder zeros, numbers, dense;
  write_again(zeros.path(), "gptq_w4_g128_sym", biases(-0.0f, "mlp.down_proj"));
  EXPECT_TRUE(testing::bitwise_equal(logits_of(zeros.path()), logits_of(golden("gptq_w4_g128_sym"))));
  // Passed over, it would change the answer.
  write_again(numbers.path(), "gptq_w4_g128_sym", biases(1, "mlp.down_proj"));
  EXPECT_THAT(error_of([&] { logits_of(numbers.path()); }),
              AllOf(HasSubstr("unexpected"), HasSubstr("model.layers.0.mlp.down_proj.bias")));
  // Of a linear that nobody knows.
  write_again(dense.path(), "gptq_w4_g128_sym", biases(0, "mlp.side_proj"));
  EXPECT_THAT(error_of([&] { logits_of(dense.path()); }), HasSubstr("side_proj"));
}

}  // namespace
}  // namespace ladder
