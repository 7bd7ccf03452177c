// Quantized checkpoints in a whole engine on a GPU, graphs and asynchronous steps on: what it answers is what the engine
// on the CPU answers.
#include <gtest/gtest.h>

#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

class Task8_2_GpuEngine : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { testing::need_device(DeviceType::cuda); }
};

std::vector<RequestOutput> answers(const testing::GoldenCheckpoint& golden, Device device, DType dtype) {
  EngineOptions options = testing::small_options(golden.directory, device.type, golden.max_model_len);
  options.dtype = dtype;
  options.makers.model.linear_method = make_quantized_linear_methods();
  std::vector<Request> requests = testing::greedy_requests(golden);
  for (Request& request : requests) request.sampling.max_tokens = 8;
  return testing::engine_with(options)->generate(requests);
}

// In bf16 both devices round at every step, in different places: a nearly tied pair may be a twentieth apart.
TEST_P(Task8_2_GpuEngine, AnswersWhatTheCpuAnswers) {
  const auto golden = testing::load_golden(testing::source_folder() / "tests/goldens/quantized" / GetParam());
  for (const auto& [dtype, near_tie] : {std::pair(DType::f32, 1e-3), std::pair(DType::bf16, 0.05)}) {
    const auto expected = answers(golden, {}, dtype);
    const auto outputs = answers(golden, {DeviceType::cuda, 0}, dtype);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(
          testing::equal_or_near_tie(expected[i].completions[0], outputs[i].completions[0], near_tie,
                                     fmt::format("{} in {}, prompt {}", GetParam(), dtype_name(dtype), i)));
  }
}

std::vector<std::string> served_names() {
  std::vector<std::string> names =
      testing::golden_names(testing::source_folder() / "tests/goldens/quantized");
  std::erase(names, "ct_w8a16_with_head");  // refused by name
  return names;
}
INSTANTIATE_TEST_SUITE_P(Checkpoints, Task8_2_GpuEngine, ::testing::ValuesIn(served_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ladder
