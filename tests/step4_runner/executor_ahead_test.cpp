// Task 4.4.executor: the executor with two steps in flight, on the fake device.
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <string>
#include <thread>

#include "step1_layers/core/error.h"
#include "step4_runner/local_executor.h"
#include "tests/step4_runner/fake_runner.h"

namespace ladder {
namespace {

using ladder::testing::decode_step;
using ladder::testing::fake_spec;
using ladder::testing::FakeModel;
using ladder::testing::prompt_step;
using ladder::testing::recorded_config;
using ladder::testing::RecordingStream;

ModelFactory models(const RunnerConfig& config) {
  const RunnerConfig resolved = resolve_runner_config(fake_spec(), config);
  return [resolved](const OpContext& ctx) { return std::make_unique<FakeModel>(ctx, fake_spec(), resolved); };
}

// The executor's own threads: the one that launches must not wait while another step is submitted.
TEST(Task4_4_ExecutorAhead, TakesTwoStepsAndWaitsInCollectAlone) {
  const RunnerConfig config = recorded_config();
  std::vector<int32_t> ahead, one_by_one;
  for (std::vector<int32_t>* tokens : {&ahead, &one_by_one}) {
    RecordingStream stream;
    const OpContext ctx = stream.context();
    RunnerConfig asked = config;
    asked.async_scheduling = tokens == &ahead;
    LocalExecutor executor(fake_spec(), asked, models(asked), {}, &ctx);
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
      // Time to launch both, so that the rank takes its second step while the first is still there to be collected.
      if (number == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    while (!tickets.empty()) collect();
    EXPECT_EQ(stream.counts().waits, 10) << "one for every step's tokens";
    EXPECT_EQ(stream.counts().copies_from_host, 10);
    EXPECT_EQ(stream.counts().copies_to_host, 10);
  }
  EXPECT_EQ(ahead, one_by_one);
}

// As a grammar does: which token may follow depends on the last one, which the step before samples.
TEST(Task4_4_ExecutorAhead, ALogitsProcessorSeesTheTokensThatItNeeds) {
  struct Successor final : LogitsProcessor {
    bool needs_tokens(const SamplingParams&) const override { return true; }
    void edit(const BatchSequence& sequence, LogitsEdits& edits) override {
      edits.allow_only_ids(std::vector<int32_t>{(sequence.token_ids.back() + 1) % 97});
    }
  };
  RecordingStream stream;
  const OpContext ctx = stream.context();
  LocalExecutor executor(fake_spec(), recorded_config(), models(recorded_config()),
                         std::make_shared<Successor>(), &ctx);
  std::deque<Ticket> tickets;
  std::vector<int32_t> tokens;
  for (int64_t number = 0; number < 10 || !tickets.empty(); ++number) {
    if (number < 10)
      tickets.push_back(
          executor.submit(number == 0 ? prompt_step({4}, 5) : decode_step(number, {4}, 4 + number)));
    if (number < 10 && std::ssize(tickets) < executor.max_in_flight()) continue;
    tokens.push_back(executor.collect(tickets.front()).sequences.at(0).token_ids.at(0));
    tickets.pop_front();
  }
  ASSERT_EQ(tokens.size(), 10u);
  for (size_t i = 1; i < tokens.size(); ++i) EXPECT_EQ(tokens[i], (tokens[i - 1] + 1) % 97);
}

TEST(Task4_4_ExecutorAhead, AKernelThatFailsIsAnErrorThatNamesItsStep) {
  RecordingStream stream;
  const OpContext ctx = stream.context();
  LocalExecutor executor(fake_spec(), recorded_config(), models(recorded_config()), {}, &ctx);
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
