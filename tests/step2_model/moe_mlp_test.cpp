// Task 2.7: what is particular to layers with experts; the goldens and random models hold their numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "tests/step2_model/random_model.h"
#include "tests/support/model_session.h"
#include "tests/support/numerics.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ModelSession;
using testing::NamedTensors;
using ::testing::Not;
using testing::Random;
using testing::TemporaryFolder;
using testing::write_file;

class Task2_7_Layer : public ::testing::Test {
 protected:
  // Layer 1 of 2 has experts.
  void SetUp() override {
    write_file(folder_ / "config.json",
               R"({"architectures": ["Qwen2MoeForCausalLM"], "hidden_size": 24, "intermediate_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 50,
      "max_position_embeddings": 64, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 9,
      "shared_expert_intermediate_size": 12, "decoder_sparse_step": 2})");
    spec_ = load_decoder_spec(folder_.path());
    Random random(7);
    tensors_ = testing::random_weights(random, spec_);
  }
  std::unique_ptr<Model> load() {
    testing::write_safetensors(folder_ / "model.safetensors", tensors_);
    return load_model({}, folder_.path(), spec_, {});
  }
  std::unique_ptr<Model> load_dummy(const OpContext& ctx = {}) {
    ModelOptions options;
    options.load_format = LoadFormat::dummy;
    return load_model(ctx, folder_.path(), spec_, options);
  }
  std::string error_of_load() {
    try {
      load();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  TemporaryFolder folder_;
  DecoderSpec spec_;
  NamedTensors tensors_;
};

TEST_F(Task2_7_Layer, AMatrixOfAnExpertThatIsMissingIsNamed) {
  const std::string name = "model.layers.1.mlp.experts.3.up_proj.weight";
  std::erase_if(tensors_, [&](const auto& tensor) { return tensor.first == name; });
  EXPECT_THAT(error_of_load(), AllOf(HasSubstr("1 missing"), HasSubstr(name), Not(HasSubstr("unexpected"))));
}

TEST_F(Task2_7_Layer, ExpertsBeyondTheConfigsAndOfADenseLayerAreNamed) {
  Random random(8);
  for (const char* name :
       {"model.layers.1.mlp.experts.5.up_proj.weight", "model.layers.0.mlp.experts.0.up_proj.weight"}) {
    tensors_.emplace_back(name, random.normal({9, 24}, DType::f32));
    EXPECT_THAT(error_of_load(), HasSubstr(name));
    tensors_.pop_back();
  }
}

TEST_F(Task2_7_Layer, AMatrixOfAnotherShapeIsNamed) {
  Random random(8);
  const std::string name = "model.layers.1.mlp.experts.3.down_proj.weight";
  for (auto& [tensor_name, tensor] : tensors_)
    if (tensor_name == name) tensor = random.normal({9, 24}, DType::f32);
  EXPECT_THAT(error_of_load(), AllOf(HasSubstr(name), HasSubstr("24"), HasSubstr("9")));
}

TEST_F(Task2_7_Layer, RanksThatDoNotDivideAWidthAreRefused) {
  run_ranks(2, [&](int, const ParallelContext& parallel) {
    OpContext ctx;
    ctx.parallel = &parallel;
    try {
      load_dummy(ctx);
      ADD_FAILURE() << "2 ranks took experts of width 9";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("9"));
    }
  });
}

TEST_F(Task2_7_Layer, DummyWeightsMakeAModelThatRuns) {
  const auto model = load_dummy();
  ModelSession session(*model, {});
  const Tensor logits = session.step({{0, {1, 2, 3}}});
  for (const double value : testing::to_double(logits)) ASSERT_TRUE(std::isfinite(value));
}

// What a token gets does not hang on the experts that others chose.
TEST_F(Task2_7_Layer, EveryRowIsThatOfItsTokenAlone) {
  const auto model = load();
  ModelSession together(*model, {});
  std::vector<ModelSession::Chunk> chunks;
  for (int32_t i = 0; i < 40; ++i) chunks.push_back({i, {i}});
  const Tensor logits = together.step(chunks);
  for (int32_t i = 0; i < 40; ++i) {
    ModelSession alone(*model, {});
    EXPECT_TRUE(testing::bitwise_equal(alone.step({{0, {i}}}), logits.narrow(0, i, 1))) << "token " << i;
  }
}

}  // namespace
}  // namespace ladder
