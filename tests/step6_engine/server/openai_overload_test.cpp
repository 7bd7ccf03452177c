// When more comes than can be served, when the engine fails, and when a client goes away: over an executor without a
// model, so that the moment is the test's choice.
#include <atomic>
#include <stdexcept>

#include "step2_model/tokenizer/unicode.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/server/openai_fixture.h"

namespace ladder {
namespace {

using testing::FakeExchange;

const std::string kPath = "/v1/completions";

struct FakeServer {
  explicit FakeServer(EngineClientOptions options = {}, testing::FakeExecutor::Fault fault = {})
      : client(std::make_unique<Engine>(
                   std::make_unique<testing::FakeExecutor>(testing::mixed, 1, std::move(fault)),
                   testing::fake_config(), nullptr),
               options) {
    auto model = std::make_shared<ServedModel>();
    model->names = {"fake"};
    model->max_model_len = testing::fake_config().batch.max_model_len;
    model->vocab_size = testing::kFakeVocab;
    model->folder = "/a/folder";
    add_openai_routes(router, client, model);
  }
  // Hands it to the route and returns at once.
  std::shared_ptr<FakeExchange> start(const std::string& body) {
    auto exchange = FakeExchange::post(kPath, body);
    router.find("POST", kPath)->handler(exchange);
    return exchange;
  }
  // Until the loop is done with all requests. The blocks are told at the end of its turn, and so last.
  void wait_until_idle() {
    const auto is_idle = [this] {
      const EngineStats stats = client.stats();
      return stats.num_requests == 0 && stats.scheduler.num_used_blocks == 0;
    };
    for (int i = 0; i < 6000 && !is_idle(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(is_idle());
  }

  ThreadEngineClient client;
  Router router;
};

void expect_full(const FakeExchange& exchange) {
  EXPECT_EQ(exchange.head.status, 429) << exchange.body();
  EXPECT_EQ(exchange.header("retry-after"), "1");
  EXPECT_EQ(Json::parse(exchange.body())["error"]["code"], 429);
}

TEST(Task6_7_Overload, AFullQueueAnswers429BeforeTheBodyIsLookedAt) {
  FakeServer server({.max_num_queued_reqs = 2});
  server.client.pause();
  const auto first = server.start(R"({"prompt":[1,2],"max_tokens":3})");
  const auto second = server.start(R"({"prompt":[1,3],"max_tokens":3,"stream":true})");
  EXPECT_FALSE(first->ended());
  for (const std::string body : {R"({"prompt":[1,4]})", "this is not looked at"}) {
    const auto refused = server.start(body);
    ASSERT_TRUE(refused->ended());
    expect_full(*refused);
  }
  server.client.resume();
  first->run();
  second->run();
  EXPECT_EQ(first->head.status, 200);
  EXPECT_EQ(second->head.status, 200);
  const auto later = server.start(R"({"prompt":[1,4]})");
  later->run();
  EXPECT_EQ(later->head.status, 200);
}

TEST(Task6_7_Overload, AQueueIsBoundedByTokensToo) {
  FakeServer server({.max_num_queued_tokens = 10});
  server.client.pause();
  const auto first = server.start(R"({"prompt":[1,2,3,4,5,6,7,8],"max_tokens":3})");
  const auto second = server.start(R"({"prompt":[1,2,3,4,5,6,7,9],"max_tokens":3})");
  for (int i = 0; i < 2; ++i) expect_full(*server.start(R"({"prompt":[1]})"));
  server.client.resume();
  first->run();
  second->run();
  const auto later = server.start(R"({"prompt":[1]})");
  later->run();
  EXPECT_EQ(later->head.status, 200);
}

TEST(Task6_7_Overload, AListOfPromptsThatDoesNotFitLeavesNothingBehind) {
  FakeServer server({.max_num_queued_reqs = 2});
  server.client.pause();
  expect_full(*server.start(R"({"prompt":[[1],[2],[3],[4]],"max_tokens":3})"));
  server.client.resume();
  server.wait_until_idle();
}

TEST(Task6_7_Overload, AFailureIsAnErrorWithoutTheEnginesWords) {
  for (const bool streaming : {false, true}) {
    FakeServer server({}, [](std::string_view call, int64_t) {
      if (call == "collect") throw std::runtime_error("fault in /a/folder/secret.cu at 0x7f00");
    });
    const auto failed = server.start(fmt::format(R"({{"prompt":[1,2],"stream":{}}})", streaming));
    failed->run();
    EXPECT_EQ(failed->head.status, 500) << "nothing was sent before";
    EXPECT_EQ(Json::parse(failed->body())["error"]["code"], 500);
    const auto refused = server.start(R"({"prompt":[1]})");
    EXPECT_EQ(refused->head.status, 503) << refused->body();
    for (const auto& exchange : {failed, refused}) {
      EXPECT_EQ(exchange->body().find("secret"), std::string::npos) << exchange->body();
      EXPECT_EQ(exchange->body().find("0x7f"), std::string::npos) << exchange->body();
    }
  }
}

// The first token is out when the engine fails: an event tells, and the stream has its end.
TEST(Task6_7_Overload, AFailureWithinAStreamIsAnEventAndTheEnd) {
  std::atomic<bool> broken = false;
  std::mutex gate;
  FakeServer server({}, [&](std::string_view call, int64_t step) {
    if (call != "submit" || step < 3) return;
    std::lock_guard wait(gate);
    if (broken) throw std::runtime_error("fault");
  });
  std::unique_lock hold(gate);
  const auto stream = server.start(R"({"prompt":[1,3],"max_tokens":50,"stream":true})");
  while (stream->pieces.empty()) stream->run_once();
  broken = true;
  hold.unlock();
  stream->run();
  const std::string body = stream->body();
  EXPECT_EQ(stream->head.status, 200);
  EXPECT_NE(body.find("data: {\"error\":{\"message\":"), std::string::npos) << body;
  EXPECT_TRUE(body.ends_with("\n\ndata: [DONE]\n\n")) << body;
}

TEST(Task6_7_Overload, AServerThatStopsAnswers503) {
  FakeServer server;
  server.client.stop();
  const auto refused = server.start(R"({"prompt":[1]})");
  EXPECT_EQ(refused->head.status, 503);
  EXPECT_EQ(Json::parse(refused->body())["error"]["type"], "ServiceUnavailableError");
}

TEST(Task6_7_Overload, AClientThatGoesAwayGivesItsBlocksBack) {
  FakeServer server;
  for (const bool streaming : {false, true}) {
    server.client.pause();
    const auto exchange = server.start(
        fmt::format(R"({{"prompt":[[1,2,3],[4,5,6]],"max_tokens":50,"n":2,"stream":{}}})", streaming));
    EXPECT_EQ(server.client.stats().num_requests, 2);
    exchange->drop();
    server.client.resume();
    server.wait_until_idle();
  }
}

// What was not read is merged: a reader that comes late gets all of it in one piece.
TEST(Task6_7_Overload, ALateReaderGetsFewerChunks) {
  FakeServer server;
  const auto exchange = server.start(
      R"({"prompt":[1,2,3],"max_tokens":50,"ignore_eos":true,"stream":true,"return_token_ids":true,)"
      R"("stream_options":{"include_usage":true}})");
  server.wait_until_idle();
  exchange->run();
  EXPECT_EQ(exchange->pieces.size(), 1u);
  const std::string body = exchange->body();
  const Json chunk = Json::parse(body.substr(6, body.find("\n\n") - 6));
  EXPECT_EQ(chunk["choices"][0]["token_ids"], testing::expected_tokens({1, 2, 3}, 50));
  EXPECT_EQ(chunk["choices"][0]["prompt_token_ids"], (std::vector<int32_t>{1, 2, 3}));
  EXPECT_NE(body.find("\"completion_tokens\":50"), std::string::npos);
}

using Task6_7_Text = testing::OpenAi;

// At this temperature any token may come, halves of characters among them.
TEST_F(Task6_7_Text, NoPieceSplitsACharacter) {
  Request request;
  request.prompt = "One day";
  request.sampling.max_tokens = 80;
  request.sampling.temperature = 50.0;
  request.sampling.ignore_eos = true;
  request.sampling.skip_special_tokens = false;
  for (const uint64_t seed : {1u, 2u}) {
    request.sampling.seed = seed;
    const auto exchange =
        post(kPath, fmt::format(R"({{"prompt":"One day","max_tokens":80,"temperature":50,"seed":{},)"
                                R"("ignore_eos":true,"skip_special_tokens":false,"stream":true}})",
                                seed));
    for (const std::string& piece : exchange->pieces)
      EXPECT_EQ(utf8_valid_prefix(piece), static_cast<int64_t>(piece.size()));
    std::string text;
    for (const Json& chunk : events(*exchange)) text += chunk["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(text, *generated(request).completions[0].text);
  }
}

}  // namespace
}  // namespace ladder
