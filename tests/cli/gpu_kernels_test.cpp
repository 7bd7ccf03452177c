// Every kernel that --kernel can force, in a whole engine on a GPU.
#include <gtest/gtest.h>

#include "cli/kernels.h"
#include "step1_layers/core/error.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::equal_or_near_tie;
using testing::same_bits;

// Each kernel forced by itself, graphs and all: it refuses the model in one line, or answers as the engine's
// own choice does.
TEST(Cli_GpuKernels, EveryKernelRefusesOrGivesTheSameAnswers) {
  testing::need_device(DeviceType::cuda);
  if (::testing::Test::IsSkipped()) return;
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cuda, 256);
  options.runner.kv_memory = int64_t{64} << 20;
  options.runner.batch.max_num_batched_tokens = 256;
  options.runner.batch.max_num_seqs = 6;
  options.dtype = DType::bf16;
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    Request& request = requests.emplace_back();
    request.prompt_token_ids.resize(static_cast<size_t>(1 + 37 * i % 150));
    for (size_t t = 0; t < request.prompt_token_ids.size(); ++t)
      request.prompt_token_ids[t] = static_cast<int32_t>((t * t + 977 * static_cast<size_t>(i)) % 3000);
    request.sampling.max_tokens = 12;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = i < 3 ? 0.0 : 0.8;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.logprobs = 8;
    if (i == 4) request.sampling.top_k = 30;
    if (i >= 4) request.sampling.top_p = 0.9;
    if (i == 5) request.sampling.min_p = 0.01;
    if (i == 5) request.sampling.repetition_penalty = 1.2;
  }
  std::vector<std::vector<int32_t>> texts;
  for (const Request& request : requests) texts.push_back(request.prompt_token_ids);
  const double near_tie = testing::type_cost(options, texts).near_tie;
  const auto plain = engine_with(options)->generate(requests);
  int served = 0;
  for (const OperatorInfo& op : operators(options.runner.device))
    for (const KernelInfo& kernel : op.kernels) {
      if (!kernel.runs_here) continue;
      const std::string what = std::string(op.name) + "=" + std::string(kernel.name);
      EngineOptions forced = options;
      forced.runner.kernels[std::string(op.name)] = std::string(kernel.name);
      std::vector<RequestOutput> outputs;
      try {
        outputs = engine_with(forced)->generate(requests);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("--kernel " + what + ": this kernel cannot run"),
                  std::string::npos)
            << error.what();
        continue;
      }
      ++served;
      bool same_logits = true;
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(equal_or_near_tie(plain[i].completions[0], outputs[i].completions[0], near_tie, what));
        same_logits = same_logits && same_bits(plain[i], outputs[i]);
      }
      for (size_t i = 3; i < requests.size(); ++i) {
        ASSERT_EQ(outputs[i].completions[0].token_ids.size(), 12u) << what;
        if (same_logits) {
          EXPECT_EQ(outputs[i].completions[0].token_ids, plain[i].completions[0].token_ids) << what;
        }
      }
    }
  EXPECT_GE(served, 40);
}

}  // namespace
}  // namespace ladder
