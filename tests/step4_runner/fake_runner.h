#pragma once
// A runner with the model of fake_model.h on the fake device, whose stream remembers what the runner does with it. Where
// it has graphs it is warmed up, and has captured them.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "step4_runner/model_runner.h"
#include "tests/step4_runner/fake_model.h"
#include "tests/support/recording_stream.h"

namespace ladder::testing {

inline RunnerConfig recorded_config(bool graphs = false) {
  RunnerConfig config;
  config.device = {DeviceType::fake, 0};
  config.batch.max_num_seqs = 8;
  config.batch.max_num_batched_tokens = 48;
  config.batch.max_model_len = 128;
  config.batch.block_size = 4;
  config.batch.num_kv_blocks = 300;
  config.cuda_graphs = graphs;
  return config;
}

// For INSTANTIATE_TEST_SUITE_P.
inline auto every_pace() {
  using Pace = RecordingStream::Pace;
  return ::testing::Values(Pace::late, Pace::at_once, Pace::random);
}
inline std::string pace_name(const ::testing::TestParamInfo<RecordingStream::Pace>& info) {
  using Pace = RecordingStream::Pace;
  return info.param == Pace::late ? "late" : info.param == Pace::at_once ? "at_once" : "random";
}

struct RecordedRunner {
  explicit RecordedRunner(const RunnerConfig& config = recorded_config(),
                          RecordingStream::Pace pace = RecordingStream::Pace::late, uint64_t seed = 1)
      : stream(pace, seed) {
    OpContext ctx = stream.context();
    ctx.batch_invariant = true;
    runner =
        std::make_unique<ModelRunner>(ctx, config, std::make_unique<FakeModel>(ctx, fake_spec(), config));
    if (config.cuda_graphs) runner->warm_up();
    stream.clear();
  }

  RecordingStream stream;
  std::unique_ptr<ModelRunner> runner;
};

inline SamplingParams greedy() {
  SamplingParams sampling;
  sampling.temperature = 0.0;
  return sampling;
}

// A step in which these sequences compute a token each, all of them continued; each has `num_computed` tokens.
inline SchedulerOutput decode_step(int64_t number, const std::vector<SequenceId>& ids, int64_t num_computed) {
  SchedulerOutput step;
  step.step = number;
  for (const SequenceId id : ids) {
    step.continued.push_back({id, {}, num_computed});
    step.scheduled.push_back({id, 1, {}});
  }
  step.total_num_tokens = std::ssize(ids);
  return step;
}

// Their first step: a prompt of `length` tokens each, blocks for 64 tokens.
inline SchedulerOutput prompt_step(const std::vector<SequenceId>& ids, int64_t length,
                                   const SamplingParams& sampling = greedy()) {
  SchedulerOutput step;
  for (const SequenceId id : ids) {
    NewSequence sequence;
    sequence.id = id;
    for (int64_t i = 0; i < length; ++i)
      sequence.token_ids.push_back(static_cast<int32_t>((7 * id + 3 * i) % 97));
    sequence.num_prompt_tokens = length;
    sequence.sampling = sampling;
    for (int32_t block = 0; block < 16; ++block)
      sequence.block_table.push_back(static_cast<int32_t>(16 * id) + block);
    step.new_sequences.push_back(std::move(sequence));
    step.scheduled.push_back({id, length, {}});
    step.total_num_tokens += length;
  }
  return step;
}

}  // namespace ladder::testing
