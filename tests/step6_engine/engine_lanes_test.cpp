// Task 8.7.lanes: an engine with an executor for each phase, whose steps are done in any order.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step6_engine/trace/step_recorder.h"
#include "tests/step5_scheduler/harness.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/fake_phase_executors.h"

namespace ladder {
namespace {

using testing::expect_books_closed;
using testing::expected_tokens;
using testing::fake_config;
using testing::FakeExecutor;
using testing::FakePhaseExecutors;
using testing::token_request;

constexpr StepPhase kPrefill = StepPhase::prefill, kDecode = StepPhase::decode;

std::vector<int32_t> prompt_of(int32_t first, int64_t size) {
  std::vector<int32_t> ids(static_cast<size_t>(size));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = first + static_cast<int32_t>(i);
  return ids;
}

// An engine over two fakes, and the order in which their steps are done: decodes before prompts, unless it is said.
struct FakeLanes {
  explicit FakeLanes(int max_in_flight = 1, const FakeExecutor::Fault& prefill_fault = {},
                     const FakeExecutor::Fault& decode_fault = {}) {
    auto made = std::make_unique<FakePhaseExecutors>(
        std::make_unique<FakeExecutor>(testing::mixed, max_in_flight, prefill_fault),
        std::make_unique<FakeExecutor>(testing::mixed, max_in_flight, decode_fault),
        [this] { return first; });
    executors = made.get();
    engine = std::make_unique<Engine>(std::move(made), fake_config(), nullptr);
  }

  StepPhase first = kDecode;
  FakePhaseExecutors* executors = nullptr;  // the engine's
  std::unique_ptr<Engine> engine;
};

std::map<RequestId, RequestOutput> outputs_of(Engine& engine) {
  std::map<RequestId, RequestOutput> outputs;
  while (engine.has_unfinished())
    for (RequestOutput& output : engine.step().finished)
      outputs.emplace(output.request_id, std::move(output));
  return outputs;
}

TEST(Task8_7_EngineLanes, AnswersGoOnWhileALongPromptIsComputed) {
  FakeLanes lanes;
  Engine& engine = *lanes.engine;
  engine.add_request(token_request({1, 2, 3}, 40, "answered"));
  engine.step();  // its prompt
  engine.add_request(token_request(prompt_of(100, 30), 5, "prompt"));
  int64_t num_tokens = 0;
  for (int i = 0; i < 20; ++i) {
    const StepResult result = engine.step();
    EXPECT_EQ(result.metrics.phase, kDecode);
    if (i == 0) {
      EXPECT_EQ(result.metrics.step, 1) << "decodes are submitted first";
    }
    for (const CompletionUpdate& update : result.updates) {
      EXPECT_EQ(update.request_id, "answered");
      num_tokens += std::ssize(update.token_ids);
    }
  }
  EXPECT_EQ(num_tokens, 20);
  EXPECT_EQ(lanes.executors->most_decodes_beside_a_prefill(), 20);
  lanes.first = kPrefill;
  const StepResult result = engine.step();
  EXPECT_EQ(result.metrics.phase, kPrefill);
  EXPECT_EQ(result.metrics.num_tokens, 30);
  const auto outputs = outputs_of(engine);
  EXPECT_EQ(outputs.at("answered").completions[0].token_ids, expected_tokens({1, 2, 3}, 40));
  EXPECT_EQ(outputs.at("prompt").completions[0].token_ids, expected_tokens(prompt_of(100, 30), 5));
  EXPECT_EQ(engine.metrics().num_prefill_steps, 2);
  EXPECT_EQ(engine.metrics().num_prefill_steps + engine.metrics().num_decode_steps,
            engine.metrics().num_steps);
  expect_books_closed(engine.scheduler());
}

TEST(Task8_7_EngineLanes, TheExecutorsHearHowManyTokensOfPromptsWait) {
  FakeLanes lanes;
  Engine& engine = *lanes.engine;
  for (int32_t i = 0; i < 3; ++i)
    engine.add_request(token_request(prompt_of(100 * i, 30), 5));  // a step has 32 tokens
  engine.step();
  EXPECT_EQ(lanes.executors->waiting, std::vector<int64_t>({30}))
      << "of the second one 2 tokens are computed";
  lanes.first = kPrefill;
  engine.step();
  EXPECT_EQ(lanes.executors->waiting, std::vector<int64_t>({30, 0}));
  outputs_of(engine);
  EXPECT_EQ(lanes.executors->waiting, std::vector<int64_t>({30, 0, 0})) << "no decode step says it";
}

TEST(Task8_7_EngineLanes, StepsAreOfBothPhasesWhileTheExecutorsSaySo) {
  FakeLanes lanes;
  lanes.executors->mixes = [](int64_t waiting) { return waiting > 20; };
  Engine& engine = *lanes.engine;
  engine.add_request(token_request({1, 2, 3}, 60, "answered"));
  engine.step();  // its prompt
  for (int32_t i = 0; i < 5; ++i)
    engine.add_request(token_request(prompt_of(100 * (i + 1), 30), 5, std::to_string(i)));
  std::map<RequestId, RequestOutput> outputs;
  std::string lanes_of_answered;
  while (engine.has_unfinished()) {
    lanes.first = lanes.first == kDecode ? kPrefill : kDecode;
    StepResult result = engine.step();
    for (const CompletionUpdate& update : result.updates)
      if (update.request_id == "answered") lanes_of_answered += result.metrics.phase == kDecode ? 'd' : 'p';
    for (RequestOutput& output : result.finished) outputs.emplace(output.request_id, std::move(output));
  }
  const size_t begin = lanes_of_answered.find('p'), end = lanes_of_answered.rfind('p');
  ASSERT_NE(begin, std::string::npos);
  EXPECT_GE(end - begin, 1u) << "what is left of 150 tokens needs several";
  EXPECT_EQ(lanes_of_answered.substr(begin, end - begin + 1).find('d'), std::string::npos)
      << lanes_of_answered;
  EXPECT_EQ(lanes_of_answered.back(), 'd') << "then it goes on beside prompts";
  EXPECT_EQ(outputs.at("answered").completions[0].token_ids, expected_tokens({1, 2, 3}, 60));
  for (int32_t i = 0; i < 5; ++i)
    EXPECT_EQ(outputs.at(std::to_string(i)).completions[0].token_ids,
              expected_tokens(prompt_of(100 * (i + 1), 30), 5));
  expect_books_closed(engine.scheduler());
}

TEST(Task8_7_EngineLanes, OneRequestWithSeveralCompletionsIsAnswered) {
  for (const int max_in_flight : {1, 2}) {
    FakeLanes lanes(max_in_flight);
    Request several = token_request(prompt_of(5, 40), 9, "several");  // two chunks
    several.sampling.n = 3;
    several.sampling.prompt_logprobs = 0;
    several.sampling.logprobs = 0;
    lanes.engine->add_request(several);
    const auto outputs = outputs_of(*lanes.engine);
    ASSERT_EQ(outputs.at("several").completions.size(), 3u);
    for (const CompletionOutput& completion : outputs.at("several").completions) {
      EXPECT_EQ(completion.token_ids, expected_tokens(prompt_of(5, 40), 9));
      EXPECT_EQ(completion.logprobs.size(), 9u);
    }
    EXPECT_EQ(outputs.at("several").prompt_logprobs.size(), 39u);
    expect_books_closed(lanes.engine->scheduler());
  }
}

// Whatever is in flight where.
TEST(Task8_7_EngineLanes, AbortsAtEveryPointLeaveNothingAndDisturbNobody) {
  for (const int max_in_flight : {1, 2})
    for (int at = 0; at < 24; ++at) {
      SCOPED_TRACE("abort before step " + std::to_string(at));
      FakeLanes lanes(max_in_flight);
      Engine& engine = *lanes.engine;
      engine.add_request(token_request({1, 2, 3}, 12, "short"));
      engine.add_request(token_request(prompt_of(100, 50), 8, "long"));
      Request two = token_request(prompt_of(100, 33), 6, "two");
      two.sampling.n = 2;
      engine.add_request(two);
      std::map<RequestId, RequestOutput> outputs;
      for (int i = 0; engine.has_unfinished(); ++i) {
        lanes.first = i % 3 == 2 ? kPrefill : kDecode;
        if (i == at) engine.abort("long");
        if (i == at + 1) engine.abort("two");
        for (RequestOutput& output : engine.step().finished)
          outputs.emplace(output.request_id, std::move(output));
      }
      ASSERT_EQ(outputs.size(), 3u);
      EXPECT_EQ(outputs.at("short").completions[0].token_ids, expected_tokens({1, 2, 3}, 12));
      for (const char* id : {"long", "two"})
        for (const CompletionOutput& completion : outputs.at(id).completions) {
          EXPECT_TRUE(completion.finish_reason == FinishReason::abort ||
                      completion.finish_reason == FinishReason::length);
          const auto expected =
              expected_tokens(outputs.at(id).prompt_token_ids, std::ssize(completion.token_ids));
          EXPECT_EQ(completion.token_ids, expected) << id;
        }
      expect_books_closed(engine.scheduler());
    }
}

struct Fault {
  StepPhase phase;
  const char* call;
};

TEST(Task8_7_EngineLanes, AFailureInEitherLaneEndsTheEngine) {
  for (const Fault& fault : {Fault{kPrefill, "submit"}, Fault{kPrefill, "collect"}, Fault{kDecode, "submit"},
                             Fault{kDecode, "collect"}}) {
    SCOPED_TRACE(std::string(fault.call) + (fault.phase == kDecode ? " of a decode" : " of a prompt"));
    int num_calls = 0;
    const FakeExecutor::Fault fails = [&](std::string_view call, int64_t) {
      if (call == fault.call && ++num_calls >= 2) throw std::runtime_error("the lamp went out");
    };
    FakeLanes lanes(1, fault.phase == kPrefill ? fails : FakeExecutor::Fault(),
                    fault.phase == kDecode ? fails : FakeExecutor::Fault());
    Engine& engine = *lanes.engine;
    engine.add_request(token_request({1, 2, 3}, 30, "answered"));
    engine.add_request(token_request(prompt_of(100, 50), 30, "prompt"));
    std::string error;
    for (int i = 0; i < 30 && error.empty(); ++i) {
      lanes.first = i % 3 == 2 ? kPrefill : kDecode;
      try {
        engine.step();
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
    }
    EXPECT_EQ(error, "the lamp went out");
    EXPECT_TRUE(engine.dead());
    const StepResult rest = engine.take_results();
    ASSERT_EQ(rest.finished.size(), 2u);
    for (const RequestOutput& output : rest.finished)
      EXPECT_EQ(output.completions[0].finish_reason, FinishReason::error);
    EXPECT_THROW(engine.step(), std::runtime_error);
    expect_books_closed(engine.scheduler());
  }
}

TEST(Task8_7_EngineLanes, AnIdleEngineLooksAfterBothLanes) {
  for (const StepPhase phase : {kPrefill, kDecode}) {
    auto prefill = std::make_unique<FakeExecutor>(testing::mixed);
    auto decode = std::make_unique<FakeExecutor>(testing::mixed);
    (phase == kPrefill ? prefill : decode)->failed_by_itself = true;
    Engine engine(
        std::make_unique<FakePhaseExecutors>(std::move(prefill), std::move(decode), [] { return kDecode; }),
        fake_config(), nullptr);
    EXPECT_THROW(engine.check(), std::runtime_error);
    EXPECT_TRUE(engine.dead());
  }
}

// Blocks in a record are as of its submission: out of order their differences tell nothing.
TEST(Task8_7_EngineLanes, RecordsComeInTheOrderOfSubmission) {
  FakeLanes lanes;
  Engine& engine = *lanes.engine;
  std::vector<TraceRecord> records;
  engine.add_observer(std::make_shared<StepRecorder>(
      engine, [&](const TraceRecord& record) { records.push_back(record); }, [] { return 0.0; }));
  engine.add_request(token_request({1, 2, 3}, 20, "answered"));
  engine.step();
  engine.add_request(token_request(prompt_of(100, 30), 3, "prompt"));
  for (int i = 0; i < 5; ++i) engine.step();
  const size_t num_before = records.size();
  lanes.first = kPrefill;
  engine.step();
  EXPECT_GT(records.size(), num_before + 4) << "what waited for the prompt";
  outputs_of(engine);
  int64_t last = -1, num_tokens = 0;
  for (const TraceRecord& record : records) {
    if (record.batch.empty()) continue;
    EXPECT_GT(record.step, last);
    last = record.step;
    num_tokens += record.num_new_tokens;
  }
  EXPECT_EQ(last + 1, engine.metrics().num_steps);
  EXPECT_EQ(num_tokens, 23);
}

// Over simulators that know whose blocks a step in flight reads and writes; in any order, with too few blocks.
TEST(Task8_7_EngineLanes, AThousandRequestsWithAbortsLeaveTheBooksBalanced) {
  std::mt19937_64 random(7);
  const auto number = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int64_t num_preemptions = 0, num_aborted = 0, most_beside = 0;
  for (const int delay : {0, 1}) {
    SchedulerConfig config = small_config();
    config.batch.num_kv_blocks = 40;
    config.batch.max_model_len = 100;
    config.batch.max_num_batched_tokens = 24;
    auto prefill = std::make_unique<KvSimulator>(40, config.batch.block_size, config.vocab_size, delay);
    auto decode = std::make_unique<KvSimulator>(40, config.batch.block_size, config.vocab_size, delay);
    decode->share_cache_with(*prefill);
    auto made = std::make_unique<FakePhaseExecutors>(std::move(prefill), std::move(decode),
                                                     [&] { return number(0, 5) == 0 ? kPrefill : kDecode; });
    const FakePhaseExecutors& executors = *made;
    Engine engine(std::move(made), config, nullptr);

    std::map<RequestId, Request> pending;
    std::vector<RequestId> seen;
    int64_t num_added = 0, num_ended = 0;
    while (num_added < 600 || engine.has_unfinished()) {
      for (int64_t burst = number(0, 15) == 0 ? number(1, 20) : 0; burst > 0 && num_added < 600;
           --burst, ++num_added) {
        Request request = token_request(prompt_of(number(0, 3) * 100, number(1, 70)), number(1, 29));
        request.sampling.seed = random();
        if (number(0, 4) == 0) request.sampling.n = 3;
        if (number(0, 4) == 0) request.sampling.prompt_logprobs = 0;
        const RequestId id = engine.add_request(request);
        pending.emplace(id, request);
        seen.push_back(id);
      }
      if (!seen.empty() && number(0, 6) == 0)
        engine.abort(seen[static_cast<size_t>(
            number(std::max<int64_t>(std::ssize(seen) - 12, 0), std::ssize(seen) - 1))]);
      for (const RequestOutput& output : engine.step().finished) {
        const Request& request = pending.at(output.request_id);
        ++num_ended;
        for (size_t i = 0; i < output.completions.size(); ++i) {
          const CompletionOutput& completion = output.completions[i];
          std::vector<int32_t> expected =
              reference_output(request.prompt_token_ids, request.sampling, *request.sampling.seed + i,
                               config.vocab_size, config.batch.max_model_len, {});
          if (completion.finish_reason == FinishReason::abort) {
            expected.resize(completion.token_ids.size());
            ++num_aborted;
          }
          ASSERT_EQ(completion.token_ids, expected) << output.request_id;
        }
        pending.erase(output.request_id);
      }
      expect_books_balance(engine.scheduler());
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(num_ended, 600);
    EXPECT_TRUE(pending.empty());
    expect_books_closed(engine.scheduler());
    num_preemptions += engine.scheduler().stats().num_preemptions;
    most_beside = std::max(most_beside, executors.most_decodes_beside_a_prefill());
  }
  EXPECT_GT(num_preemptions, 50);
  EXPECT_GT(num_aborted, 50);
  EXPECT_GT(most_beside, 5);
}

}  // namespace
}  // namespace ladder
