// Experimental: models whose hidden states are rotated, and four bits on both sides of them.
#include "step8_advanced/quantization/quantizer/rotate_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "step8_advanced/quantization/quantizer/evaluate.h"
#include "step8_advanced/quantization/quantizer/quantize.h"
#include "tests/support/model_session.h"
#include "tests/support/numerics.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

std::filesystem::path golden(const std::string& name) {
  return testing::source_folder() / "tests" / "goldens" / name;
}

std::unique_ptr<Model> load(const std::filesystem::path& folder) {
  ModelOptions options;
  options.dtype = DType::f32;
  options.makers.linear_method = make_quantized_linear_methods();
  return load_model(OpContext{}, folder, load_decoder_spec(folder), options);
}

Tensor logits(const std::filesystem::path& folder) {
  const auto model = load(folder);
  return testing::ModelSession(*model, {}).step({{0, {3, 1, 4, 1, 5, 9, 2, 6}}, {1, {7}}});
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Hidden sizes of 12 * 4 and 20 * 2; tied heads and others; routers and experts, a shared one too.
TEST(Task8_5_Rotation, AnswersStayWhatTheyAre) {
  for (const char* model :
       {"qwen3_tied", "qwen3_untied", "qwen2_bias", "qwen3_moe_normed", "qwen2_moe_shared"}) {
    const TemporaryFolder folder;
    const auto rotated = folder.path() / "rotated";
    write_rotated_model(golden(model), rotated, 7);
    const Tensor expected = logits(golden(model)), found = logits(rotated);
    EXPECT_TRUE(
        testing::close_to(testing::to_double(found), testing::to_double(expected), expected.dim(1), 1e-4))
        << model;
    const auto embedding = [](const std::filesystem::path& of) {
      return Checkpoint(of).find("model.embed_tokens.weight")->tensor().clone();
    };
    EXPECT_FALSE(testing::bitwise_equal(embedding(golden(model)), embedding(rotated))) << model;
  }
}

TEST(Task8_5_Rotation, WhatCannotBeRotatedIsRefused) {
  const TemporaryFolder folder;
  const auto refusal = [&](const char* model) {
    return error_of([&] { write_rotated_model(golden(model), folder.path() / model, 7); });
  };
  EXPECT_THAT(refusal("opt_pre_norm"), HasSubstr("RMSNorm"));
  EXPECT_THAT(refusal("llama_biases"), HasSubstr("bias"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "opt_pre_norm"));
  for (const char* model : {"opt_pre_norm", "llama_biases", "qwen3_odd_sizes"}) {
    QuantizeOptions options;
    options.model = golden(model);
    options.output = folder.path() / "out";
    options.recipe =
        parse_recipe(R"({"stages": [{"method": "rtn", "scheme": "W8A8"}], "rotation": {"kind": "hadamard"}})",
                     "recipe.json", DType::f32);
    EXPECT_THAT(error_of([&] { quantize({}, options); }),
                ::testing::AnyOf(HasSubstr("RMSNorm"), HasSubstr("bias"), HasSubstr("size 60")))
        << model;
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "out.partial")) << model;
  }
}

// Two channels of all norms' outputs that are 64 times as large, as what reads them is smaller: the same function.
void write_with_outliers(const std::filesystem::path& folder) {
  const std::filesystem::path model = golden("qwen3_tied");
  const Checkpoint checkpoint(model);
  testing::NamedTensors tensors;
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    const std::string& name = entry.info->name;
    const Tensor tensor = entry.tensor().to(DType::f32).clone();
    const bool is_norm = name.ends_with("layernorm.weight");
    bool reads_norm = false;
    for (const char* reader :
         {"q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight"})
      reads_norm = reads_norm || name.ends_with(reader);
    for (const int64_t channel : {5, 29}) {
      if (is_norm) tensor.data<float>()[channel] *= 64;
      for (int64_t row = 0; reads_norm && row < tensor.dim(0); ++row) tensor.at<float>({row, channel}) /= 64;
    }
    tensors.emplace_back(name, tensor);
  }
  testing::write_safetensors(folder / "model.safetensors", tensors);
  testing::write_file(folder / "config.json", read_text_file(model / "config.json"));
}

double divergence(const std::filesystem::path& folder, const std::filesystem::path& base) {
  std::vector<TokenIds> texts(4);
  for (size_t text = 0; text < texts.size(); ++text)
    for (int32_t i = 0; i < 60; ++i)
      texts[text].push_back((11 + 37 * static_cast<int32_t>(text) + i * (i + 3)) % 131);
  const auto model = load(folder), dense = load(base);
  const auto clusters = evaluate({}, *model, dense.get(), cut_windows(texts, 2048), {});
  return estimate(clusters, [](const ClusterSums& sums) { return sums.kl; }).mean;
}

TEST(Task8_5_Rotation, ARecipeWithFourBitsOnBothSidesIsNearerRotated) {
  const TemporaryFolder folder;
  const auto with_outliers = folder.path() / "outliers";
  std::filesystem::create_directories(with_outliers);
  write_with_outliers(with_outliers);
  const auto quantized = [&](const std::string& name, const std::string& rotation) {
    QuantizeOptions options;
    options.model = with_outliers;
    options.output = folder.path() / name;
    options.recipe = parse_recipe(fmt::format(R"({{"stages": [{{"method": "rtn", "scheme": {{
            "weights": {{"num_bits": 4, "type": "int", "strategy": "channel"}},
            "input_activations": {{"num_bits": 4, "type": "int", "strategy": "token", "dynamic": true}}}}}}]{}}})",
                                              rotation),
                                  "recipe.json", DType::f32);
    // Somebody's, whatever it is called.
    std::filesystem::create_directory(options.output.string() + ".rotated");
    testing::write_file(options.output.string() + ".rotated/mine", "text");
    quantize({}, options);
    EXPECT_TRUE(std::filesystem::exists(options.output.string() + ".rotated/mine"));
    EXPECT_FALSE(std::filesystem::exists(options.output.string() + ".partial"));
    return divergence(options.output, with_outliers);
  };
  const double plain = quantized("plain", ""),
               rotated = quantized("rotated", R"(, "rotation": {"kind": "hadamard", "seed": 3})");
  EXPECT_GT(rotated, 0);
  EXPECT_LT(rotated, 0.5 * plain) << rotated << " against " << plain;
}

TEST(Task8_5_Rotation, ARecipeSaysItInOneWay) {
  const auto refusal = [](const std::string& rotation) {
    return error_of([&] {
      parse_recipe(R"({"stages": [{"method": "rtn", "scheme": "W4A4"}], "rotation": )" + rotation + "}",
                   "recipe.json", DType::f32);
    });
  };
  EXPECT_EQ(refusal(R"({"kind": "hadamard"})"), "no error");
  EXPECT_THAT(refusal(R"({"kind": "random"})"), HasSubstr("expected hadamard"));
  EXPECT_THAT(refusal(R"({"kind": "hadamard", "size": 3})"), HasSubstr("size"));
  EXPECT_THAT(refusal(R"({"kind": "hadamard", "seed": -1})"), HasSubstr("seed"));
  EXPECT_THAT(refusal("true"), HasSubstr("expected an object"));
}

}  // namespace
}  // namespace ladder
