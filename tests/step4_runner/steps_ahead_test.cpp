// Task 4.5: steps in flight, on the fake device: what the host waits for, what travels, and that a step laid out before
// the tokens of the one before it are known gives what steps one after the other give.
#include <gtest/gtest.h>

#include <string>

#include "step1_layers/core/error.h"
#include "step4_runner/local_executor.h"
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
INSTANTIATE_TEST_SUITE_P(Paces, Task4_5_Ahead, ::testing::Values(Pace::late, Pace::at_once, Pace::random),
                         [](const auto& info) {
                           return std::string(info.param == Pace::late      ? "late"
                                              : info.param == Pace::at_once ? "at_once"
                                                                            : "random");
                         });

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
    requests[1].sampling.prompt_logprobs = 3;
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
  everything.prompt_logprobs = 2;
  recorded.stream.clear();
  const auto first = recorded.runner->launch(prompt_step({1, 2}, 5, everything));
  EXPECT_EQ(recorded.stream.counts().copies_from_host, 1);
  EXPECT_EQ(recorded.stream.counts().waits, 0);
  const StepOutput output = first->collect();
  EXPECT_EQ(output.sequences.at(1).prompt_logprobs.size(), 4u);
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

ModelFactory models(const RunnerConfig& config) {
  const RunnerConfig resolved = resolve_runner_config(fake_spec(), config);
  return [resolved](const OpContext& ctx) { return std::make_unique<FakeModel>(ctx, fake_spec(), resolved); };
}

// The executor's own threads: the one that launches must not wait while another step is submitted.
TEST(Task4_5_Executor, TakesTwoStepsAndWaitsInCollectAlone) {
  const RunnerConfig config = recorded_config();
  std::vector<int32_t> ahead, one_by_one;
  for (std::vector<int32_t>* tokens : {&ahead, &one_by_one}) {
    RecordingStream stream;
    const OpContext ctx = stream.context();
    RunnerConfig asked = config;
    asked.async_scheduling = tokens == &ahead;
    LocalExecutor executor(fake_spec(), asked, models(asked), &ctx);
    ASSERT_EQ(executor.max_in_flight(), tokens == &ahead ? 2 : 1);
    std::deque<Ticket> tickets;
    const auto collect = [&] {
      tokens->push_back(executor.collect(tickets.front()).sequences.at(0).token_ids.at(0));
      tickets.pop_front();
    };
    stream.clear();
    for (int64_t number = 0; number < 10; ++number) {
      if (std::ssize(tickets) == executor.max_in_flight()) collect();
      tickets.push_back(
          executor.submit(number == 0 ? prompt_step({4}, 5) : decode_step(number, {4}, 4 + number)));
    }
    while (!tickets.empty()) collect();
    EXPECT_EQ(stream.counts().waits, 10) << "one for every step's tokens";
    EXPECT_EQ(stream.counts().copies_from_host, 10);
    EXPECT_EQ(stream.counts().copies_to_host, 10);
  }
  EXPECT_EQ(ahead, one_by_one);
}

TEST(Task4_5_Executor, AKernelThatFailsIsAnErrorThatNamesItsStep) {
  RecordingStream stream;
  const OpContext ctx = stream.context();
  LocalExecutor executor(fake_spec(), recorded_config(), models(recorded_config()), &ctx);
  const Ticket first = executor.submit(prompt_step({4}, 5));
  executor.collect(first);
  const Ticket second = executor.submit(decode_step(1, {4}, 5));
  executor.collect(second);
  const Ticket third = executor.submit(decode_step(2, {4}, 6));
  stream.launch({"broken", 0, [] { fail("an address that is not there"); }});
  const auto error_of = [&](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  // The broken kernel may stand in front of or behind step 2; step 3 is behind it.
  const std::string error = error_of([&] {
    executor.collect(third);
    executor.collect(executor.submit(decode_step(3, {4}, 7)));
  });
  EXPECT_NE(error.find("an address that is not there"), std::string::npos) << error;
  EXPECT_TRUE(error.starts_with("step 2") || error.starts_with("step 3")) << error;
  EXPECT_EQ(error_of([&] { executor.submit(decode_step(4, {4}, 8)); }), error) << "and it stays failed";
}

}  // namespace
}  // namespace ladder
