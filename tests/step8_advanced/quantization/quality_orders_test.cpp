// Which format and which method is nearer to the dense model: the orders that hold on the tiny one, whole, each with the margin
// that the chapter's table leaves it. Divergences of a few held-out stories; calibration takes others. The table itself, of all
// stories and all methods, is asked by tests/tools/quantization_table_test.py.
#include <gtest/gtest.h>

#include <map>

#include "step1_layers/attention/kv_codes.h"
#include "tests/step8_advanced/quantization/quantized_tinyworld.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::kW4Channel;
using testing::recipe;

class Task8_5_Orders : public ::testing::Test {
 protected:
  // KL divergence x 1000 of tinyworld, or a folder of the same function, quantized by the recipe. GPTQ wants more stories than the
  // others: with 12 of them it is a fifth further away.
  double divergence(const std::string& recipe, const std::filesystem::path& model = testing::tinyworld(),
                    int64_t calibrated = 12) {
    const std::filesystem::path out = folder_ / std::to_string(count_++);
    QuantizeOptions options = testing::options_of(out, recipe);
    options.model = model;
    if (options.recipe.needs_calibration()) options.texts = {stories_.end() - calibrated, stories_.end()};
    quantize({}, options);
    return 1000 * testing::divergence(*testing::load(out), judged());
  }
  double divergence_of_cache(KvCacheDType kept_as) {
    return 1000 * testing::divergence(*testing::load(testing::tinyworld(), kept_as), judged());
  }
  std::filesystem::path with_outliers(float factor, int features) {
    testing::write_with_outliers(folder_ / "outliers", factor, features);
    return folder_ / "outliers";
  }

 private:
  static constexpr size_t kJudged = 12;
  std::span<const TokenIds> judged() const { return {stories_.data(), kJudged}; }

  testing::TemporaryFolder folder_;
  int count_ = 0;
  std::vector<TokenIds> stories_ = testing::texts("text.jsonl", 100);
};

TEST_F(Task8_5_Orders, FinerIsBelowCoarserAndAZeroPointBelowNone) {
  const auto rtn = [&](const std::string& weights) {
    return divergence(recipe("rtn", R"({"weights": {"num_bits": 4, "type": "int", )" + weights + "}}"));
  };
  const double row = rtn(R"("strategy": "channel")"), of128 = rtn(R"("group_size": 128)"),
               of32 = rtn(R"("group_size": 32)");
  EXPECT_GT(of32, 0);
  EXPECT_LT(of32, 0.8 * of128);
  EXPECT_LT(of128, 0.8 * row);
  EXPECT_LT(rtn(R"("strategy": "channel", "symmetric": false)"), 0.9 * row);
}

TEST_F(Task8_5_Orders, GptqInItsOrderIsBelowNearestAndBelowGptqWithoutOne) {
  const auto gptq = [&](const std::string& order) {
    return divergence(recipe("gptq", kW4Channel, order), testing::tinyworld(), 60);
  };
  const double in_order = gptq("");
  EXPECT_GT(in_order, 0);
  EXPECT_LT(in_order, 0.75 * divergence(recipe("rtn", kW4Channel)));
  EXPECT_LT(in_order, 0.7 * gptq(R"(, "actorder": "none")"));
}

// One scale for all inputs of what a norm feeds, where two features are 64 times as large; o and down, whose outliers are their own,
// have one for each token.
TEST_F(Task8_5_Orders, SmoothQuantIsFarBelowNearestWhereFeaturesHaveOutliers) {
  const std::string to_nearest =
      R"({"method": "rtn", "targets": ["re:.*(q|k|v|gate|up)_proj"], "scheme":
           {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "int", "strategy": "tensor"}}},
         {"method": "rtn", "targets": ["re:.*(o|down)_proj"], "scheme": "W8A8"})";
  const std::filesystem::path model = with_outliers(64, 2);
  const auto with = [&](const std::string& before) {
    return divergence(fmt::format(R"({{"stages": [{}{}]}})", before, to_nearest), model);
  };
  const double smooth = with(R"({"method": "smoothquant"}, )");
  EXPECT_GT(smooth, 0);
  EXPECT_LT(smooth, 0.05 * with(""));
}

// Of the first half of the layers, and with half of the stories, which takes seconds.
TEST_F(Task8_5_Orders, AwqIsFarBelowNearestWhereFeaturesHaveOutliers) {
  const std::filesystem::path model = with_outliers(16, 8);
  const auto with = [&](const std::string& method) {
    return divergence(recipe(method, "\"W4A16_ASYM\"", R"(, "targets": ["re:model.layers.[0-3][.]"])"), model,
                      6);
  };
  const double awq = with("awq");
  EXPECT_GT(awq, 0);
  EXPECT_LT(awq, 0.5 * with("rtn"));
}

TEST_F(Task8_5_Orders, EightBitsCostNextToNothing) {
  for (const char* scheme : {"FP8_DYNAMIC", "FP8_BLOCK"}) {
    const double fp8 = divergence(recipe("rtn", fmt::format("\"{}\"", scheme)));
    EXPECT_GT(fp8, 0) << scheme;
    EXPECT_LT(fp8, 1.5) << scheme;
  }
  const double int8 = divergence_of_cache(KvCacheDType::int8);
  EXPECT_GT(int8, 0);
  EXPECT_LT(int8, 0.1);
  EXPECT_LT(int8, 0.1 * divergence_of_cache(KvCacheDType::int4));
}

}  // namespace
}  // namespace ladder
