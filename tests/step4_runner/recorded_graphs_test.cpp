// Task 4.6: captured steps on the fake device: what a graph froze, which steps are replayed, and that a replay gives what
// launches one by one give.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "step1_layers/core/error.h"
#include "tests/step4_runner/ahead_driver.h"
#include "tests/step4_runner/fake_runner.h"

namespace ladder {
namespace {

using ladder::testing::AheadDriver;
using ladder::testing::AheadOptions;
using ladder::testing::decode_step;
using ladder::testing::DrivenRequest;
using ladder::testing::expect_same;
using ladder::testing::FakeModel;
using ladder::testing::greedy;
using ladder::testing::prompt_step;
using ladder::testing::Random;
using ladder::testing::random_requests;
using ladder::testing::recorded_config;
using ladder::testing::RecordedRunner;
using ladder::testing::RecordingStream;
using Pace = RecordingStream::Pace;

// The numbers that "forward" was captured with, graph after graph.
std::vector<std::vector<int64_t>> captured_forwards(const RecordingStream& stream) {
  std::vector<std::vector<int64_t>> arguments;
  for (const auto& graph : stream.graphs()) {
    if (graph.empty() || graph.front().name != "forward")
      ADD_FAILURE() << "a graph does not begin with the model";
    else
      arguments.push_back(graph.front().arguments);
  }
  return arguments;
}

TEST(Task4_6_StepGraphs, AreCapturedOncePerSizeTheLargestFirst) {
  const RunnerConfig config = recorded_config(true);
  RecordedRunner recorded(config);
  const auto decode = decode_graph_sizes(config.batch.max_num_seqs, config.batch.max_model_len);
  const auto mixed = mixed_graph_sizes(config.batch.max_num_batched_tokens);
  const auto forwards = captured_forwards(recorded.stream);
  ASSERT_EQ(forwards.size(), decode.size() + mixed.size());
  std::vector<int64_t> decode_rows, mixed_rows;
  for (size_t i = 0; i < forwards.size(); ++i) {
    const std::vector<int64_t>& forward = forwards[i];
    const bool has_logits = recorded.stream.graphs()[i].size() == 2;
    (has_logits ? decode_rows : mixed_rows).push_back(forward[FakeModel::kRows]);
    if (!has_logits) continue;
    EXPECT_EQ(recorded.stream.graphs()[i][1].name, "logits");
    EXPECT_EQ(recorded.stream.graphs()[i][1].arguments.at(0), forward[FakeModel::kRows]);
  }
  const auto descending = [](const std::vector<GraphSize>& sizes) {
    std::vector<int64_t> rows;
    for (const GraphSize& size : sizes) rows.insert(rows.begin(), size.rows);
    return rows;
  };
  EXPECT_EQ(decode_rows, descending(decode));
  EXPECT_EQ(mixed_rows, descending(mixed));
}

// A replica that runs along with others (7.9) has a step of nothing else, as large as theirs.
TEST(Task4_6_StepGraphs, AStepOfSpareRowsAloneIsReplayedFromTheGraphOfThatSize) {
  RecordedRunner recorded(recorded_config(true));
  ModelRunner& runner = *recorded.runner;
  runner.execute(prompt_step({1, 2}, 5));
  const auto graph_of = [&](SchedulerOutput step, int64_t rows) {
    step.num_static_padding_rows = rows - step.total_num_tokens;
    ModelRunner::Step launching = runner.prepare(step);
    runner.run(launching);
    const int64_t of_graph = launching.graph == nullptr ? 0 : launching.graph->size.rows;
    runner.sample(launching);
    EXPECT_EQ(launching.launched->collect().sequences.size(), step.scheduled.size());
    return of_graph;
  };
  EXPECT_EQ(graph_of({}, 4), 4);
  EXPECT_EQ(graph_of(decode_step(1, {1, 2}, 5), 4), 4) << "two sequences, and two spare rows";
  EXPECT_EQ(graph_of({}, 8), 8);
  EXPECT_EQ(graph_of(prompt_step({3}, 5), 8), 8);
  EXPECT_EQ(graph_of({}, 16), 16) << "beyond those of decodes a graph of any rows";
}

// Everything that a kernel got at capture is what it gets in every replay: numbers must be bounds of all steps of the
// size, addresses those of buffers that never move.
TEST(Task4_6_StepGraphs, FreezeBoundsAndAddressesThatStay) {
  const RunnerConfig config = recorded_config(true);
  RecordedRunner recorded(config);
  const int64_t max_seqs = config.batch.max_num_seqs;
  std::set<std::vector<int64_t>> addresses;
  for (const auto& forward : captured_forwards(recorded.stream)) {
    const int64_t rows = forward[FakeModel::kRows];
    const bool decode =
        forward[FakeModel::kMaxQueryLen] == 1 && forward[FakeModel::kMaxSeqLen] < kMaxMixedKeys;
    SCOPED_TRACE(rows);
    EXPECT_EQ(forward[FakeModel::kNumTokens], rows);
    EXPECT_EQ(forward[FakeModel::kNumSeqs], decode ? rows : std::min(rows, max_seqs));
    EXPECT_EQ(forward[FakeModel::kMaxQueryLen], decode ? 1 : rows);
    EXPECT_EQ(forward[FakeModel::kMaxSeqLen], decode ? config.batch.max_model_len : kMaxMixedKeys);
    addresses.insert({forward.begin() + FakeModel::kFirstAddress, forward.end()});
  }
  EXPECT_EQ(addresses.size(), 1u) << "one set of buffers for all sizes";
  // None of them is the batch's own, which the next step overwrites while this one may still run.
  const Batch& batch = recorded.runner->batch();
  const auto address = [](const void* at) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(at)); };
  recorded.runner->execute(prompt_step({1, 2}, 5));
  for (const Tensor& tensor :
       {batch.input_ids(), batch.positions(), batch.attention().slot_mapping,
        batch.attention().query_start_loc, batch.attention().seq_lens, batch.attention().block_tables})
    EXPECT_EQ(std::count(addresses.begin()->begin(), addresses.begin()->end(), address(tensor.raw())), 0);
}

TEST(Task4_6_StepGraphs, ASizeRunsOnceBeforeItIsCaptured) {
  RecordingStream stream;
  OpContext ctx = stream.context();
  Arena arena(ctx.device);
  ctx.arena = &arena;
  std::vector<std::pair<int64_t, bool>> calls;  // rows, and whether all before it was done
  StepGraphs graphs;
  graphs.capture(ctx, {{1, 64}, {2, 64}, {4, 64}}, [&](GraphSize size) {
    calls.push_back({size.rows, stream.num_pending() == 0});
    stream.launch({"step", 0, [] {}}, {size.rows});
    return ctx.arena->take({size.rows, 1000}, DType::f32);
  });
  const std::vector<std::pair<int64_t, bool>> expected{{4, true}, {4, true}, {2, true},
                                                       {2, true}, {1, true}, {1, true}};
  EXPECT_EQ(calls, expected);
  EXPECT_EQ(stream.counts().launches, 3) << "those of a capture are not done";
  EXPECT_EQ(stream.graphs().size(), 3u);
  EXPECT_EQ(arena.used_bytes(), 0);
  const StepGraphs::Graph* four = graphs.find({3, 10});
  ASSERT_NE(four, nullptr);
  EXPECT_EQ(four->size, (GraphSize{4, 64}));
  EXPECT_GE(four->arena_bytes, 16000);
  EXPECT_EQ(four->output.shape(), (Shape{4, 1000}));
  EXPECT_EQ(graphs.find({1, 1})->output.raw(), four->output.raw()) << "they share the arena";
  EXPECT_EQ(graphs.find({5, 1}), nullptr);
  EXPECT_EQ(graphs.find({1, 65}), nullptr);
}

TEST(Task4_6_StepGraphs, ADecodeStepIsOneReplayAndItsSampling) {
  RecordedRunner recorded(recorded_config(true));
  const std::vector<SequenceId> ids{1, 2, 3};
  std::shared_ptr<const LaunchedStep> before = recorded.runner->launch(prompt_step(ids, 5));
  for (int64_t number = 1; number < 8; ++number) {
    recorded.stream.clear();
    const auto step = recorded.runner->launch(decode_step(number, ids, 4 + number));
    const RecordingStream::Counts counts = recorded.stream.counts();
    EXPECT_EQ(counts.replays, 1);
    EXPECT_EQ(counts.launches, 2) << "unpack_inputs and argmax";
    EXPECT_EQ(counts.copies_from_host, 1);
    EXPECT_EQ(counts.copies_to_host, 1);
    EXPECT_EQ(counts.waits, 0);
    before->collect();
    before = step;
  }
}

class Task4_6_Replays : public ::testing::TestWithParam<Pace> {};
INSTANTIATE_TEST_SUITE_P(Paces, Task4_6_Replays, testing::every_pace(), testing::pace_name);

TEST_P(Task4_6_Replays, GiveWhatLaunchesOneByOneGive) {
  Random random;
  SCOPED_TRACE(random.describe());
  RecordedRunner eager(recorded_config(false)), graphs(recorded_config(true), GetParam(), random.engine()());
  AheadDriver eager_driver(*eager.runner, recorded_config(), random);
  AheadDriver driver(*graphs.runner, recorded_config(), random);
  auto requests = random_requests(random, 24, 97);
  for (DrivenRequest& request : requests) {
    request.sampling.prompt_logprobs.reset();
    request.sampling.repetition_penalty = 1.0;
  }
  requests[2].sampling.prompt_logprobs = 2;
  AheadOptions one_by_one;
  one_by_one.ahead = 1;
  const auto expected = eager_driver.run(requests, one_by_one);
  EXPECT_EQ(eager.stream.counts().replays, 0);
  int64_t steps = 0;
  AheadOptions few, chunks;
  few.max_running = 3;
  few.join_probability = 0.4;
  chunks.max_chunk = 6;
  chunks.join_probability = 0.6;
  chunks.skip_probability = 0.2;
  for (AheadOptions options : {AheadOptions{}, few, chunks}) {
    options.on_launched = [&] { ++steps; };
    const auto results = driver.run(requests, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(expected[i], results[i]);
    }
  }
  EXPECT_GT(graphs.stream.counts().replays, steps / 2);
}

// Which graph a step takes, by what it may need of it.
class Task4_6_Choice : public ::testing::Test {
 protected:
  // Rows of the graph that a step is replayed from, 0: none; negative: a mixed one.
  int64_t chosen(const SchedulerOutput& scheduled) {
    ModelRunner::Step step = recorded.runner->prepare(scheduled);
    const int64_t rows = step.graph == nullptr ? 0 : step.graph->size.rows;
    EXPECT_TRUE(step.graph != nullptr || !step.graph_has_logits);
    const bool decode = step.graph_has_logits;
    recorded.runner->run(step);
    recorded.runner->sample(step);
    step.launched->collect();
    return decode ? rows : -rows;
  }
  RecordedRunner recorded{recorded_config(true)};
};

TEST_F(Task4_6_Choice, DecodesTakeTheSmallestWithRoom) {
  EXPECT_EQ(chosen(prompt_step({1, 2, 3, 4, 5}, 3)), -15);
  EXPECT_EQ(chosen(decode_step(1, {1}, 3)), 1);
  EXPECT_EQ(chosen(decode_step(2, {2, 3}, 3)), 2);
  SchedulerOutput three = decode_step(3, {2, 3, 4}, 4);
  three.continued[2].num_computed_tokens = 3;
  EXPECT_EQ(chosen(three), 4);
  SchedulerOutput five = decode_step(4, {1, 2, 3, 4, 5}, 4);
  five.continued[1].num_computed_tokens = five.continued[2].num_computed_tokens = 5;
  five.continued[4].num_computed_tokens = 3;
  EXPECT_EQ(chosen(five), 8);
}

TEST_F(Task4_6_Choice, OneTokenOfALongerPromptIsNoDecode) {
  SchedulerOutput step = prompt_step({1}, 5);
  step.scheduled[0].num_tokens = step.total_num_tokens = 1;  // yields none
  EXPECT_EQ(chosen(step), 0);
}

TEST_F(Task4_6_Choice, WhoWantsLogProbabilitiesOfItsPromptHasNoDecode) {
  SamplingParams scored = greedy();
  scored.prompt_logprobs = 1;
  SchedulerOutput step = prompt_step({1}, 2, scored);
  step.scheduled[0].num_tokens = step.total_num_tokens = 1;
  EXPECT_EQ(chosen(step), 0);
  EXPECT_EQ(chosen(decode_step(1, {1}, 1)), 1) << "the last token of the prompt is as good as a decode";
}

TEST_F(Task4_6_Choice, PromptsTakeAMixedGraphOfTheirRowClass) {
  const auto sizes = mixed_graph_sizes(recorded_config().batch.max_num_batched_tokens);
  for (const int64_t rows : {2, 5, 17, 30, 48}) {
    SchedulerOutput step = prompt_step({1}, rows);
    step.finished = rows == 2 ? std::vector<SequenceId>{} : std::vector<SequenceId>{1};
    const size_t at = find_graph_size(sizes, {rows, rows});
    EXPECT_EQ(chosen(step), -sizes[at].rows) << rows;
  }
}

TEST(Task4_6_Without, GraphsNothingIsCapturedOrReplayed) {
  RecordedRunner recorded(recorded_config(false));
  recorded.runner->execute(prompt_step({1}, 5));
  recorded.runner->execute(decode_step(1, {1}, 5));
  EXPECT_TRUE(recorded.stream.graphs().empty());
  EXPECT_EQ(recorded.stream.counts().replays, 0);
  EXPECT_THROW(recorded.runner->replay_last_step(1), Error);
}

TEST(Task4_6_ReplayOfTheLastStep, IsItsGraphAndItsDrawWithoutCopies) {
  RecordedRunner recorded(recorded_config(true));
  recorded.runner->execute(prompt_step({1}, 5));
  EXPECT_THROW(recorded.runner->replay_last_step(3), Error) << "a prompt's graph has no logits";
  recorded.runner->execute(decode_step(1, {1}, 5));
  recorded.stream.clear();
  recorded.runner->replay_last_step(3);
  EXPECT_EQ(recorded.stream.counts().replays, 3);
  EXPECT_EQ(recorded.stream.counts().launches, 3);
  EXPECT_EQ(recorded.stream.counts().copies_from_host, 0);
}

}  // namespace
}  // namespace ladder
