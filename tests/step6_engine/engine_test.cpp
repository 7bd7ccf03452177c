// Task 6.1: requests in, tokens out, over an executor without a model.
#include "step6_engine/engine.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/invalid_token.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::expected_tokens;
using testing::fake_config;
using testing::kFakeVocab;
using testing::make_engine;
using testing::token_request;

class Task6_1_EngineInFlight : public ::testing::TestWithParam<int> {};

TEST_P(Task6_1_EngineInFlight, EveryRequestGetsItsOwnTokensInOrder) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  Engine engine = make_engine(GetParam());
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    std::vector<int32_t> prompt(static_cast<size_t>(random.integer(1, 40)));
    for (int32_t& id : prompt) id = static_cast<int32_t>(random.integer(0, 3));
    requests.push_back(token_request(prompt, random.integer(1, 20)));
  }
  const std::vector<RequestOutput> outputs = engine.generate(requests);
  ASSERT_EQ(outputs.size(), requests.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].prompt_token_ids, requests[i].prompt_token_ids);
    ASSERT_EQ(outputs[i].completions.size(), 1u);
    EXPECT_EQ(outputs[i].completions[0].token_ids,
              expected_tokens(requests[i].prompt_token_ids, *requests[i].sampling.max_tokens));
    EXPECT_EQ(outputs[i].completions[0].finish_reason, FinishReason::length);
    EXPECT_FALSE(outputs[i].completions[0].text.has_value());
    EXPECT_EQ(outputs[i].metrics.num_output_tokens, requests[i].sampling.max_tokens);
  }
  EXPECT_FALSE(engine.has_unfinished());
  EXPECT_EQ(engine.scheduler().blocks().num_used_blocks(), 0);
  EXPECT_EQ(engine.metrics().num_requests_finished, 40);
}

TEST_P(Task6_1_EngineInFlight, PreemptionChangesNoToken) {
  SchedulerConfig scheduler = fake_config();
  scheduler.batch.num_kv_blocks = 12;
  Engine engine = make_engine(GetParam(), scheduler);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 8; ++i) requests.push_back(token_request({i, i, i, i, i, i}, 30));
  const std::vector<RequestOutput> outputs = engine.generate(requests);
  int64_t preemptions = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].completions[0].token_ids, expected_tokens(requests[i].prompt_token_ids, 30));
    preemptions += outputs[i].metrics.num_preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

TEST_P(Task6_1_EngineInFlight, AnEndTokenEndsAndStaysInTheTokens) {
  const auto count_up = [](const std::vector<int32_t>& token_ids, int64_t) { return token_ids.back() + 1; };
  Engine engine = make_engine(GetParam(), fake_config(), count_up);
  Request stops = token_request({996}, 20);
  Request by_id = token_request({10}, 20);
  by_id.sampling.stop_token_ids = {13};
  Request ignores = token_request({997}, 2);
  ignores.sampling.ignore_eos = true;
  const std::vector<RequestOutput> outputs = engine.generate({stops, by_id, ignores});
  EXPECT_EQ(outputs[0].completions[0].token_ids, (std::vector<int32_t>{997, 998, 999}));
  EXPECT_EQ(outputs[0].completions[0].finish_reason, FinishReason::stop);
  EXPECT_EQ(outputs[1].completions[0].token_ids, (std::vector<int32_t>{11, 12, 13}));
  EXPECT_EQ(outputs[1].completions[0].finish_reason, FinishReason::stop);
  EXPECT_EQ(outputs[2].completions[0].token_ids, (std::vector<int32_t>{998, 999}));
  EXPECT_EQ(outputs[2].completions[0].finish_reason, FinishReason::length);
}

TEST_P(Task6_1_EngineInFlight, UpdatesAddUpToTheOutput) {
  Engine engine = make_engine(GetParam());
  Request several = token_request({1, 2, 3, 4, 5}, 7);
  several.sampling.n = 3;
  several.sampling.logprobs = 0;
  const RequestId id = engine.add_request(several);
  std::vector<std::vector<int32_t>> seen(3);
  std::vector<size_t> logprobs_seen(3);
  std::vector<RequestOutput> finished;
  while (engine.has_unfinished()) {
    StepResult step = engine.step();
    for (const CompletionUpdate& update : step.updates) {
      EXPECT_EQ(update.request_id, id);
      auto& tokens = seen[static_cast<size_t>(update.completion)];
      tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
      ASSERT_EQ(update.logprobs.size(), update.token_ids.size());
      for (size_t i = 0; i < update.logprobs.size(); ++i)
        EXPECT_EQ(update.logprobs[i].chosen.token_id, update.token_ids[i]);
      logprobs_seen[static_cast<size_t>(update.completion)] += update.logprobs.size();
      EXPECT_EQ(update.finish_reason, tokens.size() == 7 ? FinishReason::length : FinishReason::none);
    }
    for (RequestOutput& output : step.finished) finished.push_back(std::move(output));
  }
  ASSERT_EQ(finished.size(), 1u);
  ASSERT_EQ(finished[0].completions.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(finished[0].completions[i].token_ids, seen[i]);
    EXPECT_EQ(finished[0].completions[i].logprobs.size(), 7u);
    EXPECT_EQ(logprobs_seen[i], 7u);
  }
  EXPECT_EQ(finished[0].metrics.num_output_tokens, 21);
}

TEST_P(Task6_1_EngineInFlight, AbortGivesEverythingBackAndLeavesTheOthersAlone) {
  Engine engine = make_engine(GetParam());
  const RequestId taken_back = engine.add_request(token_request({1, 2, 3, 4, 5}, 50));
  const RequestId stays = engine.add_request(token_request({5, 4, 3}, 12));
  std::vector<int32_t> seen;
  const auto see = [&](const StepResult& result) {
    for (const CompletionUpdate& update : result.updates)
      if (update.request_id == taken_back)
        seen.insert(seen.end(), update.token_ids.begin(), update.token_ids.end());
  };
  for (int i = 0; i < 3; ++i) see(engine.step());
  engine.abort(taken_back);
  engine.abort(taken_back);  // and again: nothing
  std::map<RequestId, RequestOutput> finished;
  while (engine.has_unfinished()) {
    StepResult result = engine.step();
    see(result);
    for (RequestOutput& output : result.finished)
      EXPECT_TRUE(finished.emplace(output.request_id, std::move(output)).second);
  }
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished.at(stays).completions[0].token_ids, expected_tokens({5, 4, 3}, 12));
  // What was generated until then, and no more: also where steps were in flight.
  const CompletionOutput& aborted = finished.at(taken_back).completions[0];
  EXPECT_EQ(aborted.finish_reason, FinishReason::abort);
  EXPECT_EQ(aborted.token_ids, expected_tokens({1, 2, 3, 4, 5}, 3));
  EXPECT_EQ(aborted.token_ids, seen);
  EXPECT_EQ(finished.at(taken_back).metrics.num_output_tokens, 3);
  testing::expect_books_closed(engine.scheduler());
}

TEST_P(Task6_1_EngineInFlight, AnAbortOfOneWithSeveralCompletionsKeepsThoseThatHaveEnded) {
  // Completion 0 ends with its first token, the others go on.
  int calls = 0;
  Engine engine = make_engine(GetParam(), fake_config(), [&calls](const std::vector<int32_t>&, int64_t) {
    return calls++ == 0 ? 999 : 7;
  });
  Request several = token_request({1, 2, 3}, 40);
  several.sampling.n = 3;
  const RequestId id = engine.add_request(several);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(engine.step().finished.empty());
  engine.abort(id);
  const StepResult result = engine.take_results();
  ASSERT_EQ(result.finished.size(), 1u);
  const std::vector<CompletionOutput>& completions = result.finished[0].completions;
  ASSERT_EQ(completions.size(), 3u);
  EXPECT_EQ(completions[0].token_ids, (std::vector<int32_t>{999}));
  EXPECT_EQ(completions[0].finish_reason, FinishReason::stop);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(completions[i].token_ids, std::vector<int32_t>(4, 7));
    EXPECT_EQ(completions[i].finish_reason, FinishReason::abort);
  }
  EXPECT_EQ(result.updates.size(), 2u) << "an update for each completion that ended just now";
  while (engine.has_unfinished()) engine.step();
  testing::expect_books_closed(engine.scheduler());
}

TEST_P(Task6_1_EngineInFlight, PromptLogprobsComeOnceForEveryPositionButTheFirst) {
  SchedulerConfig scheduler = fake_config();
  scheduler.batch.max_num_batched_tokens = 8;
  Engine engine = make_engine(GetParam(), scheduler);
  std::vector<int32_t> prompt(30);
  std::iota(prompt.begin(), prompt.end(), 0);
  Request scored = token_request(prompt, 1);
  scored.sampling.prompt_logprobs = 0;
  const std::vector<RequestOutput> outputs = engine.generate({scored, scored});
  for (const RequestOutput& output : outputs) {
    ASSERT_EQ(output.prompt_logprobs.size(), 29u);
    for (size_t i = 0; i < 29; ++i) EXPECT_EQ(output.prompt_logprobs[i].chosen.token_id, prompt[i + 1]);
  }
}

// As the sampler answers for a row whose logits hold NaN.
TEST_P(Task6_1_EngineInFlight, ARequestWithoutAValidTokenEndsWithAnErrorAlone) {
  Engine engine = make_engine(GetParam(), fake_config(), [](const std::vector<int32_t>& ids, int64_t prompt) {
    return ids[0] == 7 && std::ssize(ids) == prompt + 2 ? kInvalidToken : testing::mixed(ids, prompt);
  });
  Request breaks = token_request({7, 8}, 20);
  breaks.sampling.logprobs = 0;
  const std::vector<RequestOutput> outputs = engine.generate({breaks, token_request({1, 2}, 20)});
  const CompletionOutput& broken = outputs[0].completions[0];
  EXPECT_EQ(broken.finish_reason, FinishReason::error);
  EXPECT_FALSE(broken.error.empty());
  EXPECT_EQ(broken.token_ids, expected_tokens({7, 8}, 2));
  EXPECT_EQ(broken.logprobs.size(), 2u);
  EXPECT_EQ(outputs[1].completions[0].token_ids, expected_tokens({1, 2}, 20));
  EXPECT_TRUE(outputs[1].completions[0].error.empty());
  EXPECT_FALSE(engine.dead());
  EXPECT_EQ(engine.metrics().num_requests_failed, 1);
  testing::expect_books_closed(engine.scheduler());
}

INSTANTIATE_TEST_SUITE_P(Depth, Task6_1_EngineInFlight, ::testing::Values(1, 2, 3));

TEST(Task6_1_Engine, ABadRequestIsNamedAndLeavesNothingBehind) {
  Engine engine = make_engine();
  const auto message = [&](const Request& bad) -> std::string {
    try {
      engine.add_request(bad);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message(token_request({}, 4)).find("empty"), std::string::npos);
  EXPECT_NE(message(token_request({1, kFakeVocab}, 4)).find("1000"), std::string::npos);
  EXPECT_NE(message(token_request({1, -1}, 4)).find("-1"), std::string::npos);
  EXPECT_NE(message(token_request(std::vector<int32_t>(64, 1), 4)).find("64"), std::string::npos);
  EXPECT_NE(message(token_request({1}, 0)).find("max_tokens"), std::string::npos);
  Request text;
  text.prompt = "no tokenizer";
  EXPECT_NE(message(text).find("tokenizer"), std::string::npos);
  Request stop = token_request({1}, 4);
  stop.sampling.stop = {"x"};
  EXPECT_NE(message(stop).find("tokenizer"), std::string::npos);
  Request many = token_request({1}, 4);
  many.sampling.n = 1000000000;
  EXPECT_NE(message(many).find("n"), std::string::npos);
  Request logged = token_request({1}, 4);
  for (const int64_t wanted : {int64_t{-1}, fake_config().max_logprobs + 1}) {
    logged.sampling.prompt_logprobs = wanted;
    EXPECT_NE(message(logged).find("--max-logprobs"), std::string::npos) << message(logged);
  }
  logged.sampling.prompt_logprobs = fake_config().max_logprobs;
  EXPECT_NO_THROW(engine.prepare(logged));
  EXPECT_FALSE(engine.has_unfinished());

  EXPECT_THROW(engine.generate({token_request({1, 2}, 4), token_request({}, 4)}), Error);
  EXPECT_FALSE(engine.has_unfinished());
  EXPECT_EQ(engine.generate({token_request({1, 2}, 4)})[0].completions[0].token_ids,
            expected_tokens({1, 2}, 4));
}

TEST(Task6_1_Engine, IdsOfTheCallerAreKeptAndNoTwoLivingOnesAreEqual) {
  Engine engine = make_engine();
  EXPECT_EQ(engine.add_request(token_request({1, 2}, 4, "0")), "0");
  EXPECT_NE(engine.add_request(token_request({1, 2}, 4)), "0");
  try {
    engine.add_request(token_request({3}, 4, "0"));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("request_id 0"), std::string::npos) << error.what();
  }
  engine.abort("0");
  // Its output has not been handed out, so a second one could be taken for it.
  EXPECT_THROW(engine.add_request(token_request({3}, 4, "0")), Error);
  engine.step();
  EXPECT_EQ(engine.add_request(token_request({3}, 4, "0")), "0");
}

TEST(Task6_1_Engine, ARequestThatCanNeverFitIsRefused) {
  SchedulerConfig scheduler = fake_config();
  scheduler.batch.num_kv_blocks = 4;  // 16 tokens
  Engine engine = make_engine(1, scheduler);
  EXPECT_THROW(engine.add_request(token_request({1, 2, 3, 4}, 14)), Error);
  EXPECT_EQ(engine.generate({token_request({1, 2, 3, 4}, 13)})[0].completions[0].token_ids.size(), 13u);
}

TEST(Task6_1_Engine, CountsCachedTokensAndSteps) {
  Engine engine = make_engine();
  const std::vector<int32_t> prompt(21, 7);
  EXPECT_EQ(engine.generate({token_request(prompt, 3)})[0].metrics.num_cached_tokens, 0);
  const RequestOutput warm = engine.generate({token_request(prompt, 3)})[0];
  EXPECT_EQ(warm.metrics.num_cached_tokens, 20);
  EXPECT_EQ(warm.metrics.num_prompt_tokens, 21);
  EXPECT_EQ(engine.metrics().num_steps, 6);
  EXPECT_EQ(engine.metrics().num_tokens, 21 + 2 + 1 + 2);
  EXPECT_GT(engine.metrics().peak_kv_blocks, 5);
  EXPECT_GE(warm.metrics.time_to_first_token, warm.metrics.queue_seconds);

  Request several = token_request(std::vector<int32_t>(21, 8), 3);
  several.sampling.n = 2;
  EXPECT_EQ(engine.generate({several})[0].metrics.num_cached_tokens, 0)
      << "of completion 0; what the other one shares with it was computed for this request";
}

TEST(Task6_1_Engine, WhatItServesIsObserved) {
  Engine engine = make_engine();
  Request several = token_request({1, 2, 3}, 6);
  several.sampling.n = 2;
  engine.generate({token_request(std::vector<int32_t>(21, 7), 3), several});
  const ServingMetrics& serving = engine.metrics().serving;
  const auto count_of = [](const auto& histogram) {
    return std::accumulate(histogram.counts.begin(), histogram.counts.end(), int64_t{0});
  };
  EXPECT_EQ(count_of(serving.step_tokens), engine.metrics().num_steps) << "on_step, once for each step";
  EXPECT_DOUBLE_EQ(serving.step_tokens.sum, static_cast<double>(engine.metrics().num_tokens));
  EXPECT_EQ(count_of(serving.time_to_first_token), 2) << "on_tokens, before the timer hears of them";
  EXPECT_EQ(count_of(serving.inter_token_latency), 2 + 5 + 5);
  EXPECT_EQ(serving.num_prompt_tokens, 21 + 3);
  EXPECT_EQ(serving.num_generation_tokens, 3 + 6 + 6);
  EXPECT_EQ(count_of(serving.end_to_end), 2) << "on_ended, with the metrics of the request filled";
  EXPECT_GT(serving.end_to_end.sum, 0.0);
  EXPECT_EQ(serving.num_completions_ended[static_cast<size_t>(FinishReason::length)], 3);
  EXPECT_EQ(count_of(serving.request_n), 2);
}

}  // namespace
}  // namespace ladder
