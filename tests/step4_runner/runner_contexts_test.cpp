// A runner whose steps run on several streams of a device in turn (step 8, 8.7.border), on the fake one: the next step waits for
// the one before it wherever that ran, and every stream has graphs of its own.
#include <gtest/gtest.h>

#include <array>

#include "step1_layers/attention/paged_attention.h"
#include "tests/step4_runner/ahead_driver.h"
#include "tests/step4_runner/fake_runner.h"

namespace ladder {
namespace {

using ladder::testing::AheadDriver;
using ladder::testing::AheadOptions;
using ladder::testing::DrivenRequest;
using ladder::testing::every_pace;
using ladder::testing::expect_same;
using ladder::testing::fake_spec;
using ladder::testing::FakeModel;
using ladder::testing::pace_name;
using ladder::testing::Random;
using ladder::testing::random_requests;
using ladder::testing::recorded_config;
using ladder::testing::RecordedRunner;
using ladder::testing::RecordingStream;

// Three streams of one device.
struct SpreadRunner {
  std::array<RecordingStream, 3> streams;
  std::unique_ptr<ModelRunner> runner;

  SpreadRunner(const RunnerConfig& config, RecordingStream::Pace pace, StepPhase phase = StepPhase::any)
      : streams{RecordingStream(pace, 1), RecordingStream(pace, 2), RecordingStream(pace, 3)} {
    std::vector<OpContext> contexts;
    for (RecordingStream& stream : streams) {
      contexts.push_back(stream.context());
      contexts.back().batch_invariant = true;
    }
    runner = std::make_unique<ModelRunner>(contexts[0], config,
                                           std::make_unique<FakeModel>(contexts[0], fake_spec(), config));
    runner->serve_phase(phase);
    runner->add_contexts(std::span(contexts).subspan(1));
    if (config.cuda_graphs) runner->warm_up();
  }
};

class Task8_7_RunnerContexts : public ::testing::TestWithParam<RecordingStream::Pace> {};
INSTANTIATE_TEST_SUITE_P(Paces, Task8_7_RunnerContexts, every_pace(), pace_name);

TEST_P(Task8_7_RunnerContexts, StepsThatChangeTheirStreamGiveTheSameTokens) {
  for (const bool graphs : {false, true}) {
    Random random;
    SCOPED_TRACE(random.describe());
    const RunnerConfig config = recorded_config(graphs);
    const std::vector<DrivenRequest> requests = random_requests(random, 12, 97);
    RecordedRunner alone(config);
    Random same(random.seed());
    const auto expected = AheadDriver(*alone.runner, config, same).run(requests, {});

    SpreadRunner spread(config, GetParam());
    AheadOptions options;
    options.on_launched = [&] { spread.runner->select_context(static_cast<size_t>(random.integer(0, 2))); };
    const auto got = AheadDriver(*spread.runner, config, random).run(requests, options);
    for (size_t i = 0; i < expected.size(); ++i) expect_same(got[i], expected[i]);
    for (const RecordingStream& stream : spread.streams) EXPECT_GT(stream.counts().launches, 0);
  }
}

TEST(Task8_7_RunnerContextGraphs, EveryStreamHasThoseOfThePhase) {
  const RunnerConfig config = recorded_config(true);
  const size_t decode = decode_graph_sizes(config.batch.max_num_seqs, config.batch.max_model_len).size(),
               mixed = mixed_graph_sizes(config.batch.max_num_batched_tokens).size();
  for (const auto& [phase, expected] : {std::pair{StepPhase::any, decode + mixed},
                                        {StepPhase::decode, decode},
                                        {StepPhase::prefill, mixed}}) {
    SpreadRunner spread(config, RecordingStream::Pace::late, phase);
    for (const RecordingStream& stream : spread.streams) EXPECT_EQ(stream.graphs().size(), expected);
  }
}

TEST(Task8_7_RunnerContextGraphs, EveryDecodeGraphIsReplayedOnce) {
  RunnerConfig config = recorded_config(true);
  config.batch.max_model_len = kShortDecodeKeys + 100;  // of few sequences there are two graphs
  config.batch.num_kv_blocks = config.batch.max_model_len;
  SpreadRunner spread(config, RecordingStream::Pace::late, StepPhase::decode);
  const auto sizes = decode_graph_sizes(config.batch.max_num_seqs, config.batch.max_model_len);
  ASSERT_GT(sizes.size(), 4u);
  for (RecordingStream& stream : spread.streams) stream.clear();
  spread.runner->replay_graphs();
  for (RecordingStream& stream : spread.streams) {
    EXPECT_EQ(stream.counts().replays, std::ssize(sizes));
    EXPECT_EQ(stream.num_pending(), 0);
  }
}

}  // namespace
}  // namespace ladder
