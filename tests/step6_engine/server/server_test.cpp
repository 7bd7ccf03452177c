// The server over an engine: /health that means progress, and an end without loose ones.
#include "step6_engine/server/server.h"

#include <thread>

#include "step6_engine/thread_engine_client.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/server/http_routes.h"

namespace ladder::testing {
namespace {

// What the server sees of an engine, as a test sets it.
class ScriptedClient final : public EngineClient {
 public:
  RequestStream submit(const Request&, std::function<void()>) override { throw EngineUnavailable("none"); }
  void abort(const RequestId&) override {}
  EngineStats stats() const override {
    std::lock_guard lock(mutex);
    ++num_looks;
    return state;
  }
  void pause() override {}
  void resume() override {}
  bool reset_prefix_cache() override { return false; }
  void stop(std::chrono::milliseconds) override {
    std::lock_guard lock(mutex);
    state.stopped = true;
  }
  template <class Change>
  void set(Change change) {
    std::lock_guard lock(mutex);
    change(state);
  }

  mutable std::mutex mutex;
  mutable std::atomic<int> num_looks = 0;
  EngineStats state;
};

ServerOptions server_options() {
  ServerOptions options;
  options.http = test_options();
  options.stuck_after = 400ms;
  return options;
}

std::string answer_to(uint16_t port, const std::string& request) {
  RawClient client(port);
  client.send(request);
  return client.answer();
}

int health_of(const Server& server) {
  return status_of(answer_to(server.port(), get("/health")));
}

// Whether /health comes to say this. On a busy machine the thread that looks, or this one, may come too late, and the
// engine seem stuck for a moment: what is wrong stays so.
bool becomes(const Server& server, int status) {
  return eventually([&] { return health_of(server) == status; });
}

TEST(Task6_6_Health, ProgressIsHealthAndNothingElse) {
  ScriptedClient client;
  ServerOptions options = server_options();
  options.stuck_after = 1s;
  Server server(options, client);
  const auto long_enough = 2 * options.stuck_after;
  EXPECT_EQ(health_of(server), 200);
  std::this_thread::sleep_for(long_enough);
  EXPECT_TRUE(becomes(server, 200)) << "idle for long";

  client.set([](EngineStats& stats) { stats.num_requests = 1; });
  EXPECT_EQ(health_of(server), 200) << "a request has just come";
  const auto step_and_look = [&] {
    client.set([](EngineStats& stats) { ++stats.metrics.num_steps; });
    usleep(10'000);
    return health_of(server) == 200;
  };
  for (const auto end = std::chrono::steady_clock::now() + long_enough;
       std::chrono::steady_clock::now() < end;)
    ASSERT_TRUE(eventually(step_and_look)) << "it runs";
  EXPECT_TRUE(becomes(server, 503)) << "no step ends any more";
  EXPECT_NE(answer_to(server.port(), get("/ping")).find("stuck"), std::string::npos);
  EXPECT_EQ(status_of(answer_to(server.port(), post("/ping", ""))), 503);
  EXPECT_TRUE(eventually(step_and_look)) << "it goes on";
  client.set([](EngineStats& stats) { stats.paused = true; });
  std::this_thread::sleep_for(long_enough);
  EXPECT_TRUE(becomes(server, 200)) << "paused on purpose";
}

TEST(Task6_6_Health, ADeadEngineIsNotHealthy) {
  ScriptedClient client;
  ServerOptions options = server_options();
  std::mutex mutex;
  std::vector<std::string> deaths;
  options.on_engine_death = [&](const std::string& error) {
    std::lock_guard lock(mutex);
    deaths.push_back(error);
  };
  Server server(options, client);
  client.set([](EngineStats& stats) { stats.error = "/home/user/model at 0x7fff1234"; });
  EXPECT_TRUE(becomes(server, 503));
  const std::string answer = answer_to(server.port(), get("/health"));
  EXPECT_EQ(answer.find("0x"), answer.npos) << "its reason is for the owner";
  EXPECT_EQ(answer.find("/home"), answer.npos);
  const int looks = client.num_looks;
  EXPECT_TRUE(eventually([&] { return client.num_looks >= looks + 3; }));  // it tells once
  std::lock_guard lock(mutex);
  EXPECT_EQ(deaths, std::vector<std::string>{"/home/user/model at 0x7fff1234"});
}

TEST(Task6_6_Health, AnEngineThatDoesNotEvenTellIsNotHealthy) {
  ScriptedClient client;
  Server server(server_options(), client);
  {
    std::lock_guard lock(client.mutex);  // stats() hangs
    EXPECT_TRUE(becomes(server, 503));
  }
  EXPECT_TRUE(becomes(server, 200));
}

TEST(Task6_6_Health, AProbeAsksTheEngineNothing) {
  ScriptedClient client;
  ServerOptions options = server_options();
  options.stuck_after = 60s;  // looks at most twice a second
  Server server(options, client);
  const int before = client.num_looks;
  for (int i = 0; i < 200; ++i) health_of(server);
  EXPECT_LT(client.num_looks - before, 100);
}

TEST(Task6_6_Server, EveryRouteIsOpenByListOrNeedsAKey) {
  ScriptedClient client;
  ServerOptions options = server_options();
  options.http.api_keys = {"key"};
  std::vector<Route> routes;
  Server server(options, client, [&](Router& router) { routes = router.routes(); });
  const std::vector<std::string> open = {"/health", "/ping"};
  ASSERT_GE(routes.size(), 4u);
  for (const Route& route : routes) {
    const bool is_open = std::find(open.begin(), open.end(), route.path) != open.end();
    const std::string request =
        route.method + " " + route.path + " HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    EXPECT_EQ(status_of(answer_to(server.port(), request)) == 401, !is_open)
        << route.method << " " << route.path;
  }
}

TEST(Task6_6_Server, VersionAndHealthLookAsVllmsDo) {
  ScriptedClient client;
  Server server(server_options(), client);
  EXPECT_EQ(body_of(answer_to(server.port(), get("/version"))),
            "{\"version\":\"" + std::string(kLadderVersion) + "\"}");
  EXPECT_EQ(body_of(answer_to(server.port(), get("/health"))), "");
}

// A stream of tokens over a real client, as an endpoint would make it.
class TokenAnswer final : public HttpAnswer {
 public:
  TokenAnswer(RequestStream stream, std::atomic<int>& num_destroyed)
      : stream_(std::move(stream)), num_destroyed_(num_destroyed) {}
  ~TokenAnswer() override {
    { const RequestStream dropped = std::move(stream_); }  // before it is told
    ++num_destroyed_;
  }
  void advance(HttpExchange& exchange) override {
    if (!began_) exchange.begin({.content_type = "text/event-stream"});
    began_ = true;
    while (auto update = stream_.next(std::chrono::nanoseconds(0))) {
      for (const CompletionUpdate& completion : update->updates)
        for (const int32_t id : completion.token_ids) exchange.write("data: " + std::to_string(id) + "\n\n");
      if (!update->output) continue;
      const bool aborted = update->output->completions[0].finish_reason == FinishReason::abort;
      exchange.write(aborted ? "data: aborted\n\n" : "data: [DONE]\n\n");
      return exchange.finish();
    }
  }

 private:
  RequestStream stream_;
  std::atomic<int>& num_destroyed_;
  bool began_ = false;
};

struct TokenServer {
  std::unique_ptr<ThreadEngineClient> client;
  std::atomic<int> num_destroyed = 0;
  std::unique_ptr<Server> server;

  explicit TokenServer(std::chrono::microseconds per_step) {
    auto next = [per_step](const std::vector<int32_t>& ids, int64_t position) {
      std::this_thread::sleep_for(per_step);
      return mixed(ids, position);
    };
    client = std::make_unique<ThreadEngineClient>(
        std::unique_ptr<Engine>(new Engine(make_engine(1, fake_config(), next))));
    server = std::make_unique<Server>(server_options(), *client, [this](Router& router) {
      router.add({"GET", "/tokens", Access::with_key, RunsOn::worker,
                  [this](std::shared_ptr<HttpExchange> exchange) {
                    Request request = token_request({1, 2, 3}, 60);
                    request.sampling.ignore_eos = true;
                    RequestStream stream = client->submit(request, exchange->waker());
                    exchange->hold(std::make_unique<TokenAnswer>(std::move(stream), num_destroyed));
                  }});
    });
  }
};

TEST(Task6_6_Server, TokensArriveAsTheyAreMade) {
  TokenServer test(0us);
  std::string expected;
  for (const int32_t id : expected_tokens({1, 2, 3}, 60)) expected += "data: " + std::to_string(id) + "\n\n";
  RawClient client(test.server->port());
  client.send("GET /tokens HTTP/1.0\r\n\r\n");
  EXPECT_EQ(body_of(client.rest()), expected + "data: [DONE]\n\n");
}

TEST(Task6_6_Server, AClientThatGoesAwayGivesItsBlocksBack) {
  TokenServer test(50ms);
  RawClient client(test.server->port());
  client.send(get("/tokens"));
  ASSERT_TRUE(client.receive_until("data: "));
  // Numbers come out after the tokens of their step: a reader may be a moment ahead of them.
  EXPECT_TRUE(eventually([&] { return test.client->stats().scheduler.num_used_blocks > 0; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return test.num_destroyed == 1; }));
  const int64_t steps = test.client->stats().metrics.num_steps;
  EXPECT_TRUE(eventually([&] { return test.client->stats().scheduler.num_used_blocks == 0; }));
  EXPECT_LE(test.client->stats().metrics.num_steps - steps, 2);
}

TEST(Task6_6_Server, StopLetsAnAnswerEndWithinItsTime) {
  TokenServer test(2ms);
  RawClient client(test.server->port());
  client.send(get("/tokens"));
  ASSERT_TRUE(client.receive_until("data: "));
  test.server->stop(20s);
  EXPECT_TRUE(client.receive_until("data: [DONE]\n\n\r\n0\r\n\r\n"));
  EXPECT_EQ(test.client->stats().num_requests, 0);
}

TEST(Task6_6_Server, StopEndsWhatTakesTooLong) {
  TokenServer test(100ms);
  RawClient client(test.server->port());
  client.send(get("/tokens"));
  ASSERT_TRUE(client.receive_until("data: "));
  const auto begin = std::chrono::steady_clock::now();
  test.server->stop(50ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s) << "all of it would take 6 s";
  EXPECT_TRUE(client.receive_until("data: aborted\n\n")) << client.got();
  EXPECT_EQ(test.client->stats().scheduler.num_used_blocks, 0);
}

}  // namespace
}  // namespace ladder::testing
