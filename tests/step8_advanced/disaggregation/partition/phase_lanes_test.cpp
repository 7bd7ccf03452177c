// Task 8.7.lanes: whole engines with two lanes, real models on the CPU, against engines with one: neither which lane computes a
// token nor what the other lane does meanwhile changes a bit of an answer in f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/partition/phase_executors.h"
#include "tests/step5_scheduler/harness.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/fake_phase_executors.h"
#include "tests/step8_advanced/disaggregation/connector/handoff_requests.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::expect_same;
using testing::GoldenCheckpoint;

EngineOptions in_lanes(EngineOptions options) {
  options.makers.executor = make_phase_executors();
  options.runner.threads = 2;
  return options;
}

// The same, but of two steps that are computed beside each other `first` says which one is done first, so that what is scheduled
// does not depend on how fast the threads are.
EngineOptions in_ordered_lanes(EngineOptions options, std::function<StepPhase()> first) {
  options = in_lanes(std::move(options));
  options.makers.executor = [make = options.makers.executor,
                             first = std::move(first)](const ExecutorOptions& parts) {
    MadeExecutor made = make(parts);
    const std::shared_ptr<PhaseExecutors> lanes = std::move(made.phases);
    class Lane final : public Executor {
     public:
      Lane(std::shared_ptr<PhaseExecutors> both, StepPhase phase) : both_(std::move(both)), phase_(phase) {}
      Ticket submit(const SchedulerOutput& step) override { return both_->of(phase_).submit(step); }
      StepOutput collect(Ticket ticket) override { return both_->of(phase_).collect(ticket); }
      int max_in_flight() const override { return both_->of(phase_).max_in_flight(); }

     private:
      const std::shared_ptr<PhaseExecutors> both_;
      const StepPhase phase_;
    };
    made.phases = std::make_unique<testing::FakePhaseExecutors>(
        std::make_unique<Lane>(lanes, StepPhase::prefill), std::make_unique<Lane>(lanes, StepPhase::decode),
        first);
    return made;
  };
  return options;
}

// Says that steps should be of both phases for two prefill steps, and not for the next one.
class MixingContexts final : public LaneContexts {
 public:
  MixingContexts(Device device, int& num_mixed)
      : plain_(make_plain_lane_contexts(device)), num_mixed_(num_mixed) {}
  std::vector<OpContext> make(StepPhase phase) override { return plain_->make(phase); }
  bool on_waiting(int64_t /*num_tokens*/) override {
    const bool mixes = ++num_steps_ % 3 != 0;
    num_mixed_ += mixes;
    return mixes;
  }

 private:
  const std::unique_ptr<LaneContexts> plain_;
  int& num_mixed_;
  int num_steps_ = 0;
};

StepPhase prompts_first() {
  return StepPhase::prefill;
}

class PhaseLanesGoldens : public ::testing::TestWithParam<std::string> {
 protected:
  const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / GetParam());
  const EngineOptions options =
      testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
};

TEST_P(PhaseLanesGoldens, AnswersAreThoseOfOneLane) {
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto expected = engine_with(options)->generate(requests);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(expected[i].completions[0].token_ids, checkpoint.prompts[i].greedy_token_ids);
  for (const int64_t chunk : {5, 64}) {
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    EngineOptions lanes = in_lanes(options);
    lanes.runner.batch.max_num_batched_tokens = chunk;
    lanes.runner.batch.block_size = 4;
    const std::unique_ptr<Engine> engine = engine_with(lanes);
    expect_same(engine->generate(requests), expected);
    const auto warm = engine->generate(requests);
    expect_same(warm, expected);
    for (const RequestOutput& output : warm)
      EXPECT_EQ(output.metrics.num_cached_tokens, (output.metrics.num_prompt_tokens - 1) / 4 * 4);
    EXPECT_GT(engine->metrics().num_prefill_steps, 0);
    EXPECT_GT(engine->metrics().num_decode_steps, 0);
    testing::expect_books_closed(engine->scheduler());
  }
}

TEST_P(PhaseLanesGoldens, AnswersAreThoseOfOneLaneWhereStepsAreMixedNowAndThen) {
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto expected = engine_with(options)->generate(requests);
  int num_mixed = 0;
  EngineOptions lanes = in_lanes(options);
  lanes.makers.executor = make_phase_executors([&num_mixed](const RunnerConfig& config) {
    return std::make_shared<MixingContexts>(config.device, num_mixed);
  });
  lanes.runner.batch.max_num_batched_tokens = 7;
  lanes.runner.batch.block_size = 4;
  const std::unique_ptr<Engine> engine = engine_with(lanes);
  expect_same(engine->generate(requests), expected);
  EXPECT_GT(num_mixed, 3);
  EXPECT_GT(engine->metrics().num_decode_steps, 0);
  testing::expect_books_closed(engine->scheduler());
}

TEST_P(PhaseLanesGoldens, PreemptionChangesNoBit) {
  std::vector<Request> requests = testing::greedy_requests(checkpoint);
  EngineOptions cramped = options;
  const auto expected = engine_with(options)->generate(requests);
  int64_t longest = 0;
  for (const Request& request : requests)
    longest = std::max(longest, std::ssize(request.prompt_token_ids) + *request.sampling.max_tokens);
  cramped.runner.batch.block_size = 4;
  cramped.runner.kv_memory = 0;
  cramped.runner.batch.num_kv_blocks = (longest + 3) / 4 + 2;
  if (cramped.runner.batch.max_model_len == 0) cramped.runner.batch.max_model_len = longest;
  if (checkpoint.max_model_len > 0) cramped.runner.batch.num_kv_blocks = checkpoint.max_model_len / 4 + 1;
  const std::vector<Request> again = requests;  // so that there is a crowd
  requests.insert(requests.end(), again.begin(), again.end());
  const std::unique_ptr<Engine> engine = engine_with(in_ordered_lanes(cramped, prompts_first));
  const auto outputs = engine->generate(requests);
  for (size_t i = 0; i < outputs.size(); ++i)
    EXPECT_TRUE(testing::same_bits(outputs[i], expected[i % expected.size()])) << "prompt " << i;
  EXPECT_GT(engine->metrics().num_preemptions, 0);
  testing::expect_books_closed(engine->scheduler());
}

INSTANTIATE_TEST_SUITE_P(Task8_7_Lanes, PhaseLanesGoldens,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder())),
                         [](const auto& info) { return info.param; });

// Penalties, seeds, stop strings, several completions, log probabilities of prompts and answers: all that a runner keeps of a
// sequence goes with it to the other lane.
TEST(Task8_7_Lanes, WhatARequestAsksForGoesWithItToTheOtherLane) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests = testing::random_requests(random, 40);
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& sampling = requests[i].sampling;
    *sampling.max_tokens += 12;
    if (i % 7 == 0) sampling.prompt_logprobs = 2;
    if (i % 6 == 1) sampling.frequency_penalty = 0.7;
    if (i % 6 == 2) sampling.presence_penalty = -0.7;
    if (i % 6 == 3) sampling.min_tokens = std::min<int64_t>(5, *sampling.max_tokens);
    if (i % 6 == 4) sampling.logit_bias = {{static_cast<int32_t>(300 + i), 3.0f}};
    if (i % 6 == 5) sampling.ignore_eos = false;
    if (i % 8 == 5) sampling.bad_words_token_ids = {{310}, {320, 330}};
    if (i % 8 == 6) sampling.top_k = 20, sampling.top_p = 0.8;
  }
  EngineOptions options = testing::tiny_options();
  const auto expected = engine_with(options)->generate(requests);
  options.runner.batch.max_num_batched_tokens = 20;
  for (const bool cramped : {false, true}) {
    if (cramped) {
      options.runner.kv_memory = 0;
      options.runner.batch.num_kv_blocks = 40;
    }
    const std::unique_ptr<Engine> engine =
        engine_with(cramped ? in_ordered_lanes(options, prompts_first) : in_lanes(options));
    const auto outputs = engine->generate(requests);
    expect_same(outputs, expected);
    for (size_t i = 0; i < outputs.size(); ++i) {
      ASSERT_EQ(outputs[i].prompt_logprobs.size(), expected[i].prompt_logprobs.size());
      for (size_t at = 0; at < outputs[i].prompt_logprobs.size(); ++at)
        EXPECT_EQ(outputs[i].prompt_logprobs[at].chosen.logprob,
                  expected[i].prompt_logprobs[at].chosen.logprob);
    }
    EXPECT_EQ(engine->metrics().num_preemptions > 0, cramped);
    testing::expect_books_closed(engine->scheduler());
  }
}

TEST(Task8_7_Lanes, AThousandRequestsWithAbortsLeaveTheBooksBalanced) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  EngineOptions options = testing::tiny_options();
  options.runner.batch.max_num_batched_tokens = 48;
  const std::unique_ptr<Engine> alone = engine_with(options);
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 50;
  const std::unique_ptr<Engine> engine = engine_with(in_ordered_lanes(
      options, [&random] { return random.integer(0, 3) == 0 ? StepPhase::prefill : StepPhase::decode; }));

  constexpr int kKinds = 25, kNumRequests = 400;
  std::vector<Request> kinds = testing::random_requests(random, kKinds);
  for (Request& request : kinds) *request.sampling.max_tokens += 12;
  const auto expected = alone->generate(kinds);
  std::map<RequestId, int> pending;
  std::vector<RequestId> seen;
  int num_added = 0, num_aborted = 0, num_equal = 0;
  while (num_added < kNumRequests || engine->has_unfinished()) {
    for (int64_t burst = random.integer(0, 6) == 0 ? random.integer(1, 12) : 0;
         burst > 0 && num_added < kNumRequests; --burst, ++num_added) {
      const int kind = static_cast<int>(random.integer(0, kKinds - 1));
      const RequestId id = engine->add_request(kinds[static_cast<size_t>(kind)]);
      pending.emplace(id, kind);
      seen.push_back(id);
    }
    if (!seen.empty() && random.integer(0, 8) == 0)
      engine->abort(seen[static_cast<size_t>(
          random.integer(std::max<int64_t>(std::ssize(seen) - 10, 0), std::ssize(seen) - 1))]);
    for (const RequestOutput& output : engine->step().finished) {
      const auto kind = static_cast<size_t>(pending.at(output.request_id));
      pending.erase(output.request_id);
      const bool aborted = std::any_of(
          output.completions.begin(), output.completions.end(),
          [](const CompletionOutput& completion) { return completion.finish_reason == FinishReason::abort; });
      num_aborted += aborted;
      if (aborted) continue;
      ++num_equal;
      ASSERT_TRUE(testing::same_bits(output, expected[kind])) << output.request_id;
    }
    if (engine->metrics().num_steps % 20 == 0) expect_books_balance(engine->scheduler());
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_TRUE(pending.empty());
  EXPECT_EQ(num_equal + num_aborted, kNumRequests);
  EXPECT_GT(num_aborted, 20);
  EXPECT_GT(engine->metrics().num_preemptions, 20);
  testing::expect_books_closed(engine->scheduler());
}

// Whoever is done first is collected first: a step that is always done cannot keep the other lane's from being collected.
TEST(Task8_7_Lanes, ADoneStepIsNotPassedOverForOneThatIsDoneLater) {
  const EngineOptions options = in_lanes(testing::tiny_options());
  const ModelFolder folder = open_model_folder(options.model);
  const RunnerConfig config = resolved_runner_config(options, folder.spec);
  const MadeExecutor made = options.makers.executor(executor_options(options, folder, config));
  SchedulerConfig scheduling;
  scheduling.batch = made.batch;
  scheduling.vocab_size = folder.spec.vocab_size;
  scheduling.phase_lanes = true;
  Scheduler scheduler(scheduling);
  SchedulerOutput step;
  const auto submit = [&](StepPhase phase) {
    scheduler.schedule(step, phase);
    return made.phases->of(phase).submit(step);
  };
  scheduler.add({300, 301, 302}, greedy(9));
  scheduler.update(made.phases->of(StepPhase::prefill).collect(submit(StepPhase::prefill)));
  scheduler.add({400, 401, 402}, greedy(9));
  const Ticket prefill = submit(StepPhase::prefill);
  EXPECT_EQ(made.phases->wait(), StepPhase::prefill);
  const Ticket decode = submit(StepPhase::decode);
  for (int i = 0; i < 100; ++i) {  // in which the other one gets done, too
    ASSERT_EQ(made.phases->wait(), StepPhase::prefill);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  scheduler.update(made.phases->of(StepPhase::prefill).collect(prefill));
  EXPECT_EQ(made.phases->wait(), StepPhase::decode);
  scheduler.update(made.phases->of(StepPhase::decode).collect(decode));
}

// A layer that fails in the steps of one lane.
class FailingAttention final : public Attention {
 public:
  FailingAttention(std::unique_ptr<Attention> inner, const bool& fails, bool of_prompts)
      : inner_(std::move(inner)), fails_(fails), of_prompts_(of_prompts) {}
  KvCacheSpec kv_cache_spec() const override { return inner_->kv_cache_spec(); }
  void forward(const OpContext& ctx, const QkNormRopeStoreArgs& args, const AttentionMetadata& metadata,
               double scale, const Tensor& out) const override {
    if (fails_ && (metadata.max_query_len > 1) == of_prompts_) fail("the lamp went out");
    inner_->forward(ctx, args, metadata, scale, out);
  }

 private:
  const std::unique_ptr<Attention> inner_;
  const bool& fails_;
  const bool of_prompts_;
};

TEST(Task8_7_Lanes, ARunnerThatFailsEndsTheEngineInOneLine) {
  for (const bool of_prompts : {false, true}) {
    bool fails = false;
    EngineOptions options = in_lanes(testing::tiny_options());
    options.runner.batch.max_num_batched_tokens = 8;  // prompts take several steps
    options.makers.model.attention = [&](const OpContext& ctx, int64_t layer, const KvCacheSpec& cache) {
      return std::make_unique<FailingAttention>(make_attention({}, ctx, layer, cache), fails, of_prompts);
    };
    const std::unique_ptr<Engine> engine = engine_with(options);
    testing::Random random;
    SCOPED_TRACE(random.describe());
    for (Request& request : testing::random_requests(random, 6)) {
      request.sampling.max_tokens = 20;
      request.sampling.stop.clear();
      engine->add_request(request);
    }
    engine->step();
    fails = true;
    std::string error;
    try {
      while (engine->has_unfinished()) engine->step();
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    EXPECT_TRUE(error.starts_with("step ") && error.ends_with(": the lamp went out")) << error;
    EXPECT_TRUE(engine->dead());
    testing::expect_books_closed(engine->scheduler());
  }
}

// What load_engine() says to this configuration.
template <class Change>
std::string refusal(Change change) {
  EngineOptions options = in_lanes(testing::tiny_options());
  change(options);
  try {
    engine_with(options);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Task8_7_Lanes, WhatDoesNotGoWithThemIsRefused) {
  const auto says = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos ? ::testing::AssertionSuccess()
                                                : ::testing::AssertionFailure() << text;
  };
  EXPECT_TRUE(says(refusal([](EngineOptions& options) { options.runner.tensor_parallel_size = 2; }),
                   "one rank, got 2"));
  EXPECT_TRUE(
      says(refusal([](EngineOptions& options) { options.static_batching = true; }), "static batching"));
  EXPECT_TRUE(says(refusal([](EngineOptions& options) {
                     options.makers.kv_connector = [](const ExecutorOptions&) {
                       return MadeKvConnector{std::make_shared<KvConnector>(), nullptr};
                     };
                   }),
                   "KV connector"));
}

}  // namespace
}  // namespace ladder
