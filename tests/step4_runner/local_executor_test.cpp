// Task 4.4: the executor of this process: tickets and errors on either device, ranks as threads on the CPU.
#include "step4_runner/local_executor.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "step1_layers/core/error.h"
#include "tests/step4_runner/fake_model.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

using ladder::testing::fake_spec;
using ladder::testing::FakeModel;

RunnerConfig executor_config(DeviceType device, int ranks = 1) {
  RunnerConfig config;
  config.device = {device, 0};
  config.cuda_graphs = false;  // the model waits for the device
  config.batch.max_num_seqs = 4;
  config.batch.max_num_batched_tokens = 16;
  config.batch.block_size = 4;
  config.batch.num_kv_blocks = 64;
  config.tensor_parallel_size = ranks;
  config.threads = ranks;
  return config;
}

ModelFactory fake_models(const RunnerConfig& config, std::function<void(int rank)> on_forward = {}) {
  RunnerConfig resolved = resolve_runner_config(fake_spec(), config);
  return [resolved, on_forward](const OpContext& ctx) {
    auto model = std::make_unique<FakeModel>(ctx, fake_spec(), resolved);
    model->on_forward = on_forward;
    return model;
  };
}

SchedulerOutput first_step(std::vector<int32_t> prompt) {
  SchedulerOutput step;
  NewSequence sequence;
  sequence.id = 3;
  sequence.num_prompt_tokens = static_cast<int64_t>(prompt.size());
  sequence.token_ids = std::move(prompt);
  sequence.block_table = {9, 4};
  sequence.sampling.seed = 11;
  step.scheduled = {{3, sequence.num_prompt_tokens, {}}};
  step.total_num_tokens = sequence.num_prompt_tokens;
  step.new_sequences = {std::move(sequence)};
  return step;
}

SchedulerOutput next_step(int64_t number, int64_t num_computed) {
  SchedulerOutput step;
  step.step = number;
  step.continued = {{3, {}, num_computed}};
  step.scheduled = {{3, 1, {}}};
  step.total_num_tokens = 1;
  return step;
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

class Task4_4_LocalExecutor : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { ladder::testing::need_device(GetParam()); }
  static bool on_cpu() { return GetParam() == DeviceType::cpu; }
};
INSTANTIATE_TEST_SUITE_P(Devices, Task4_4_LocalExecutor, ladder::testing::both_devices(),
                         [](const auto& info) { return ladder::testing::device_word(info.param); });

TEST_P(Task4_4_LocalExecutor, StepsOneAtATimeInOrder) {
  RunnerConfig config = executor_config(GetParam());
  config.async_scheduling = false;
  LocalExecutor executor(fake_spec(), config, fake_models(config));
  EXPECT_EQ(executor.max_in_flight(), 1);
  EXPECT_NE(error_of([&] { executor.collect({1}); }).find("ticket 1"), std::string::npos);
  const Ticket first = executor.submit(first_step({5, 6, 7}));
  EXPECT_NE(error_of([&] { executor.submit(next_step(1, 3)); }).find("in flight"), std::string::npos);
  EXPECT_NE(error_of([&] { executor.collect({first.value + 1}); }).find("ticket"), std::string::npos);
  const StepOutput output = executor.collect(first);
  ASSERT_EQ(output.sequences.size(), 1u);
  EXPECT_EQ(output.sequences[0].id, 3);
  EXPECT_EQ(output.sequences[0].token_ids.size(), 1u);
  EXPECT_NE(error_of([&] { executor.collect(first); }).find("ticket"), std::string::npos);
  const Ticket second = executor.submit(next_step(1, 3));
  EXPECT_EQ(executor.collect(second).step, 1);
}

// Of a GPU's steps one more may be under way, before the tokens of the one before it are known. Penalties need
// them all the same.
TEST_P(Task4_4_LocalExecutor, StepsLaunchedAheadGiveTheTokensOfStepsOneAtATime) {
  auto tokens = [](int64_t ahead, double penalty) {
    const RunnerConfig config = executor_config(GetParam());
    LocalExecutor executor(fake_spec(), config, fake_models(config));
    if (ahead == 0) ahead = executor.max_in_flight();
    EXPECT_EQ(executor.max_in_flight(), on_cpu() ? 1 : 2);
    std::vector<Ticket> tickets;
    std::vector<int32_t> result;
    auto collect = [&] {
      const StepOutput output = executor.collect(tickets.front());
      EXPECT_EQ(output.step, std::ssize(result));
      result.push_back(output.sequences.at(0).token_ids.at(0));
      tickets.erase(tickets.begin());
    };
    for (int64_t number = 0; number < 5; ++number) {
      SchedulerOutput step = number == 0 ? first_step({5, 6, 7}) : next_step(number, 2 + number);
      for (NewSequence& sequence : step.new_sequences) {
        sequence.sampling.temperature = 0.0;
        sequence.sampling.frequency_penalty = penalty;
      }
      if (std::ssize(tickets) == ahead) collect();
      tickets.push_back(executor.submit(step));
    }
    EXPECT_EQ(std::ssize(tickets), ahead);
    while (!tickets.empty()) collect();
    return result;
  };
  for (const double penalty : {0.0, -9.0}) EXPECT_EQ(tokens(0, penalty), tokens(1, penalty)) << penalty;
  EXPECT_EQ(tokens(0, -9.0), std::vector<int32_t>(5, tokens(0, 0.0)[0]));  // whatever came first, again
}

TEST_P(Task4_4_LocalExecutor, TheStepMayChangeAfterItIsSubmitted) {
  const RunnerConfig config = executor_config(GetParam());
  LocalExecutor executor(fake_spec(), config, fake_models(config));
  SchedulerOutput step = first_step({5, 6, 7});
  const Ticket ticket = executor.submit(step);
  step = {};
  EXPECT_EQ(executor.collect(ticket).sequences.size(), 1u);
}

TEST(Task4_4_Ranks, AsThreadsGiveWhatOneRankGives) {
  auto tokens = [](int ranks) {
    const RunnerConfig config = executor_config(DeviceType::cpu, ranks);
    LocalExecutor executor(fake_spec(), config, fake_models(config));
    std::vector<int32_t> result;
    SchedulerOutput step = first_step({5, 6, 7});
    step.new_sequences[0].sampling.logprobs = 2;
    for (int64_t i = 0; i < 5; ++i) {
      const StepOutput output = executor.collect(executor.submit(step));
      result.push_back(output.sequences.at(0).token_ids.at(0));
      EXPECT_EQ(output.sequences.at(0).logprobs.size(), 1u) << "rank 0 has them";
      step = next_step(i + 1, 3 + i);
    }
    return result;
  };
  const std::vector<int32_t> one = tokens(1);
  EXPECT_EQ(tokens(2), one);
  EXPECT_EQ(tokens(4), one);
}

TEST(Task4_4_Ranks, HaveTheMemoryOfOneTogether) {
  for (const int ranks : {1, 2, 4}) {
    const RunnerConfig config = executor_config(DeviceType::cpu, ranks);
    LocalExecutor executor(fake_spec(), config, fake_models(config));
    // 64 blocks of 4 tokens; 2 layers, K and V, 4 heads of 2 floats: 128 bytes a token.
    EXPECT_EQ(executor.memory().kv, 64 * 4 * 128) << ranks;
  }
}

// A rank that throws while the others wait for it in a collective. (A GPU has one rank.)
TEST_P(Task4_4_LocalExecutor, AFailingRankReleasesTheOthersAndCollectThrowsItsError) {
  const int ranks = on_cpu() ? 4 : 1;
  for (int failing = 0; failing < std::min(ranks, 3); ++failing) {
    auto armed = std::make_shared<std::atomic<bool>>(false);
    const RunnerConfig config = executor_config(GetParam(), ranks);
    LocalExecutor executor(fake_spec(), config, fake_models(config, [failing, armed](int rank) {
                             if (*armed && rank == failing) throw std::runtime_error("the lamp went out");
                           }));
    executor.collect(executor.submit(first_step({5, 6, 7})));
    *armed = true;
    const Ticket ticket = executor.submit(next_step(1, 3));
    EXPECT_EQ(error_of([&] { executor.collect(ticket); }), "the lamp went out");
    // And it stays failed, with that error and no consequence of it: the ranks' batches may differ by now.
    *armed = false;
    EXPECT_EQ(error_of([&] { executor.collect(ticket); }), "the lamp went out");
    EXPECT_EQ(error_of([&] { executor.submit(next_step(2, 3)); }), "the lamp went out");
  }
}

TEST_P(Task4_4_LocalExecutor, AnInconsistentStepIsTheErrorOfCollect) {
  const RunnerConfig config = executor_config(GetParam(), on_cpu() ? 2 : 1);
  LocalExecutor executor(fake_spec(), config, fake_models(config));
  const Ticket ticket = executor.submit(next_step(7, 3));
  const std::string error = error_of([&] { executor.collect(ticket); });
  EXPECT_NE(error.find("step 7: sequence 3 is not in the batch"), std::string::npos) << error;
}

TEST_P(Task4_4_LocalExecutor, AModelThatCannotBeLoadedIsTheErrorOfTheConstructor) {
  const int ranks = on_cpu() ? 2 : 1;
  for (int failing = 0; failing < ranks; ++failing) {
    const RunnerConfig config = executor_config(GetParam(), ranks);
    const ModelFactory models = fake_models(config);
    const std::string error = error_of([&] {
      LocalExecutor executor(fake_spec(), config, [&](const OpContext& ctx) -> std::unique_ptr<Model> {
        if (tp_group(ctx).rank() == failing) throw Error("model.safetensors: not there");
        return models(ctx);
      });
    });
    EXPECT_EQ(error, "model.safetensors: not there");
  }
}

TEST_P(Task4_4_LocalExecutor, TellsTheConfigurationThatItSettledOn) {
  RunnerConfig config = executor_config(GetParam());
  config.batch.num_kv_blocks = 0;
  config.kv_memory = 100000;
  LocalExecutor executor(fake_spec(), config, fake_models(config));
  // 2 layers, K and V, 4 heads of 2 floats: 128 bytes a token, 512 a block.
  EXPECT_EQ(executor.config().batch.num_kv_blocks, 100000 / 512);
  EXPECT_EQ(executor.config().batch.max_model_len, 128);
  EXPECT_EQ(executor.memory().kv, 100000 / 512 * 512);
}

}  // namespace
}  // namespace ladder
