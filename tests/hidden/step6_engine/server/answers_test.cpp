// Task 6.7: chunks of random updates, and answers of an engine whose tokens are known.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "step2_model/json.h"
#include "step6_engine/server/openai/chunk_writer.h"
#include "step6_engine/server/openai/openai_routes.h"
#include "step6_engine/thread_engine_client.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/server/fake_exchange.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::FakeExchange;
using testing::Random;

// All events of a stream but the last, which must be [DONE].
std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> events;
  size_t begin = 0;
  while (begin < body.size()) {
    const size_t end = body.find("\n\n", begin);
    const std::string event = body.substr(begin, end - begin);
    begin = end == body.npos ? body.size() : end + 2;
    if (event == "data: [DONE]") break;
    EXPECT_TRUE(event.starts_with("data: ") && end != body.npos) << event;
    events.push_back(Json::parse(event.substr(std::min<size_t>(6, event.size())), nullptr, false));
    EXPECT_TRUE(events.back().is_object()) << event;
  }
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << body.substr(0, 300);
  EXPECT_EQ(begin, body.size()) << "something stands behind [DONE]";
  return events;
}

struct Choice {
  std::string text;
  std::vector<int32_t> token_ids;
  int64_t num_updates = 0;  // with tokens or the end
  FinishReason reason = FinishReason::none;
};

std::string random_text(Random& random) {
  std::string text;
  for (int64_t i = random.integer(0, 4); i > 0; --i)
    text += random.one_of<std::string>({"a", " day", "\n", "\"", "\\", "ä", "€", "\x01", "</s>"});
  return text;
}

TEST(Hidden6_7_Chunks, TellEveryUpdateOfEveryChoice) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    AnswerPlan plan;
    plan.api = random.one_of<Api>({Api::completions, Api::chat});
    const bool chat = plan.api == Api::chat;
    plan.id = "id-1";
    auto model = std::make_shared<ServedModel>();
    model->names = {"m"};
    plan.model = model;
    plan.n = random.integer(1, 4);
    plan.stream = true;
    plan.include_usage = random.integer(0, 1) == 0;
    plan.continuous_usage = plan.include_usage && random.integer(0, 1) == 0;
    plan.return_token_ids = random.integer(0, 1) == 0;
    plan.only_echo = !chat && random.integer(0, 4) == 0;
    int64_t num_prompt_tokens = 0, num_cached = 0, num_tokens = 0;
    for (int64_t i = random.integer(1, chat ? 1 : 4); i > 0; --i) {
      AnswerPlan::Prompt prompt{random.integer(1, 50), random_text(random), {}};
      prompt.token_ids = {static_cast<int32_t>(i), 7};
      num_prompt_tokens += prompt.num_tokens;
      plan.prompts.push_back(prompt);
    }
    ChunkWriter writer(plan);
    std::vector<Choice> choices(plan.prompts.size() * static_cast<size_t>(plan.n));
    std::string body;
    for (size_t open = choices.size(); open > 0;) {
      const auto index = static_cast<size_t>(random.integer(0, std::ssize(choices) - 1));
      Choice& choice = choices[index];
      if (choice.reason != FinishReason::none) continue;
      CompletionUpdate update;
      update.completion = static_cast<int64_t>(index) % plan.n;
      update.text = random_text(random);
      for (int64_t i = random.integer(0, 3); i > 0; --i)
        update.token_ids.push_back(static_cast<int32_t>(random.integer(0, 999)));
      if (random.integer(0, 4) == 0)
        update.finish_reason = random.one_of<FinishReason>({FinishReason::stop, FinishReason::length});
      if (update.token_ids.empty() && update.finish_reason == FinishReason::none) update.text.clear();
      const size_t before = body.size();
      writer.write(body, static_cast<int64_t>(index) / plan.n, update);
      if (update.token_ids.empty() && update.finish_reason == FinishReason::none) {
        EXPECT_EQ(body.size(), before) << "a chunk of nothing";
        continue;
      }
      EXPECT_TRUE(body.ends_with("\n\n"));
      ++choice.num_updates;
      choice.text += update.text;
      choice.token_ids.insert(choice.token_ids.end(), update.token_ids.begin(), update.token_ids.end());
      choice.reason = update.finish_reason;
      open -= choice.reason != FinishReason::none;
      if (!plan.only_echo) num_tokens += std::ssize(update.token_ids);
    }
    for (size_t i = 0; i < plan.prompts.size(); ++i) {
      RequestOutput output;
      output.metrics.num_cached_tokens = random.integer(0, 9);
      num_cached += output.metrics.num_cached_tokens;
      writer.count(output);
    }
    writer.finish(body);

    std::vector<Json> events = events_of(body);
    ASSERT_FALSE(events.empty());
    if (plan.include_usage) {
      EXPECT_EQ(events.back()["choices"], Json::array());
      EXPECT_EQ(events.back()["usage"]["prompt_tokens"], num_prompt_tokens);
      EXPECT_EQ(events.back()["usage"]["completion_tokens"], num_tokens);
      EXPECT_EQ(events.back()["usage"]["total_tokens"], num_prompt_tokens + num_tokens);
      EXPECT_EQ(events.back()["usage"]["prompt_tokens_details"]["cached_tokens"], num_cached);
      events.pop_back();
    }
    std::vector<Choice> seen(choices.size());
    for (const Json& event : events) {
      ASSERT_EQ(event["choices"].size(), 1u) << event;
      const Json& told = event["choices"][0];
      const auto index = told["index"].get<size_t>();
      ASSERT_LT(index, seen.size());
      Choice& choice = seen[index];
      const AnswerPlan::Prompt& prompt = plan.prompts[index / static_cast<size_t>(plan.n)];
      EXPECT_EQ(choice.reason, FinishReason::none) << "a chunk behind the end";
      const bool first = choice.num_updates++ == 0;
      const std::string text = (chat ? told["delta"]["content"] : told["text"]).get<std::string>();
      if (chat) {
        EXPECT_EQ(told["delta"].contains("role"), first) << "the role comes first, and once";
        if (first) {
          EXPECT_EQ(text, prompt.echo);
        }
      }
      choice.text += text;
      if (plan.return_token_ids) {
        EXPECT_EQ((chat ? event : told).contains("prompt_token_ids"), first) << event;
        if (!chat || !first)
          for (const Json& id : told["token_ids"]) choice.token_ids.push_back(id);
      }
      if (!told["finish_reason"].is_null())
        choice.reason = told["finish_reason"] == "stop" ? FinishReason::stop : FinishReason::length;
      if (plan.continuous_usage) {
        EXPECT_EQ(event["usage"]["prompt_tokens"], prompt.num_tokens);
        if (plan.return_token_ids) {
          EXPECT_EQ(event["usage"]["completion_tokens"], choice.token_ids.size()) << "tokens so far";
        }
      } else if (plan.include_usage) {
        EXPECT_TRUE(!event.contains("usage") || event["usage"].is_null());
      }
    }
    for (size_t i = 0; i < choices.size(); ++i) {
      const AnswerPlan::Prompt& prompt = plan.prompts[i / static_cast<size_t>(plan.n)];
      EXPECT_EQ(seen[i].text, prompt.echo + (plan.only_echo ? "" : choices[i].text)) << "choice " << i;
      EXPECT_EQ(seen[i].reason, choices[i].reason);
      EXPECT_EQ(seen[i].num_updates, choices[i].num_updates + (chat ? 1 : 0)) << "chunks of choice " << i;
      if (plan.return_token_ids) {
        EXPECT_EQ(seen[i].token_ids, plan.only_echo ? std::vector<int32_t>() : choices[i].token_ids);
      }
    }
  }
}

struct Served {
  explicit Served(testing::FakeExecutor::Fault fault = {}, int depth = 1)
      : client(std::make_unique<Engine>(
            std::make_unique<testing::FakeExecutor>(testing::mixed, depth, std::move(fault)),
            testing::fake_config(), nullptr)) {
    auto model = std::make_shared<ServedModel>();
    model->names = {"fake"};
    model->max_model_len = testing::fake_config().batch.max_model_len;
    model->vocab_size = testing::kFakeVocab;
    add_openai_routes(router, client, model);
  }
  std::shared_ptr<FakeExchange> start(const Json& body) {
    auto exchange = FakeExchange::post("/v1/completions", body.dump());
    router.find("POST", "/v1/completions")->handler(exchange);
    return exchange;
  }

  ThreadEngineClient client;
  Router router;
};

TEST(Hidden6_7_Answers, PromptsAndChoicesWholeAndStreamed) {
  Random random;
  SCOPED_TRACE(random.describe());
  Served served({}, static_cast<int>(random.integer(1, 2)));
  for (int round = 0; round < 60; ++round) {
    std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(random.integer(1, 4)));
    size_t num_prompt_tokens = 0;
    for (std::vector<int32_t>& prompt : prompts) {
      for (int64_t i = random.integer(1, 12); i > 0; --i)
        prompt.push_back(static_cast<int32_t>(random.integer(0, 899)));
      num_prompt_tokens += prompt.size();
    }
    const int64_t length = random.integer(1, 40);
    const auto n = static_cast<size_t>(random.integer(1, 3));
    const bool stream = random.integer(0, 1) == 0;
    Json body = {{"prompt", prompts}, {"n", n},           {"max_tokens", length},    {"ignore_eos", true},
                 {"seed", 1},         {"stream", stream}, {"return_token_ids", true}};
    if (stream) body["stream_options"] = {{"include_usage", true}};
    const auto exchange = served.start(body);
    while (!exchange->ended()) {
      if (random.integer(0, 3) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, 500)));
      ASSERT_TRUE(exchange->run_once()) << "nothing wakes the answer";
    }
    ASSERT_EQ(exchange->head.status, 200) << exchange->body();
    std::vector<std::vector<int32_t>> tokens(prompts.size() * n);
    std::vector<int> ends(tokens.size(), 0);
    Json usage;
    const auto add = [&](const Json& choice) {
      auto& list = tokens.at(choice["index"].get<size_t>());
      for (const Json& id : choice["token_ids"]) list.push_back(id);
      ends[choice["index"].get<size_t>()] += !choice["finish_reason"].is_null();
    };
    if (stream) {
      for (const Json& event : events_of(exchange->body())) {
        for (const Json& choice : event["choices"]) add(choice);
        usage = event["usage"];
      }
    } else {
      const Json whole = Json::parse(exchange->body());
      for (const Json& choice : whole["choices"]) add(choice);
      usage = whole["usage"];
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(tokens[i], testing::expected_tokens(prompts[i / n], length)) << "choice " << i;
      EXPECT_EQ(ends[i], 1) << "ends of choice " << i;
    }
    EXPECT_EQ(usage["completion_tokens"], static_cast<int64_t>(tokens.size()) * length);
    EXPECT_EQ(usage["prompt_tokens"], num_prompt_tokens);
  }
}

// Before anything was sent it is a 500, afterwards an event, whichever step it is.
TEST(Hidden6_7_Answers, AFailureEndsTheAnswerOnce) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 20; ++round) {
    const int64_t fatal = random.integer(0, 10);
    Served served([fatal](std::string_view call, int64_t step) {
      if (call == "collect" && step == fatal) throw std::runtime_error("fault");
    });
    const bool stream = random.integer(0, 1) == 0;
    served.client.pause();  // or it may fail before the second prompt is there
    const auto exchange =
        served.start({{"prompt", {{1, 2}, {3}}}, {"max_tokens", 40}, {"n", 2}, {"stream", stream}});
    served.client.resume();
    exchange->run();
    if (exchange->head.status == 500) {
      EXPECT_EQ(Json::parse(exchange->body())["error"]["code"], 500);
      continue;
    }
    EXPECT_TRUE(stream);
    const std::vector<Json> events = events_of(exchange->body());
    ASSERT_GT(events.size(), 1u);
    for (const Json& event : events) EXPECT_EQ(event.contains("error"), &event == &events.back()) << event;
  }
}

}  // namespace
}  // namespace ladder
