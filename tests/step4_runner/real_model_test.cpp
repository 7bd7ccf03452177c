// Tasks 4.2 and 4.4 on small real checkpoints, on both devices: the promise that a request does not feel its
// neighbours, the logits and tokens of transformers, tensor parallelism, and the memory plan against what was
// measured.
#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "step1_layers/core/error.h"
#include "step4_runner/kv_cache_size.h"
#include "step4_runner/local_executor.h"
#include "step4_runner/model_runner.h"
#include "tests/step4_runner/step_driver.h"
#include "tests/support/devices.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/model_devices.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using ladder::testing::close_to;
using ladder::testing::DrivenRequest;
using ladder::testing::DriveOptions;
using ladder::testing::golden_names;
using ladder::testing::GoldenCheckpoint;
using ladder::testing::load_golden;
using ladder::testing::Random;
using ladder::testing::StepDriver;

std::filesystem::path goldens() {
  return testing::source_folder() / "tests" / "goldens";
}

RunnerConfig small_config(const DecoderSpec& spec, int64_t max_model_len, DeviceType device) {
  RunnerConfig config;
  config.device = {device, 0};
  config.batch.max_num_seqs = 7;
  config.batch.max_num_batched_tokens = 256;
  config.batch.max_model_len = max_model_len;
  config.batch.block_size = 4;
  config.batch.num_kv_blocks = 700;
  config.threads = 2;
  return resolve_runner_config(spec, config);
}

std::unique_ptr<ModelRunner> load_runner(const OpContext& ctx, const std::filesystem::path& directory,
                                         const DecoderSpec& spec, const RunnerConfig& config) {
  ModelOptions options;
  options.dtype = config.dtype;
  options.max_model_len = config.batch.max_model_len;
  auto runner = std::make_unique<ModelRunner>(ctx, config, load_model(ctx, directory, spec, options));
  runner->warm_up();
  return runner;
}

class Task4_4_RealModel : public ::testing::TestWithParam<std::tuple<std::string, DeviceType>> {
 protected:
  void SetUp() override { ladder::testing::need_device(std::get<1>(GetParam())); }
};

TEST_P(Task4_4_RealModel, LogitsAreBitwiseTheSameHoweverTheStepsAreCutAndAreThoseOfTransformers) {
  Random random;
  SCOPED_TRACE(random.describe());
  const auto& [name, device] = GetParam();
  const GoldenCheckpoint golden = load_golden(goldens() / name);
  const DecoderSpec spec = load_decoder_spec(golden.directory);
  const RunnerConfig config = small_config(spec, golden.max_model_len, device);
  OpContext ctx = device == DeviceType::cpu ? OpContext{} : *ladder::testing::cuda_context();
  ctx.batch_invariant = true;
  auto runner = load_runner(ctx, golden.directory, spec, config);
  StepDriver driver(*runner, config, random, ctx);

  std::vector<DrivenRequest> requests;
  for (const auto& prompt : golden.prompts) {
    DrivenRequest& request = requests.emplace_back();
    request.prompt = prompt.token_ids;
    request.sampling.temperature = 0.0;
    request.sampling.max_tokens = static_cast<int64_t>(prompt.greedy_token_ids.size());
    request.sampling.prompt_logprobs = 2;
  }
  const auto alone = driver.run(requests, DriveOptions{});
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(alone[i].token_ids, golden.prompts[i].greedy_token_ids) << "prompt " << i;
    // The first output token's logits are those of the prompt's last position.
    ASSERT_EQ(golden.prompts[i].logit_positions.back(), std::ssize(requests[i].prompt) - 1);
    const std::vector<double> logits(alone[i].logits[0].begin(), alone[i].logits[0].end());
    EXPECT_TRUE(close_to(logits, golden.prompts[i].logits.back(), spec.vocab_size, 1e-4)) << "prompt " << i;
  }

  DriveOptions together, chunks, anything;
  together.max_running = 7;
  chunks.max_running = 4;
  chunks.max_chunk = 5;
  anything = {7, 19, true, 0.2, 0.03, true, true, 3};
  for (const DriveOptions& options : {together, chunks, anything, anything}) {
    auto asked = requests;
    if (options.share_prefixes)
      for (DrivenRequest& request : asked) request.sampling.prompt_logprobs.reset();
    const auto results = driver.run(asked, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(results[i].token_ids, alone[i].token_ids) << "prompt " << i;
      for (size_t t = 0; t < results[i].logits.size(); ++t)
        ASSERT_EQ(std::memcmp(results[i].logits[t].data(), alone[i].logits[t].data(),
                              results[i].logits[t].size() * sizeof(float)),
                  0)
            << "prompt " << i << ", logits of output token " << t;
      if (options.share_prefixes) continue;
      ASSERT_EQ(results[i].prompt_logprobs.size(), requests[i].prompt.size() - 1);
      for (size_t p = 0; p < results[i].prompt_logprobs.size(); ++p)
        ASSERT_EQ(results[i].prompt_logprobs[p].chosen.logprob, alone[i].prompt_logprobs[p].chosen.logprob);
    }
  }
}

// The oracle ran in f32; checkpoints stored narrower are read up to f32 here as well.
INSTANTIATE_TEST_SUITE_P(Goldens, Task4_4_RealModel,
                         ::testing::Combine(::testing::ValuesIn(golden_names(goldens())),
                                            ladder::testing::both_devices()),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  ladder::testing::device_word(std::get<1>(info.param));
                         });

// All of a prompt's greedy tokens, on N ranks.
std::vector<std::vector<int32_t>> greedy(const GoldenCheckpoint& golden, RunnerConfig config, int ranks,
                                         MemoryPlan* measured = nullptr, MemoryPlan* predicted = nullptr) {
  const DecoderSpec spec = load_decoder_spec(golden.directory);
  config.tensor_parallel_size = ranks;
  ExecutorOptions options;
  options.model = golden.directory;
  options.spec = spec;
  options.config = config;
  auto executor = make_local_executor(options);
  if (measured) *measured = executor->memory();
  if (predicted) *predicted = predict_memory(spec, executor->config());
  std::vector<std::vector<int32_t>> tokens(golden.prompts.size());
  std::vector<int64_t> computed(golden.prompts.size());
  for (int64_t number = 0; number < static_cast<int64_t>(golden.prompts[0].greedy_token_ids.size());
       ++number) {
    SchedulerOutput step;
    step.step = number;
    for (size_t i = 0; i < golden.prompts.size(); ++i) {
      const auto& prompt = golden.prompts[i].token_ids;
      const auto id = static_cast<SequenceId>(i);
      if (number == 0) {
        NewSequence sequence;
        sequence.id = id;
        sequence.token_ids = prompt;
        sequence.num_prompt_tokens = static_cast<int64_t>(prompt.size());
        sequence.sampling.temperature = 0;
        for (int32_t block = 0; block < 23; ++block)
          sequence.block_table.push_back(static_cast<int32_t>(i) + 7 * block);
        step.new_sequences.push_back(sequence);
      } else {
        step.continued.push_back({id, {}, computed[i]});
      }
      const int64_t count = number == 0 ? static_cast<int64_t>(prompt.size()) : 1;
      step.scheduled.push_back({id, count, {}});
      step.total_num_tokens += count;
      computed[i] += count;
    }
    const StepOutput output = executor->collect(executor->submit(step));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i].push_back(output.sequences[i].token_ids.at(0));
  }
  return tokens;
}

RunnerConfig parallel_config() {
  RunnerConfig config;
  config.batch.max_num_seqs = 7;
  config.batch.max_num_batched_tokens = 128;
  config.batch.block_size = 4;
  config.batch.num_kv_blocks = 200;
  config.batch.max_model_len = 90;
  config.threads = 2;
  return config;
}

// The goldens keep their two best logits 1e-3 apart at every step, so that ranks which sum in another order
// must still agree in the token.
TEST(Task4_4_TensorParallel, TwoAndFourRanksGiveTheTokensOfTransformers) {
  for (const char* name : {"qwen3_untied", "qwen3_tied", "llama_mha_defaults", "qwen3_sharded"}) {
    const GoldenCheckpoint golden = load_golden(goldens() / name);
    for (int ranks : {1, 2, 4}) {
      MemoryPlan measured, predicted;
      const auto tokens = greedy(golden, parallel_config(), ranks, &measured, &predicted);
      for (size_t i = 0; i < tokens.size(); ++i)
        EXPECT_EQ(tokens[i], golden.prompts[i].greedy_token_ids)
            << name << ", " << ranks << " ranks, prompt " << i;
      EXPECT_EQ(measured.weights, predicted.weights) << name << ", " << ranks << " ranks";
      EXPECT_EQ(measured.kv, predicted.kv) << name << ", " << ranks << " ranks";
      EXPECT_NEAR(static_cast<double>(measured.activations), static_cast<double>(predicted.activations),
                  0.2 * static_cast<double>(measured.activations))
          << name << ", " << ranks << " ranks";
      measured.other = predicted.other = 0;  // what the process has besides, which is not measured here
      EXPECT_NEAR(static_cast<double>(measured.total()), static_cast<double>(predicted.total()),
                  0.1 * static_cast<double>(measured.total()))
          << name << ", " << ranks << " ranks";
    }
  }
}

TEST(Task4_4_TensorParallel, RanksThatDoNotFitAreOneClearError) {
  const GoldenCheckpoint golden = load_golden(goldens() / "qwen3_untied");
  try {
    greedy(golden, parallel_config(), 3);
    FAIL() << "3 ranks divide 4 heads";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--tensor-parallel-size 3"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ladder
