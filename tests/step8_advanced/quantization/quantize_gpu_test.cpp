// Task 8.5: a model quantized, and judged, with its texts going through it on a GPU: as on the CPU, but for the order of sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "step8_advanced/quantization/quantizer/evaluate.h"
#include "step8_advanced/quantization/quantizer/quantize.h"
#include "tests/support/devices.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::cuda_context;

const std::filesystem::path kGoldens = testing::source_folder() / "tests/goldens";

std::vector<TokenIds> some_texts() {
  std::vector<TokenIds> texts(4);
  for (size_t text = 0; text < texts.size(); ++text)
    for (int32_t i = 0; i < 40; ++i)
      texts[text].push_back((7 + 31 * static_cast<int32_t>(text) + i * (i + 5)) % 128);
  return texts;
}

QuantizeOptions options_of(const std::filesystem::path& model, const std::filesystem::path& output,
                           const std::string& recipe) {
  QuantizeOptions options;
  options.model = model;
  options.output = output;
  options.recipe = parse_recipe(recipe, "recipe.json", load_decoder_spec(model).checkpoint_dtype);
  options.texts = some_texts();
  return options;
}

std::vector<ClusterSums> judged(const OpContext& ctx, const std::filesystem::path& folder,
                                const std::filesystem::path& base, DType dtype) {
  ModelOptions options;
  options.dtype = dtype;
  options.makers.linear_method = make_quantized_linear_methods();
  const auto model = load_model(ctx, folder, load_decoder_spec(folder), options);
  const auto of_base = load_model(ctx, base, load_decoder_spec(base), options);
  return evaluate(ctx, *model, of_base.get(), cut_windows(some_texts(), 64), {});
}

double mean_kl(const std::vector<ClusterSums>& clusters) {
  return estimate(clusters, [](const ClusterSums& sums) { return sums.kl; }).mean;
}

constexpr const char* kWeights = R"({"weights": {"num_bits": 4, "type": "int", "group_size": 8}})";
constexpr const char* kBoth = R"({"weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                                  "input_activations": {"num_bits": 8, "type": "int", "strategy": "tensor"}})";

std::vector<std::string> recipes() {
  return {fmt::format(R"({{"stages": [{{"method": "gptq", "scheme": {}}}]}})", kWeights),
          fmt::format(R"({{"stages": [{{"method": "awq", "scheme": {}}}]}})", kWeights),
          fmt::format(R"({{"stages": [{{"method": "smoothquant"}}, {{"method": "rtn", "scheme": {}}}],
                       "kv_cache_scheme": {{"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true,
                                            "dynamic": false}}}})",
                      kBoth),
          R"({"stages": [{"method": "sparsegpt"}]})"};
}

TEST(Task8_5_QuantizeOnAGpu, FindsWhatTheCpuFinds) {
  if (cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  for (const char* name : {"qwen3_untied", "qwen3_tied"})
    for (const std::string& recipe : recipes()) {
      SCOPED_TRACE(fmt::format("{}, {}", name, recipe));
      const testing::TemporaryFolder folder;
      const std::filesystem::path model = kGoldens / name;
      const QuantizeReport on_cpu = quantize({}, options_of(model, folder / "cpu", recipe));
      const QuantizeReport on_gpu = quantize(*cuda_context(), options_of(model, folder / "gpu", recipe));
      ASSERT_EQ(on_gpu.linears.size(), on_cpu.linears.size());
      for (size_t i = 0; i < on_cpu.linears.size(); ++i) {
        EXPECT_EQ(on_gpu.linears[i].name, on_cpu.linears[i].name);
        EXPECT_EQ(on_gpu.linears[i].calibrated, on_cpu.linears[i].calibrated);
        EXPECT_NEAR(on_gpu.linears[i].error, on_cpu.linears[i].error, 0.05 * on_cpu.linears[i].error + 1e-6)
            << on_cpu.linears[i].name;
      }
      const Checkpoint a(folder / "cpu"), b(folder / "gpu");
      ASSERT_EQ(a.entries().size(), b.entries().size());
      for (const Checkpoint::Entry& entry : a.entries()) {
        const Checkpoint::Entry* other = b.find(entry.info->name);
        ASSERT_NE(other, nullptr) << entry.info->name;
        EXPECT_EQ(other->tensor().shape(), entry.tensor().shape());
        if (!entry.info->name.ends_with(".k_scale") && !entry.info->name.ends_with(".v_scale")) continue;
        const double of_cpu = static_cast<double>(entry.tensor().to(DType::f32).data<float>()[0]);
        EXPECT_NEAR(static_cast<double>(other->tensor().to(DType::f32).data<float>()[0]), of_cpu,
                    0.02 * of_cpu);
      }
      // Each by the CPU, and the CPU's by both.
      const double kl = mean_kl(judged({}, folder / "cpu", model, DType::f32));
      EXPECT_GT(kl, 0);
      EXPECT_NEAR(mean_kl(judged({}, folder / "gpu", model, DType::f32)), kl, 0.2 * kl);
      EXPECT_NEAR(mean_kl(judged(*cuda_context(), folder / "cpu", model, DType::f32)), kl, 0.02 * kl);
    }
}

TEST(Task8_5_QuantizeOnAGpu, ExpertsAreRefused) {
  if (cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  const testing::TemporaryFolder folder;
  try {
    quantize(*cuda_context(), options_of(kGoldens / "qwen3_moe_normed", folder / "out", recipes()[0]));
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("expected --device cpu"));
  }
}

}  // namespace
}  // namespace ladder
