// Task 8.2: tensor parallelism of quantized weights over worker processes: groups, blocks and words that two ranks share, g_idx of
// row-parallel linears. Two answer what one does.
#include <gtest/gtest.h>

#include "step1_layers/core/device.h"
#include "step7_parallel/workers/worker_executor.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "step8_advanced/quantization/quantizer/quantize.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/step8_advanced/quantization/rounds_at_run_time.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

const std::filesystem::path kGoldens = testing::source_folder() / "tests/goldens/quantized";

EngineOptions options_for(const testing::GoldenCheckpoint& golden, DeviceType device, DType dtype) {
  EngineOptions options = testing::small_options(golden.directory, device, golden.max_model_len);
  options.dtype = dtype;
  options.makers.model.linear_method = make_quantized_linear_methods();
  return options;
}

std::vector<RequestOutput> answers(const EngineOptions& options, const testing::GoldenCheckpoint& golden) {
  std::vector<Request> requests = testing::greedy_requests(golden);
  for (Request& request : requests) request.sampling.max_tokens = 8;
  return testing::engine_with(options)->generate(requests);
}

void expect_two_answer_what_one_does(const testing::GoldenCheckpoint& golden, DeviceType device,
                                     DType dtype) {
  const EngineOptions one = options_for(golden, device, dtype);
  std::vector<std::vector<int32_t>> texts;
  for (const testing::GoldenPrompt& prompt : golden.prompts) texts.push_back(prompt.token_ids);
  const double near_tie = testing::type_cost(one, texts).near_tie;
  // Each rank rounds its own features by a scale of their own, so that two differ from one by what rounding costs: then it is two ranks
  // on the CPU, threads, that round alike.
  const bool alike = testing::rounds_at_run_time(golden.directory);
  EngineOptions expected = alike ? options_for(golden, DeviceType::cpu, dtype) : one, two = one;
  if (alike) expected.runner.tensor_parallel_size = 2;
  two.runner.tensor_parallel_size = 2;
  two.makers.executor =
      make_worker_executor({.arguments = {golden.directory.string()}, .program = QUANTIZED_RANKS});
  const auto as_expected = answers(expected, golden), together = answers(two, golden);
  ASSERT_EQ(as_expected.size(), together.size());
  for (size_t i = 0; i < together.size(); ++i)
    EXPECT_TRUE(
        testing::equal_or_near_tie(as_expected[i].completions[0], together[i].completions[0], near_tie,
                                   fmt::format("{} in {}, prompt {}", golden.name, dtype_name(dtype), i)));
}

// A process each starts for seconds: on the CPU some formats, of whose ranks threads test them all (Task8_2_Goldens).
TEST(Task8_2_Ranks, TwoProcessesAnswerWhatOneDoes) {
  for (const char* name : {"gptq_w4_g32_desc_act_asym", "ct_fp8_static"})
    expect_two_answer_what_one_does(testing::load_golden(kGoldens / name), DeviceType::cpu, DType::f32);
}

class Task8_2_GpuRanks : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string reason;
    if (const int gpus = cuda_device_count(&reason); gpus < 2)
      GTEST_SKIP() << "two GPUs are needed and there are " << gpus << ": " << reason;
  }
};

TEST_P(Task8_2_GpuRanks, TwoAnswerWhatOneDoes) {
  const testing::GoldenCheckpoint golden = testing::load_golden(kGoldens / GetParam());
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_two_answer_what_one_does(golden, DeviceType::cuda, dtype);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Task8_2_GpuRanks, ::testing::ValuesIn(testing::golden_names(kGoldens)),
                         [](const auto& info) { return info.param; });

// A share of each expert's width.
TEST_F(Task8_2_GpuRanks, TwoHaveAShareOfEachExpertInCodes) {
  testing::GoldenCheckpoint golden =
      testing::load_golden(testing::source_folder() / "tests/goldens/qwen3_moe_normed");
  const testing::TemporaryFolder folder;
  QuantizeOptions options;
  options.model = golden.directory;
  options.output = folder.path() / "out";
  options.recipe = parse_recipe(
      R"({"stages": [{"method": "rtn", "targets": ["re:.*experts.*"], "scheme": {"weights": {"num_bits": 4, "type": "int", "group_size": 8}}}]})",
      "recipe.json", DType::f32);
  quantize({}, options);
  golden.directory = options.output;
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_two_answer_what_one_does(golden, DeviceType::cuda, dtype);
}

}  // namespace
}  // namespace ladder
