// Task 4.4: the runner, on either device. A request must get the same logits, bit for bit, however the steps
// are cut.
#include "step4_runner/model_runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/step4_runner/fake_model.h"
#include "tests/step4_runner/step_driver.h"
#include "tests/support/devices.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

using ladder::testing::DrivenRequest;
using ladder::testing::DriveOptions;
using ladder::testing::expect_same;
using ladder::testing::fake_logits;
using ladder::testing::fake_spec;
using ladder::testing::FakeModel;
using ladder::testing::Random;
using ladder::testing::random_requests;
using ladder::testing::StepDriver;
using ladder::testing::ways_to_drive;

class OnADevice : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { ladder::testing::need_device(GetParam()); }

  static OpContext context() {
    OpContext ctx = GetParam() == DeviceType::cpu ? OpContext{} : *ladder::testing::cuda_context();
    ctx.batch_invariant = true;
    return ctx;
  }
  static RunnerConfig test_config() {
    RunnerConfig config;
    config.device = {GetParam(), 0};
    config.batch.max_num_seqs = 8;
    config.batch.max_num_batched_tokens = 48;
    config.batch.max_model_len = 128;
    config.batch.block_size = 4;
    config.batch.num_kv_blocks = 300;
    config.cuda_graphs = false;  // the model waits for the device
    return config;
  }

  struct FakeRunner {
    explicit FakeRunner(const RunnerConfig& config = test_config(), const DecoderSpec& spec = fake_spec()) {
      auto fake = std::make_unique<FakeModel>(context(), spec, config);
      model = fake.get();
      runner = std::make_unique<ModelRunner>(context(), config, std::move(fake));
    }
    FakeModel* model = nullptr;
    std::unique_ptr<ModelRunner> runner;
  };
};
class Task4_2_WarmUp : public OnADevice {};
class Task4_3_PromptLogprobs : public OnADevice {};
class Task4_4_ModelRunner : public OnADevice {};
INSTANTIATE_TEST_SUITE_P(Devices, Task4_2_WarmUp, ladder::testing::both_devices(),
                         [](const auto& info) { return ladder::testing::device_word(info.param); });
INSTANTIATE_TEST_SUITE_P(Devices, Task4_3_PromptLogprobs, ladder::testing::both_devices(),
                         [](const auto& info) { return ladder::testing::device_word(info.param); });
INSTANTIATE_TEST_SUITE_P(Devices, Task4_4_ModelRunner, ladder::testing::both_devices(),
                         [](const auto& info) { return ladder::testing::device_word(info.param); });

std::vector<DrivenRequest> without_prompt_logprobs(std::vector<DrivenRequest> requests) {
  for (DrivenRequest& request : requests) request.sampling.prompt_logprobs.reset();
  return requests;
}

TEST_P(Task4_4_ModelRunner, LogitsFollowFromTheTokensAlone) {
  Random random;
  SCOPED_TRACE(random.describe());
  FakeRunner fake;
  StepDriver driver(*fake.runner, test_config(), random, context());
  for (int round = 0; round < 3; ++round) {
    const auto requests = without_prompt_logprobs(random_requests(random, 12, 97));
    for (const DriveOptions& options : ways_to_drive()) {
      const auto results = driver.run(requests, options);
      for (size_t i = 0; i < requests.size(); ++i) {
        std::vector<int32_t> tokens = requests[i].prompt;
        ASSERT_EQ(static_cast<int64_t>(results[i].token_ids.size()), *requests[i].sampling.max_tokens);
        for (size_t t = 0; t < results[i].token_ids.size(); ++t) {
          ASSERT_EQ(results[i].logits[t], fake_logits(tokens, 97)) << "request " << i << " token " << t;
          tokens.push_back(results[i].token_ids[t]);
        }
      }
    }
  }
  EXPECT_GT(driver.num_shared_blocks(), 0);
  EXPECT_GT(driver.num_preemptions(), 0);
}

TEST_P(Task4_4_ModelRunner, ARequestGivesTheSameAloneAndHoweverTheStepsAreCut) {
  Random random;
  SCOPED_TRACE(random.describe());
  FakeRunner fake;
  StepDriver driver(*fake.runner, test_config(), random, context());
  const auto requests = without_prompt_logprobs(random_requests(random, 16, 97));
  const auto alone = driver.run(requests, DriveOptions{});
  for (const DriveOptions& options : ways_to_drive()) {
    const auto results = driver.run(requests, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(alone[i], results[i]);
    }
  }
}

// What a request finds in the cache it does not compute, so its prompt has log probabilities only without sharing: the
// scheduler bypasses prefix hits for such requests.
TEST_P(Task4_3_PromptLogprobs, AreTheSameAloneAndHoweverTheStepsAreCut) {
  Random random;
  SCOPED_TRACE(random.describe());
  FakeRunner fake;
  StepDriver driver(*fake.runner, test_config(), random, context());
  const auto requests = random_requests(random, 16, 97);
  const auto alone = driver.run(requests, DriveOptions{});
  for (const DriveOptions& options : ways_to_drive()) {
    if (options.share_prefixes) continue;
    const auto results = driver.run(requests, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(alone[i], results[i]);
    }
  }
}

TEST_P(Task4_3_PromptLogprobs, AreThoseOfEveryNextPromptTokenInBoundedChunks) {
  Random random;
  SCOPED_TRACE(random.describe());
  RunnerConfig config = test_config();
  config.batch.max_num_batched_tokens = 3 * ModelRunner::kLogitsRows;
  config.batch.max_model_len = 3 * ModelRunner::kLogitsRows;
  FakeRunner fake(config);
  StepDriver driver(*fake.runner, config, random, context());
  auto requests = random_requests(random, 2, 97, 3 * ModelRunner::kLogitsRows - 30);
  for (DrivenRequest& request : requests) request.sampling.prompt_logprobs = 3;
  while (requests[0].prompt.size() < 2 * ModelRunner::kLogitsRows + 5)
    requests[0].prompt.push_back(static_cast<int32_t>(random.integer(0, 96)));
  requests[1].prompt.resize(1);  // a prompt of one token has nothing before it and nothing to tell
  fake.model->max_logits_rows_seen = 0;
  const auto results = driver.run(requests, DriveOptions{});
  EXPECT_LE(fake.model->max_logits_rows_seen, ModelRunner::kLogitsRows);
  ASSERT_EQ(results[0].prompt_logprobs.size(), requests[0].prompt.size() - 1);
  EXPECT_TRUE(results[1].prompt_logprobs.empty());
  for (size_t p = 0; p + 1 < requests[0].prompt.size(); ++p) {
    const auto logits = fake_logits(std::span(requests[0].prompt).first(p + 1), 97);
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x));
    const PositionLogprobs& got = results[0].prompt_logprobs[p];
    EXPECT_EQ(got.chosen.token_id, requests[0].prompt[p + 1]);
    EXPECT_NEAR(got.chosen.logprob, logits[static_cast<size_t>(got.chosen.token_id)] - std::log(sum), 1e-5);
    ASSERT_EQ(got.top.size(), 3u);
    const auto best = std::max_element(logits.begin(), logits.end());
    EXPECT_EQ(got.top[0].token_id, best - logits.begin());
    EXPECT_NEAR(got.top[0].logprob, *best - std::log(sum), 1e-5);
  }
}

TEST_P(Task4_2_WarmUp, TheLargestStepFitsTheFrozenArena) {
  Random random;
  SCOPED_TRACE(random.describe());
  FakeRunner fake;
  fake.runner->warm_up();
  const int64_t measured = fake.runner->memory().activations;
  EXPECT_GT(measured, 0);
  EXPECT_EQ(fake.model->max_rows_seen, test_config().batch.max_num_batched_tokens);
  StepDriver driver(*fake.runner, test_config(), random, context());
  auto requests = random_requests(random, 30, 97, 100);
  for (DrivenRequest& request : requests) {
    request.sampling.logprobs = request.sampling.prompt_logprobs = kMaxLogprobs;
    request.sampling.temperature = 1.0;
    request.sampling.top_k = 40;
    request.sampling.top_p = 0.9;
    request.sampling.min_p = 0.001;
    request.sampling.frequency_penalty = 1.0;
    request.sampling.logprob_token_ids.assign(kMaxLogprobTokenIds, 5);
    request.sampling.allowed_token_ids = {1, static_cast<int32_t>(2 + random.integer(0, 90))};
    for (int32_t id = 0; id < 97; ++id) request.sampling.logit_bias[id] = 1.0;
  }
  DriveOptions full;
  full.max_running = test_config().batch.max_num_seqs;
  driver.run(requests, full);  // would throw
  EXPECT_EQ(fake.runner->memory().activations, measured);
}

// The lists that penalties need grow with the tokens a sequence has used, not with the rows of a step.
TEST_P(Task4_2_WarmUp, CountsThePenaltiesOfLongSequences) {
  RunnerConfig config = test_config();
  config.batch.max_num_seqs = config.batch.max_num_batched_tokens = 64;
  config.batch.max_model_len = 2000;
  FakeRunner fake(config, fake_spec(2000));
  fake.runner->warm_up();
  SchedulerOutput step;
  for (SequenceId id = 0; id < 64; ++id) {
    NewSequence sequence;
    sequence.id = id;
    sequence.token_ids.resize(2000);
    std::iota(sequence.token_ids.begin(), sequence.token_ids.end(), 0);  // every token of the vocabulary
    sequence.num_prompt_tokens = 2000;
    sequence.num_computed_tokens = 1999;
    sequence.block_table.assign(500, static_cast<int32_t>(id));
    sequence.sampling.repetition_penalty = 1.2;
    sequence.sampling.logprobs = kMaxLogprobs;
    sequence.sampling.seed = 1;
    step.new_sequences.push_back(std::move(sequence));
    step.scheduled.push_back({id, 1, {}});
    ++step.total_num_tokens;
  }
  EXPECT_EQ(fake.runner->execute(step).sequences.size(), 64u);  // a frozen arena that is too small throws
}

TEST_P(Task4_2_WarmUp, LeavesTheCacheAndTheBatchAsTheyWere) {
  FakeRunner fake;
  fake.runner->warm_up();
  EXPECT_EQ(fake.runner->batch().num_known_sequences(), 0);
  // A first step whose sequence reads block 0, where the warm-up's sequences stood.
  SchedulerOutput step;
  NewSequence sequence;
  sequence.id = 0;
  sequence.token_ids = {1, 2};
  sequence.num_prompt_tokens = 2;
  sequence.num_computed_tokens = 1;  // "cached": slot 0 still holds zeros
  sequence.block_table = {0};
  sequence.sampling.temperature = 0;
  step.new_sequences = {sequence};
  step.scheduled = {{0, 1, {}}};
  step.total_num_tokens = 1;
  ModelRunner::Step launching = fake.runner->prepare(step);
  fake.runner->run(launching);
  const Tensor logits = launching.logits.to(Device{});
  EXPECT_EQ(logits.at<float>({0, 5}), fake_logits(std::vector<int32_t>{0, 2}, 97)[5]);
}

TEST_P(Task4_4_ModelRunner, TimesItsPhases) {
  FakeRunner fake;
  SchedulerOutput step;
  NewSequence sequence;
  sequence.id = 0;
  sequence.token_ids = {1, 2};
  sequence.num_prompt_tokens = 2;
  sequence.block_table = {3};
  step.new_sequences = {sequence};
  step.scheduled = {{0, 2, {}}};
  step.total_num_tokens = 2;
  const StepOutput output = fake.runner->execute(step);
  EXPECT_GT(output.prepare_seconds, 0);
  EXPECT_GT(output.forward_seconds, 0);
  if (GetParam() == DeviceType::cpu)
    EXPECT_GT(output.sample_seconds, 0);
  else
    EXPECT_EQ(output.sample_seconds, 0);  // counted with the forward pass
  EXPECT_NEAR(output.execute_seconds, output.prepare_seconds + output.forward_seconds + output.sample_seconds,
              1e-9);
}

}  // namespace
}  // namespace ladder
