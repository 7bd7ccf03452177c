// Task 8.5: recipes that ask for scales of keys and values.
#include "step8_advanced/quantization/quantizer/calibrate_kv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/config/quantization_config.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "step8_advanced/quantization/quantizer/quantize.h"
#include "step8_advanced/quantization/quantizer/text_pass.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

Json recipe_with(const Json& kv_cache_scheme) {
  const Json scheme = {{"weights", {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}}}};
  return {{"stages", Json::array({{{"method", "rtn"}, {"scheme", scheme}}})},
          {"kv_cache_scheme", kv_cache_scheme}};
}
Json cache_scheme(const char* strategy, const char* type = "float") {
  return {{"num_bits", 8}, {"type", type}, {"strategy", strategy}, {"symmetric", true}, {"dynamic", false}};
}

// Two layers of width 48.
QuantizeOptions options_of(const std::filesystem::path& output, const Json& recipe) {
  QuantizeOptions options;
  options.model = testing::source_folder() / "tests" / "goldens" / "qwen3_tied";
  options.output = output;
  options.recipe = parse_recipe(recipe.dump(), "recipe.json", DType::f32);
  options.texts = {{1, 5, 99, 12, 40, 77, 3, 128, 17, 64, 2, 44, 45, 46, 47, 48, 49, 50, 51},
                   {1, 30, 31, 32, 90, 91, 5, 5, 120, 7, 8, 9, 100, 60, 61}};
  return options;
}

// Of layer, keys or values, and head: the largest that the model stores for any of the texts.
double largest_stored(const std::filesystem::path& folder, const std::vector<TokenIds>& texts, size_t layer,
                      bool keys, int64_t head) {
  ModelOptions options;
  options.makers.linear_method = make_quantized_linear_methods();
  const auto model = load_model({}, folder, load_decoder_spec(folder), options);
  TextPass pass(*model, {}, 32);
  double largest = 0;
  for (const TokenIds& text : texts) {
    pass.forward(text, {}, [](const Tensor&) {});
    const KvCacheView& cache = pass.caches()[layer];
    const Tensor& stored = keys ? cache.k : cache.v;
    for (int64_t token = 0; token < std::ssize(text); ++token)
      for (int64_t i = 0; i < stored.dim(3); ++i)
        largest = std::max<double>(largest, std::fabs(stored.select(0, token / stored.dim(1))
                                                          .select(0, token % stored.dim(1))
                                                          .select(0, head)
                                                          .data<float>()[i]));
  }
  return largest;
}

// The model that was written stores what the scales were made for: keys that are normed and rotated, of quantized layers before.
TEST(Task8_5_KvScales, AreTheLargestNumbersThatTheQuantizedModelStores) {
  for (const bool per_head : {false, true}) {
    const TemporaryFolder folder;
    const QuantizeOptions options =
        options_of(folder / "out", recipe_with(cache_scheme(per_head ? "attn_head" : "tensor")));
    quantize({}, options);
    const Checkpoint checkpoint(folder / "out");
    const int64_t heads = load_decoder_spec(folder / "out").num_kv_heads;
    for (size_t layer = 0; layer < 2; ++layer)
      for (const bool keys : {true, false}) {
        const std::string name = fmt::format("model.layers.{}.self_attn.{}_scale", layer, keys ? 'k' : 'v');
        SCOPED_TRACE(name);
        const Checkpoint::Entry* entry = checkpoint.find(name);
        ASSERT_NE(entry, nullptr);
        const Tensor scales = entry->tensor().clone();
        EXPECT_EQ(scales.shape(), per_head ? (Shape{heads, 1, 1}) : Shape{1});
        double all = 0;
        for (int64_t head = 0; head < heads; ++head) {
          const double largest = largest_stored(folder / "out", options.texts, layer, keys, head);
          all = std::max(all, largest);
          const double expected = (per_head ? largest : all) / 448;
          if (per_head || head + 1 == heads) {
            EXPECT_NEAR(scales.data<float>()[per_head ? head : 0], expected, 1e-5 * expected);
          }
        }
      }
    const auto config = QuantizationConfig::parse(load_decoder_spec(folder / "out").quantization_config, "q");
    ASSERT_TRUE(config.kv_cache().has_value());
    EXPECT_EQ(config.kv_cache()->per_head, per_head);
  }
}

TEST(Task8_5_KvScales, OfIntegersAreThoseOfTheirGrid) {
  const TemporaryFolder floats, integers;
  quantize({}, options_of(floats / "out", recipe_with(cache_scheme("tensor"))));
  quantize({}, options_of(integers / "out", recipe_with(cache_scheme("tensor", "int"))));
  const char* name = "model.layers.1.self_attn.v_scale";
  const float of_floats = Checkpoint(floats / "out").find(name)->tensor().clone().data<float>()[0];
  const float of_integers = Checkpoint(integers / "out").find(name)->tensor().clone().data<float>()[0];
  EXPECT_NEAR(of_integers * 127.5, of_floats * 448, 1e-5 * of_floats * 448);
}

// A run that was stopped behind the first layer goes on and writes the same bytes.
TEST(Task8_5_KvScales, AreKeptWhenARunGoesOn) {
  const TemporaryFolder whole, stopped;
  const Json recipe = recipe_with(cache_scheme("tensor"));
  quantize({}, options_of(whole / "out", recipe));
  QuantizeOptions options = options_of(stopped / "out", recipe);
  options.progress = [](int64_t, int64_t) { throw std::runtime_error("stopped"); };
  EXPECT_THROW(quantize({}, options), std::runtime_error);
  options.progress = nullptr;
  EXPECT_EQ(quantize({}, options).resumed_layers, 1);
  EXPECT_EQ(read_text_file(stopped / "out" / "model.safetensors"),
            read_text_file(whole / "out" / "model.safetensors"));
}

TEST(Task8_5_KvScales, ARecipeThatCannotBeIsRefusedByName) {
  const auto refusal = [](const Json& recipe) -> std::string {
    try {
      parse_recipe(recipe.dump(), "recipe.json", DType::bf16);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(refusal(recipe_with(cache_scheme("tensor"))), "no error");
  const auto with = [&](const char* key, const Json& value) {
    Json scheme = cache_scheme("tensor");
    scheme[key] = value;
    return refusal(recipe_with(scheme));
  };
  const std::string where = "recipe.json: kv_cache_scheme";
  EXPECT_THAT(with("dynamic", true), AllOf(HasSubstr(where), HasSubstr("dynamic")));
  EXPECT_THAT(with("num_bits", 4), AllOf(HasSubstr(where), HasSubstr("num_bits")));
  EXPECT_THAT(with("symmetric", false), HasSubstr(where));
  EXPECT_THAT(with("strategy", "channel"), HasSubstr(where));
  EXPECT_THAT(with("scale", 2), AllOf(HasSubstr(where), HasSubstr("scale")));
  EXPECT_THAT(refusal(recipe_with("fp8")), HasSubstr(where));
  Json recipe = recipe_with(cache_scheme("tensor"));
  recipe["stages"] = Json::array({{{"method", "magnitude"}}});
  EXPECT_THAT(refusal(recipe), AllOf(HasSubstr(where), HasSubstr("no stage rounds")));
  EXPECT_TRUE(parse_recipe(recipe_with(cache_scheme("tensor")).dump(), "recipe.json", DType::bf16)
                  .needs_calibration());
}

TEST(Task8_5_KvScales, NumbersThatAreNotFiniteAreRefusedByName) {
  KvCacheView cache;
  cache.k = Tensor::zeros({1, 4, 2, 3}, DType::f32);
  cache.v = Tensor::zeros({1, 4, 2, 3}, DType::f32);
  cache.v.data<float>()[2 * 6 + 3] = NAN;  // the third token's second head
  const StoredKvCache scheme{.args = {.is_float = true}};
  KvMaxima before, all;
  before.add(cache, 2);
  EXPECT_EQ(before.scales("a", scheme, DType::bf16).size(), 2u);
  all.add(cache, 4);
  try {
    all.scales("a", scheme, DType::bf16);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("a.v_scale"), HasSubstr("head 1")));
  }
}

}  // namespace
}  // namespace ladder
