// The router tells a prefill and a decode server of a request at the same time, and one of them does what it should not.
#include <gtest/gtest.h>

#include "step8_advanced/disaggregation/router/server/backend.h"
#include "tests/step8_advanced/disaggregation/router/server/asked_router.h"

namespace ladder::testing {
namespace {

using Connection = FakeBackend::Connection;

const std::string kOneEngine = "ladder:num_requests_running{engine=\"0\"} 0\n";

// What only a prefill server's answer can say: who is told of it was told after that answer.
constexpr int kTokens = 7;

// A prefill server that has computed the prompt when `computed` returns.
FakeBackend::Script computes(
    std::string name, std::function<void()> computed = [] {}) {
  return [name, computed](Connection& connection) {
    const Json asked = connection.json();
    computed();
    connection.answer(200, Json{{"choices", Json::array({{{"index", 0}, {"text", "FIRST"}}})},
                                {"kv_transfer_params",
                                 {{"do_remote_prefill", true},
                                  {"remote_engine_id", name},
                                  {"remote_request_id", asked["kv_transfer_params"]["remote_request_id"]},
                                  {"remote_address", "tcp://127.0.0.1:1"},
                                  {"remote_num_tokens", kTokens}}}}
                               .dump());
  };
}

Json transfer_of(const FakeBackend& backend, int64_t index) {
  return backend.request(static_cast<size_t>(index)).value("kv_transfer_params", Json::object());
}

bool is_told_at_once(const Json& transfer) {
  return transfer.contains("remote_engine_id") && !transfer.contains("remote_num_tokens");
}

class Router_AtOnce : public ::testing::Test {
 protected:
  Router_AtOnce() { prefill.set_metrics(kOneEngine); }

  // Asks one request, by whose answer the router knows the engine, and waits until it has heard how many there are.
  void start(RouteServerOptions options) {
    router = std::make_unique<RouteServer>(std::move(options));
    ASSERT_EQ(body_of(ask(*router, body_of_request(false, 100))), kWhole);
    const int checks = prefill.num_checks;
    ASSERT_TRUE(eventually([&] { return prefill.num_checks > checks + 2; }));
  }
  void start() { start(options_of({prefill.url()}, {decode.url()})); }

  // The decode server waits for keys that do not come where it is told at once; else it answers.
  void wait_for_keys() {
    decode.set_script([this](Connection& connection) {
      if (!is_told_at_once(connection.json().value("kv_transfer_params", Json::object())))
        return decodes({"One", " day"})(connection);
      ++num_waiting;
      if (connection.wait_for_close()) ++decode.num_abandoned;
    });
  }

  std::atomic<int> num_waiting = 0;
  FakeBackend prefill{computes("P0")}, decode{decodes({"One", " day"})};
  std::unique_ptr<RouteServer> router;
};

TEST_F(Router_AtOnce, BothServersAreToldOnceItIsKnownWhereThePromptIsRead) {
  start();
  EXPECT_FALSE(is_told_at_once(transfer_of(decode, 0)));
  // Each of them answers when the other one has been asked too.
  prefill.set_script(computes("P0", [&] {
    EXPECT_TRUE(eventually([&] { return decode.num_requests() == prefill.num_requests(); }));
  }));
  decode.set_script([&](Connection& connection) {
    EXPECT_TRUE(eventually([&] { return prefill.num_requests() == decode.num_requests(); }));
    decodes({"One", " day"})(connection);
  });
  for (const bool stream : {false, true}) {
    const std::string answer = ask(*router, body_of_request(stream, stream));
    if (stream)
      EXPECT_EQ(events_of(answer), kStreamed);
    else
      EXPECT_EQ(body_of(answer), kWhole);
  }
  ASSERT_EQ(decode.num_requests(), 3);
  for (int64_t i = 1; i < 3; ++i) {
    const Json told = transfer_of(decode, i);
    EXPECT_TRUE(is_told_at_once(told)) << told;
    EXPECT_EQ(told["do_remote_prefill"], true);
    EXPECT_EQ(told["remote_engine_id"], "P0");
    EXPECT_EQ(told["remote_address"], "tcp://127.0.0.1:1");
    EXPECT_EQ(told["remote_request_id"], transfer_of(prefill, i)["remote_request_id"]);
  }
  EXPECT_EQ(metric(*router, "transfers_total"), 3);
  EXPECT_EQ(metric(*router, "at_once_transfers_total"), 2);
  EXPECT_EQ(metric(*router, "withdrawn_total"), 0);
  EXPECT_EQ(metric(*router, R"(backend_queued_tokens{role="prefill",url=")" + prefill.url() + "\"}"), 0);
}

TEST_F(Router_AtOnce, OneAfterTheOtherWhereItIsAskedFor) {
  RouteServerOptions options = options_of({prefill.url()}, {decode.url()});
  options.limits.prefill_first = true;
  start(std::move(options));
  EXPECT_EQ(body_of(ask(*router, body_of_request(false))), kWhole);
  EXPECT_EQ(transfer_of(decode, 1)["remote_num_tokens"], kTokens);
  EXPECT_EQ(metric(*router, "at_once_transfers_total"), 0);
}

// Which of several engines gets the prompt is known when it answers.
TEST_F(Router_AtOnce, OneAfterTheOtherWhereThereAreSeveralEngines) {
  prefill.set_metrics(kOneEngine + "ladder:num_requests_running{engine=\"1\"} 0\n");
  start();
  EXPECT_EQ(body_of(ask(*router, body_of_request(false))), kWhole);
  EXPECT_EQ(transfer_of(decode, 1)["remote_num_tokens"], kTokens);
}

// A report that does not come says nothing new; when several do not, nothing is known.
TEST_F(Router_AtOnce, StillAtOnceWhereAReportIsMissed) {
  RouteServerOptions options = options_of({prefill.url()}, {decode.url()});
  options.check_interval = 200ms;  // so that what is asked below comes between two reports
  start(std::move(options));
  const int asked = prefill.num_reports_asked;
  prefill.hides_metrics = true;
  ASSERT_TRUE(eventually([&] { return prefill.num_reports_asked > asked; }));
  ask(*router, body_of_request(false));
  EXPECT_TRUE(is_told_at_once(transfer_of(decode, 1)) ||
              prefill.num_reports_asked >= asked + Backend::kMissedChecks);
  ASSERT_TRUE(eventually([&] { return prefill.num_reports_asked > asked + Backend::kMissedChecks; }));
  ask(*router, body_of_request(false, 1));
  EXPECT_EQ(transfer_of(decode, 2)["remote_num_tokens"], kTokens);
  prefill.hides_metrics = false;
  const int checks = prefill.num_checks;
  ASSERT_TRUE(eventually([&] { return prefill.num_checks > checks + 2; }));
  ask(*router, body_of_request(false, 2));
  EXPECT_TRUE(is_told_at_once(transfer_of(decode, 3)));
}

// vLLM's transfers name blocks.
TEST_F(Router_AtOnce, OneAfterTheOtherWhereAnAnswerSaysMoreThanAPlace) {
  prefill.set_script([](Connection& connection) {
    connection.answer(200, R"({"choices":[{"text":"FIRST"}],"kv_transfer_params":{"remote_engine_id":"P0",)"
                           R"("remote_address":"a","remote_block_ids":[7],"remote_request_id":)" +
                               connection.json()["kv_transfer_params"]["remote_request_id"].dump() + "}}");
  });
  start();
  EXPECT_EQ(body_of(ask(*router, body_of_request(false))), kWhole);
  EXPECT_EQ(transfer_of(decode, 1)["remote_block_ids"], Json({7}));
}

// What one that fails does, once the other one waits for it.
TEST_F(Router_AtOnce, WhereThePrefillServerFailsNobodyWaitsForItsKeys) {
  start();
  wait_for_keys();
  int number = 0;
  for (const auto& [what, script] : std::vector<std::pair<const char*, FakeBackend::Script>>{
           {"dies", dies()}, {"busy", says(429)}, {"no completion", [](Connection& connection) {
                                                     connection.answer(200, "<html>");
                                                   }}}) {
    SCOPED_TRACE(what);
    prefill.set_script([&, script = script, number](Connection& connection) {
      EXPECT_TRUE(eventually([&] { return num_waiting > number; }));
      script(connection);
    });
    EXPECT_EQ(events_of(ask(*router, body_of_request(true, number))), kStreamed);
    ++number;
    EXPECT_TRUE(eventually([&] { return decode.num_abandoned == number; })) << "it still waits";
    EXPECT_EQ(transfer_of(decode, decode.num_requests() - 1), Json::object());
    EXPECT_EQ(metric(*router, "withdrawn_total"), number);
    EXPECT_EQ(metric(*router, "fallbacks_total"), number);
    // Who answers there next may be another one: it is learnt anew.
    prefill.set_script(computes("P0"));
    EXPECT_EQ(body_of(ask(*router, body_of_request(false, 50 + number))), kWhole);
    EXPECT_EQ(transfer_of(decode, decode.num_requests() - 1)["remote_num_tokens"], kTokens);
  }
  EXPECT_EQ(metric(*router, "at_once_transfers_total"), 0);
}

TEST_F(Router_AtOnce, WhereThePrefillServerFailsAnotherOneComputesThePrompt) {
  FakeBackend other(computes("P1"));
  start(options_of({prefill.url(), other.url()}, {decode.url()}));
  EXPECT_EQ(body_of(ask(*router, body_of_request(false, 101))), kWhole);
  ASSERT_EQ(other.num_requests(), 1) << "of idle ones the next";
  wait_for_keys();
  prefill.set_script([&](Connection& connection) {
    EXPECT_TRUE(eventually([&] { return num_waiting == 1; }));
    connection.close();
  });
  EXPECT_EQ(body_of(ask(*router, body_of_request(false))), kWhole);
  EXPECT_EQ(other.num_requests(), 2) << "the decode server was told, and has nothing of it";
  EXPECT_EQ(transfer_of(decode, decode.num_requests() - 1)["remote_engine_id"], "P1");
  EXPECT_EQ(metric(*router, "fallbacks_total"), 0);
}

TEST_F(Router_AtOnce, AnEngineThatWasStartedAgainIsNotWaitedFor) {
  start();
  wait_for_keys();
  prefill.set_script(
      computes("P0, again", [&] { EXPECT_TRUE(eventually([&] { return num_waiting == 1; })); }));
  EXPECT_EQ(body_of(ask(*router, body_of_request(false))), kWhole);
  EXPECT_TRUE(eventually([&] { return decode.num_abandoned == 1; })) << "it waits for the one before";
  EXPECT_EQ(transfer_of(decode, 2)["remote_engine_id"], "P0, again");
  EXPECT_EQ(transfer_of(decode, 2)["remote_num_tokens"], kTokens);
  EXPECT_EQ(metric(*router, "withdrawn_total"), 1);
  EXPECT_EQ(metric(*router, "at_once_transfers_total"), 0);
  decode.set_script(decodes({"One", " day"}));
  EXPECT_EQ(body_of(ask(*router, body_of_request(false, 1))), kWhole);
  EXPECT_EQ(transfer_of(decode, 3)["remote_engine_id"], "P0, again");
  EXPECT_TRUE(is_told_at_once(transfer_of(decode, 3)));
}

// Nothing is kept of a prompt whose reader has had all of it, or did not need it.
TEST_F(Router_AtOnce, ADecodeServerGoesOnWhereNothingIsKeptAnyMore) {
  start();
  std::atomic<bool> go_on = false;
  decode.set_script([&](Connection& connection) {
    EXPECT_TRUE(eventually([&] { return go_on.load(); }));
    decodes({"One", " day"})(connection);
  });
  prefill.set_script([&](Connection& connection) {
    EXPECT_TRUE(eventually([&] { return decode.num_requests() == 2; }));
    connection.answer(200, R"({"choices":[{"text":"FIRST"}]})");
  });
  RawClient client(router->port());
  client.send(request_text(body_of_request(false)));
  EXPECT_TRUE(eventually([&] { return metric(*router, "at_once_transfers_total") == 1; }));
  go_on = true;
  EXPECT_EQ(body_of(client.rest()), kWhole);
  EXPECT_EQ(decode.num_requests(), 2);
  EXPECT_EQ(metric(*router, "empty_transfers_total"), 0);
  // It is the same engine all the same.
  prefill.set_script(computes("P0"));
  EXPECT_EQ(body_of(ask(*router, body_of_request(false, 1))), kWhole);
  EXPECT_TRUE(is_told_at_once(transfer_of(decode, 2)));
}

TEST_F(Router_AtOnce, WhereTheDecodeServerFailsNeitherGoesOn) {
  FakeBackend other(decodes({"One", " day"}));
  for (const bool stream : {false, true}) {
    prefill.set_script(computes("P0"));
    for (FakeBackend* server : {&decode, &other}) server->set_script(decodes({"One", " day"}));
    start(options_of({prefill.url()}, {decode.url(), other.url()}));
    const int64_t before = prefill.num_requests() + 1;
    ASSERT_EQ(body_of(ask(*router, body_of_request(false, 101))), kWhole) << "of idle ones the next";
    ASSERT_TRUE(eventually([&] { return prefill.num_requests() == before; })) << "it may hear of it later";
    std::atomic<bool> is_again = false;
    prefill.set_script([&](Connection& connection) {
      if (is_again.exchange(true)) return computes("P0")(connection);
      if (connection.wait_for_close()) ++prefill.num_abandoned;
    });
    // Each when the prefill server has heard of it too.
    decode.set_script([&](Connection& connection) {
      EXPECT_TRUE(eventually([&] { return prefill.num_requests() == before + 1; }));
      says(503)(connection);
    });
    other.set_script([&](Connection& connection) {
      EXPECT_TRUE(eventually([&] { return prefill.num_requests() == before + 2; }));
      decodes({"One", " day"})(connection);
    });
    const std::string answer = ask(*router, body_of_request(stream));
    if (stream)
      EXPECT_EQ(events_of(answer), kStreamed);
    else
      EXPECT_EQ(body_of(answer), kWhole);
    EXPECT_TRUE(eventually([&] { return prefill.num_abandoned == (stream ? 2 : 1); }))
        << "the prompt is still computed for it";
    const int64_t last = prefill.num_requests() - 1;
    EXPECT_NE(transfer_of(prefill, last), transfer_of(prefill, last - 1)) << "a new transfer";
    EXPECT_EQ(transfer_of(other, other.num_requests() - 1)["remote_request_id"],
              transfer_of(prefill, last)["remote_request_id"]);
    EXPECT_EQ(metric(*router, R"(failed_calls_total{role="decode"})"), 1);
  }
}

// The prompt was in its cache, say, or has gone over whole.
TEST_F(Router_AtOnce, APrefillServerThatFailsBehindTheFirstTokenIsNoMatter) {
  start();
  std::atomic<bool> has_failed = false;
  decode.set_script([&](Connection& connection) {
    connection.begin_stream();
    connection.event("first");
    EXPECT_TRUE(eventually([&] { return has_failed.load(); }));
    connection.event("[DONE]");
    connection.end_stream();
  });
  std::atomic<bool> fail = false;
  prefill.set_script([&](Connection& connection) {
    EXPECT_TRUE(eventually([&] { return fail.load(); }));
    connection.close();
  });
  RawClient client(router->port());
  client.send(request_text(body_of_request(true)));
  EXPECT_TRUE(client.receive_until("data: first"));
  fail = true;
  EXPECT_TRUE(eventually([&] { return metric(*router, R"(failed_calls_total{role="prefill"})") == 1; }));
  has_failed = true;
  EXPECT_EQ(events_of(client.rest()), (std::vector<std::string>{"first", "[DONE]"}));
  EXPECT_EQ(decode.num_requests(), 2);
  EXPECT_EQ(metric(*router, "at_once_transfers_total"), 1);
  EXPECT_EQ(metric(*router, R"(requests_total{outcome="ok"})"), 2);
}

TEST_F(Router_AtOnce, OfARequestThatThePrefillServerRefusesNobodyWaitsForTheKeys) {
  start();
  wait_for_keys();
  prefill.set_script([&](Connection& connection) {
    EXPECT_TRUE(eventually([&] { return num_waiting == 1; }));
    says(400)(connection);
  });
  EXPECT_EQ(body_of(ask(*router, body_of_request(false))), kWhole);
  EXPECT_TRUE(eventually([&] { return decode.num_abandoned == 1; }));
  ASSERT_EQ(decode.num_requests(), 3);
  EXPECT_TRUE(transfer_of(decode, 2).empty());
  EXPECT_EQ(metric(*router, "withdrawn_total"), 1);
}

TEST_F(Router_AtOnce, AClientThatLeavesClosesBothCalls) {
  start();
  wait_for_keys();
  std::atomic<bool> is_asked = false;
  prefill.set_script([&](Connection& connection) {
    is_asked = true;
    if (connection.wait_for_close()) ++prefill.num_abandoned;
  });
  {
    RawClient client(router->port());
    client.send(request_text(body_of_request(true)));
    EXPECT_TRUE(eventually([&] { return num_waiting == 1 && is_asked; }));
  }
  EXPECT_TRUE(eventually([&] { return prefill.num_abandoned == 1 && decode.num_abandoned == 1; }));
  EXPECT_TRUE(eventually([&] { return metric(*router, R"(requests_total{outcome="client_gone"})") == 1; }));
}

// A prefill server computes one prompt after the other: of one that is not the next, nothing could be read yet.
TEST_F(Router_AtOnce, TheDecodeServerIsToldWhenItIsThePromptsTurn) {
  start();
  std::atomic<int> num_computed = 0;
  std::atomic<int> num_asked = 0;
  prefill.set_script([&](Connection& connection) {
    const int number = num_asked++;
    EXPECT_TRUE(eventually([&] { return num_computed > number; }));
    computes("P0")(connection);
  });
  std::atomic<int> num_told = 0;
  decode.set_script([&](Connection& connection) {
    const int number = num_told++;
    EXPECT_TRUE(eventually([&] { return num_computed > number; }));
    decodes({"One", " day"})(connection);
  });
  RawClient first(router->port()), second(router->port()), third(router->port());
  first.send(request_text(body_of_request(false, 1)));
  ASSERT_TRUE(eventually([&] { return num_asked == 1 && decode.num_requests() == 2; }));
  second.send(request_text(body_of_request(false, 2)));
  ASSERT_TRUE(eventually([&] { return num_asked == 2; }));
  third.send(request_text(body_of_request(false, 3)));
  ASSERT_TRUE(eventually([&] { return num_asked == 3; }));
  EXPECT_EQ(decode.num_requests(), 2) << "the first one is not computed yet";
  ++num_computed;
  EXPECT_EQ(body_of(first.rest()), kWhole);
  EXPECT_TRUE(eventually([&] { return decode.num_requests() == 3; })) << "it is the second one's turn";
  EXPECT_EQ(decode.request(2)["prompt"], body_of_request(false, 2)["prompt"]);
  num_computed = 3;
  EXPECT_EQ(body_of(second.rest()), kWhole);
  EXPECT_EQ(body_of(third.rest()), kWhole);
  EXPECT_EQ(decode.num_requests(), 4);
  EXPECT_EQ(metric(*router, "transfers_total"), 4);
  prefill.stop();  // whose scripts look at what ends here
  decode.stop();
}

// Whoever has waited longest is next, also where the one before has gone.
TEST_F(Router_AtOnce, AClientThatLeavesGivesItsTurnToTheNext) {
  start();
  wait_for_keys();
  std::atomic<int> num_asked = 0;
  prefill.set_script([&](Connection& connection) {
    ++num_asked;
    connection.wait_for_close();
  });
  auto first = std::make_unique<RawClient>(router->port());
  first->send(request_text(body_of_request(false, 1)));
  ASSERT_TRUE(eventually([&] { return num_waiting == 1; }));
  RawClient second(router->port());
  second.send(request_text(body_of_request(false, 2)));
  ASSERT_TRUE(eventually([&] { return num_asked == 2; }));
  first.reset();
  EXPECT_TRUE(eventually([&] { return num_waiting == 2; }));
}

}  // namespace
}  // namespace ladder::testing
