// Task 8.5.sequential: layers of small models, with and without experts, gone through a second time by hand.
#include "step8_advanced/quantization/quantizer/quantize_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "step2_model/checkpoint/checkpoint.h"
#include "step8_advanced/quantization/algorithms/hessian.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using testing::Random;

struct Problem {
  std::filesystem::path folder;
  DecoderSpec spec;
  Recipe recipe;
  std::vector<CheckpointLinear> linears;  // of layer 0
  std::vector<TokenIds> texts;
  std::vector<Tensor> hidden;
  int64_t longest = 0;

  Problem(Random& random, const std::string& model, const std::string& scheme, int64_t num_texts,
          int64_t tokens)
      : folder(testing::source_folder() / "tests" / "goldens" / model), spec(load_decoder_spec(folder)) {
    recipe = parse_recipe(fmt::format(R"({{"stages": [{{"method": "rtn", "scheme": {}}}]}})", scheme),
                          "recipe.json", DType::f32);
    linears = find_linears(Checkpoint(folder), spec);
    assign_stages(recipe, linears);
    std::erase_if(linears, [](const CheckpointLinear& linear) { return linear.layer != 0; });
    for (int64_t i = 0; i < num_texts; ++i) {
      TokenIds text(static_cast<size_t>(random.integer(1, tokens)));
      for (int32_t& id : text) id = static_cast<int32_t>(random.integer(0, spec.vocab_size - 1));
      longest = std::max<int64_t>(longest, std::ssize(text));
      texts.push_back(text);
    }
    hidden.resize(texts.size());
  }
  WatchedLayer layer() const { return WatchedLayer({}, folder, spec, 0, longest); }
};

std::map<std::string, const FinishedLinear*> by_name(const FinishedLayer& finished) {
  std::map<std::string, const FinishedLinear*> all;
  for (const FinishedLinear& one : finished.linears) all[one.report.name] = &one;
  return all;
}

void expect_equal(const Tensor& a, const Tensor& b, const std::string& what) {
  EXPECT_TRUE(testing::bitwise_equal(a, b)) << what;
}

// Step after step: what the report says is the error on the inputs that the quantized linears before it give, over all texts.
void expect_errors_of_quantized_inputs(const Problem& problem, const FinishedLayer& finished) {
  const auto found = by_name(finished);
  WatchedLayer layer = problem.layer();
  for (const WatchedStep& step : layer.steps()) {
    std::vector<std::optional<Hessian>> inputs(step.size());
    for (size_t i = 0; i < step.size(); ++i)
      step[i]->on_input = [&one = inputs[i], k = step[i]->k()](const Tensor& x) {
        if (!one) one.emplace(k, "inputs");
        one->add(x);
      };
    for (size_t text = 0; text < problem.texts.size(); ++text)
      layer.watch(problem.texts[text], problem.hidden[text]);
    for (size_t i = 0; i < step.size(); ++i) {
      step[i]->on_input = nullptr;
      for (WatchedPart& part : step[i]->parts) {
        const auto one = found.find(part.name);
        if (one == found.end()) continue;
        const FinishedLinear& linear = *one->second;
        EXPECT_EQ(linear.report.unreached, !inputs[i]) << part.name;
        if (inputs[i]) {
          const double error = layer_error(part.weight, linear.values(), inputs[i]->matrix());
          EXPECT_NEAR(linear.report.error, error, 1e-6 * error) << part.name;
        }
        part.weight.copy_from(linear.values());
        step[i]->activations = problem.recipe.stages[0].linear->scheme.input_activations;
        step[i]->input_scale = linear.linear.input_scale;
      }
    }
  }
}

const std::vector<std::string> kModels = {"qwen3_tied", "llama_biases", "qwen2_bias", "qwen3_moe_normed",
                                          "mixtral_top2"};

TEST(Hidden8_5_Sequential, EachLinearMeetsTheInputsOfTheQuantizedOnes) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const std::string& model : kModels) {
    SCOPED_TRACE(model);
    const auto scheme = random.one_of<std::string>(
        {R"({"weights": {"num_bits": 2, "type": "int", "strategy": "channel"}})",
         R"({"weights": {"num_bits": 3, "type": "int", "strategy": "channel", "symmetric": false}})"});
    const Problem problem(random, model, scheme, random.integer(2, 4), 30);
    WatchedLayer layer = problem.layer();
    const FinishedLayer finished =
        quantize_layer(layer, problem.recipe, problem.linears, problem.texts, problem.hidden);
    ASSERT_EQ(finished.linears.size(),
              static_cast<size_t>(std::ranges::count_if(
                  problem.linears, [](const CheckpointLinear& linear) { return !linear.is_router; })));
    expect_errors_of_quantized_inputs(problem, finished);
    // It is left as the codes have it.
    const auto found = by_name(finished);
    for (const auto& linear : layer.linears())
      for (const WatchedPart& part : linear->parts)
        expect_equal(part.weight, found.at(part.name)->values(), part.name);
  }
}

TEST(Hidden8_5_Sequential, StaticScalesAreFoundOnTheWayAndRestored) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const std::string& model : kModels) {
    SCOPED_TRACE(model);
    // Of one short text: most experts see no token, and take the scale that their neighbours need.
    const Problem problem(random, model, "\"FP8\"", random.integer(1, 2), 4);
    WatchedLayer layer = problem.layer();
    const FinishedLayer finished =
        quantize_layer(layer, problem.recipe, problem.linears, problem.texts, problem.hidden);
    expect_errors_of_quantized_inputs(problem, finished);
    for (const auto& linear : layer.linears()) {
      ASSERT_TRUE(linear->activations.has_value()) << linear->name;
      EXPECT_GT(linear->input_scale, 0) << linear->name;
    }
    WatchedLayer restored = problem.layer();
    restore_layer(restored, problem.recipe, problem.linears, finished);
    for (size_t text = 0; text < problem.texts.size(); ++text)
      expect_equal(restored.run(problem.texts[text], problem.hidden[text]),
                   layer.run(problem.texts[text], problem.hidden[text]), "what the layer gives");
    for (const auto& linear : layer.linears()) linear->activations.reset();
    EXPECT_FALSE(testing::bitwise_equal(layer.run(problem.texts[0], problem.hidden[0]),
                                        restored.run(problem.texts[0], problem.hidden[0])));
  }
}

}  // namespace
}  // namespace ladder
