// Task 4.5.inputs: steps in flight, on the fake device: what the host waits for, what travels, and that a step laid out before
// the tokens of the one before it are known gives what steps one after the other give.
#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "tests/step4_runner/ahead_driver.h"
#include "tests/step4_runner/fake_runner.h"

namespace ladder {
namespace {

using ladder::testing::AheadDriver;
using ladder::testing::AheadOptions;
using ladder::testing::decode_step;
using ladder::testing::DrivenRequest;
using ladder::testing::DrivenResult;
using ladder::testing::DriveOptions;
using ladder::testing::expect_same;
using ladder::testing::fake_spec;
using ladder::testing::FakeModel;
using ladder::testing::greedy;
using ladder::testing::prompt_step;
using ladder::testing::Random;
using ladder::testing::random_requests;
using ladder::testing::recorded_config;
using ladder::testing::RecordedRunner;
using ladder::testing::RecordingStream;
using ladder::testing::StepDriver;
using ladder::testing::ways_to_drive;
using Pace = RecordingStream::Pace;

// What the CPU gives, one request after the other.
std::vector<DrivenResult> on_the_cpu(const std::vector<DrivenRequest>& requests, Random& random) {
  RunnerConfig config = recorded_config();
  config.device = {};
  OpContext ctx;
  ctx.batch_invariant = true;
  ModelRunner runner(ctx, config, std::make_unique<FakeModel>(ctx, fake_spec(), config));
  StepDriver driver(runner, config, random, ctx);
  std::vector<DrivenResult> results = driver.run(requests, DriveOptions{});
  for (DrivenResult& result : results) result.logits.clear();
  return results;
}

class Task4_5_Ahead : public ::testing::TestWithParam<Pace> {};
INSTANTIATE_TEST_SUITE_P(Paces, Task4_5_Ahead, testing::every_pace(), testing::pace_name);

TEST_P(Task4_5_Ahead, GivesWhatStepsOneAfterTheOtherGive) {
  Random random;
  SCOPED_TRACE(random.describe());
  RecordedRunner recorded(recorded_config(), GetParam(), random.engine()());
  AheadDriver driver(*recorded.runner, recorded_config(), random);
  for (const bool penalties : {false, true}) {
    auto requests = random_requests(random, 20, 97);
    for (DrivenRequest& request : requests) {
      if (!penalties) request.sampling.repetition_penalty = 1.0;
      request.sampling.prompt_logprobs.reset();
      request.sampling.logprob_token_ids.clear();
    }
    if (penalties) requests[3].sampling.bad_words_token_ids = {{5, 6}, {7, 8, 9}};
    requests[1].sampling.logprobs = 2;
    requests[1].sampling.logprob_token_ids = {4, 90};
    const auto expected = on_the_cpu(requests, random);
    AheadOptions joining, unsteady, one_by_one;
    joining.max_running = 5;
    joining.max_chunk = 7;
    joining.join_probability = 0.5;
    unsteady.max_chunk = 11;
    unsteady.join_probability = 0.7;
    unsteady.skip_probability = 0.3;
    one_by_one.ahead = 1;
    one_by_one.max_chunk = 9;
    for (const AheadOptions& options : {AheadOptions{}, joining, unsteady, one_by_one}) {
      const auto results = driver.run(requests, options);
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(i);
        expect_same(expected[i], results[i]);
      }
      if (HasFailure()) return;
    }
  }
}

TEST_P(Task4_5_Ahead, StagedStepsGiveTheLogitsOfTheCpuHoweverTheyAreCut) {
  Random random;
  SCOPED_TRACE(random.describe());
  RecordedRunner recorded(recorded_config(), GetParam(), random.engine()());
  StepDriver driver(*recorded.runner, recorded_config(), random, recorded.stream.context());
  auto requests = random_requests(random, 12, 97);
  for (DrivenRequest& request : requests) request.sampling.prompt_logprobs.reset();
  for (const DriveOptions& options : ways_to_drive()) {
    const auto results = driver.run(requests, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int32_t> tokens = requests[i].prompt;
      for (size_t t = 0; t < results[i].token_ids.size(); ++t) {
        ASSERT_EQ(results[i].logits[t], testing::fake_logits(tokens, 97))
            << "request " << i << " token " << t;
        tokens.push_back(results[i].token_ids[t]);
      }
    }
  }
}

// Decodes of three sequences, two steps in flight, as the chapter draws it: the host waits where it collects, and
// nowhere else.
TEST(Task4_5_Steps, ADecodeStepIsOneCopyEachWayAndTheHostNeverWaitsForIt) {
  RecordedRunner recorded;
  const std::vector<SequenceId> ids{1, 2, 3};
  std::deque<std::shared_ptr<const LaunchedStep>> in_flight;
  in_flight.push_back(recorded.runner->launch(prompt_step(ids, 5)));
  for (int64_t number = 1; number < 12; ++number) {
    SCOPED_TRACE(number);
    recorded.stream.clear();
    in_flight.push_back(recorded.runner->launch(decode_step(number, ids, 4 + number)));
    const RecordingStream::Counts launching = recorded.stream.counts();
    EXPECT_EQ(launching.waits, 0);
    EXPECT_EQ(launching.copies_from_host, 1);
    EXPECT_LT(launching.bytes_from_host, 8192);
    EXPECT_EQ(launching.copies_to_host, 1);
    EXPECT_EQ(launching.bytes_to_host, 3 * 4) << "a token of each";
    EXPECT_EQ(launching.launches, 4) << "unpack_inputs, forward, logits, argmax";
    EXPECT_EQ(recorded.stream.log().front(), "record") << "the step's time begins before its copy";
    EXPECT_EQ(recorded.stream.log().back(), "record");
    recorded.stream.clear();
    EXPECT_EQ(in_flight.front()->collect().sequences.size(), 3u);
    in_flight.pop_front();
    EXPECT_EQ(recorded.stream.counts().waits, 1);
    EXPECT_GT(recorded.stream.num_pending(), 0) << "the step behind it is not waited for";
  }
}

TEST(Task4_5_Steps, EverythingTheSamplerNeedsIsInTheSameCopy) {
  RecordedRunner recorded;
  SamplingParams everything;
  everything.temperature = 0.8;
  everything.top_k = 5;
  everything.top_p = 0.9;
  everything.min_p = 0.01;
  everything.seed = 3;
  everything.logit_bias = {{4, 1.0}};
  everything.allowed_token_ids = {3, 4, 5, 6, 7, 8, 9};
  everything.logprobs = 2;
  everything.logprob_token_ids = {9};
  recorded.runner->execute(prompt_step({7}, 3));  // the first step makes the memory
  recorded.stream.clear();
  const auto first = recorded.runner->launch(prompt_step({1, 2}, 5, everything));
  EXPECT_EQ(recorded.stream.counts().copies_from_host, 1);
  EXPECT_EQ(recorded.stream.counts().waits, 0);
  const StepOutput output = first->collect();
  EXPECT_EQ(output.sequences.at(1).logprobs.at(0).selected.size(), 1u);
}

TEST(Task4_5_Steps, OnlyWhereTheSamplerNeedsTokensTheStepBeforeIsWaitedFor) {
  for (const double penalty : {0.0, 0.5}) {
    RecordedRunner recorded;
    SamplingParams sampling = greedy();
    sampling.frequency_penalty = penalty;
    const auto first = recorded.runner->launch(prompt_step({1, 2}, 5, sampling));
    recorded.stream.clear();
    const auto second = recorded.runner->launch(decode_step(1, {1, 2}, 5));
    EXPECT_EQ(recorded.stream.counts().waits, penalty == 0.0 ? 0 : 1);
    recorded.stream.clear();
    first->collect();
    EXPECT_EQ(recorded.stream.counts().waits, penalty == 0.0 ? 1 : 0) << "it is past already";
  }
}

// What is not collected is not lost: a third step waits for the tokens of the first, which it needs on the host, and
// for no more.
TEST(Task4_5_Steps, AThirdStepWaitsForTheFirstAndNotForTheSecond) {
  RecordedRunner recorded;
  const auto first = recorded.runner->launch(prompt_step({1}, 5));
  const auto second = recorded.runner->launch(decode_step(1, {1}, 5));
  recorded.stream.clear();
  const auto third = recorded.runner->launch(decode_step(2, {1}, 6));
  EXPECT_EQ(recorded.stream.counts().waits, 1);
  recorded.stream.clear();
  first->collect();
  EXPECT_EQ(recorded.stream.counts().waits, 0);
  second->collect();
  EXPECT_EQ(recorded.stream.counts().waits, 1);
}

TEST(Task4_5_Steps, ANewSequenceSendsItsTableAndADecodeNothingOfIt) {
  RecordedRunner recorded;
  const auto bytes_of = [&](const SchedulerOutput& step) {
    recorded.stream.clear();
    recorded.runner->execute(step);
    return recorded.stream.counts().bytes_from_host;
  };
  const int64_t joining = bytes_of(prompt_step({1}, 5));
  SchedulerOutput growing = decode_step(2, {1}, 6);
  growing.continued[0].new_block_ids = {200};
  const int64_t decoding = bytes_of(decode_step(1, {1}, 5)), growing_bytes = bytes_of(growing);
  EXPECT_EQ(joining - decoding, StepUpload::kAlignment) << "the entries of its table";
  EXPECT_EQ(growing_bytes - decoding, StepUpload::kAlignment) << "the new block's";
}

}  // namespace
}  // namespace ladder
