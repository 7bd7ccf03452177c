// The router between clients and servers that do what they should not.
#include "step8_advanced/disaggregation/router/server/route_server.h"

#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "tests/step8_advanced/disaggregation/router/server/asked_router.h"

namespace ladder::testing {
namespace {

TEST(Router_Server, APromptGoesToOneServerAndTheRestToTheOther) {
  FakeBackend prefill(prefills("P0")), decode(decodes({"One", " day"}));
  RouteServer router(options_of({prefill.url()}, {decode.url()}));
  const std::string whole =
      ask(router, body_of_request(false), "X-Request-Id: mine\r\nAuthorization: Bearer k\r\n");
  EXPECT_EQ(status_of(whole), 200);
  EXPECT_EQ(body_of(whole), kWhole) << "of the decode server alone, and not how servers reach each other";
  const std::string stream = ask(router, body_of_request(true, 1));
  EXPECT_EQ(events_of(stream), kStreamed);

  ASSERT_EQ(prefill.num_requests(), 2);
  ASSERT_EQ(decode.num_requests(), 2);
  for (size_t i = 0; i < 2; ++i) {
    const Json first = prefill.request(i), second = decode.request(i);
    EXPECT_EQ(first["max_tokens"], 1);
    EXPECT_EQ(first["stream"], false);
    EXPECT_EQ(first["kv_transfer_params"]["do_remote_decode"], true);
    EXPECT_EQ(second["max_tokens"], 5);
    EXPECT_EQ(second["stream"], i == 1);
    EXPECT_EQ(first["prompt"], second["prompt"]);
    EXPECT_EQ(second["kv_transfer_params"]["do_remote_prefill"], true);
    EXPECT_EQ(second["kv_transfer_params"]["do_remote_decode"], false);
    EXPECT_EQ(second["kv_transfer_params"]["remote_engine_id"], "P0");
    EXPECT_EQ(second["kv_transfer_params"]["remote_request_id"],
              first["kv_transfer_params"]["remote_request_id"]);
  }
  for (const std::string& head : {prefill.head(0), decode.head(0)}) {
    EXPECT_NE(head.find("X-Request-Id: mine\r\n"), std::string::npos);
    EXPECT_NE(head.find("Authorization: Bearer k\r\n"), std::string::npos);
  }
  EXPECT_EQ(metric(router, "transfers_total"), 2);
  EXPECT_EQ(metric(router, R"(requests_total{outcome="ok"})"), 2);
  EXPECT_EQ(metric(router, R"(backend_in_flight{role="decode",url=")" + decode.url() + "\"}"), 0);
  EXPECT_EQ(metric(router, R"(backend_queued_tokens{role="prefill",url=")" + prefill.url() + "\"}"), 0);
}

TEST(Router_Server, AStreamIsPassedOnAsItComes) {
  FakeBackend prefill(prefills("P0"));
  std::atomic<bool> go_on = false;
  FakeBackend decode([&](FakeBackend::Connection& connection) {
    connection.begin_stream();
    connection.event("first");
    eventually([&] { return go_on.load(); });
    connection.event("second");
    connection.end_stream();
  });
  RouteServer router(options_of({prefill.url()}, {decode.url()}));
  RawClient client(router.port());
  client.send(request_text(body_of_request(true)));
  EXPECT_TRUE(client.receive_until("data: first\n\n"));
  go_on = true;
  EXPECT_EQ(events_of(client.rest()), (std::vector<std::string>{"first", "second"}));
}

// Far more than buffers hold: whoever reads slowly gets all of it, and the server is held up meanwhile.
TEST(Router_Server, ASlowClientHoldsUpItsServerAndGetsEverything) {
  constexpr int kEvents = 600;
  const std::string data(100'000, 'x');
  FakeBackend prefill(prefills("P0"));
  std::atomic<int> num_sent = 0;
  FakeBackend decode([&](FakeBackend::Connection& connection) {
    connection.begin_stream();
    for (int i = 0; i < kEvents && connection.event(data); ++i) ++num_sent;
    connection.end_stream();
  });
  RouteServer router(options_of({prefill.url()}, {decode.url()}));
  RawClient client(router.port(), 64 * 1024);
  client.send(request_text(body_of_request(true)));
  ASSERT_TRUE(client.receive_until("data: "));
  int before = -1;
  eventually([&] {
    usleep(100'000);
    return std::exchange(before, num_sent.load()) == num_sent;
  });
  EXPECT_LT(num_sent, kEvents) << "the server was read although the client does not";
  EXPECT_EQ(std::ssize(events_of(client.rest(120s))), kEvents);
}

TEST(Router_Server, APrefillServerThatFailsIsReplaced) {
  for (const auto& [what, script] : std::
           vector<std::
                      pair<const char*,
                           FakeBackend::Script>>{{"dies", dies()},
                                                 {"500", says(500)},
                                                 {"busy", says(429, "Retry-After: 3\r\n")},
                                                 {"no completion",
                                                  [](auto& connection) { connection.answer(200, "<html>"); }},
                                                 {"not HTTP",
                                                  [](auto& connection) {
                                                    connection.send("SSH-2.0\r\n\r\n");
                                                  }},
                                                 {"a proxy that sends elsewhere", says(302)},
                                                 {"no more than a word",
                                                  [](auto& connection) {
                                                    connection.send("HTTP/1.1 100 Continue\r\n\r\n");
                                                  }},
                                                 {"a transfer that no server would read",
                                                  [](auto& connection) {
                                                    connection.answer(
                                                        200, R"({"choices":[],"kv_transfer_params":{"x":)" +
                                                                 std::string(200, '[') +
                                                                 std::string(200, ']') + "}}");
                                                  }},
                                                 {"half an answer", [](auto& connection) {
                                                    connection.send(
                                                        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"choices\"");
                                                  }}}) {
    FakeBackend bad(script), good(prefills("P1")), decode(decodes({"One", " day"}));
    RouteServer router(options_of({bad.url(), good.url()}, {decode.url()}));
    EXPECT_EQ(body_of(ask(router, body_of_request(false))), kWhole) << what;
    EXPECT_EQ(bad.num_requests(), 1) << what;
    EXPECT_EQ(good.num_requests(), 1) << what;
    EXPECT_EQ(decode.request(0)["kv_transfer_params"]["remote_engine_id"], "P1") << what;
    EXPECT_NE(good.request(0)["kv_transfer_params"], bad.request(0)["kv_transfer_params"])
        << "a new transfer";
    EXPECT_EQ(metric(router, R"(failed_calls_total{role="prefill"})"), 1) << what;
    EXPECT_EQ(metric(router, "fallbacks_total"), 0) << what;
  }
}

TEST(Router_Server, WithoutAPrefillServerTheDecodeServerComputesThePrompt) {
  FakeBackend bad(says(503)), decode(decodes({"One", " day"}));
  RouteServer router(options_of({bad.url()}, {decode.url()}));
  EXPECT_EQ(body_of(ask(router, body_of_request(false))), kWhole);
  EXPECT_FALSE(decode.request(0).contains("kv_transfer_params"));
  EXPECT_EQ(metric(router, "fallbacks_total"), 1);
  EXPECT_EQ(metric(router, "transfers_total"), 0);
}

TEST(Router_Server, RetriesAreBounded) {
  std::vector<std::unique_ptr<FakeBackend>> bad;
  Urls urls;
  for (int i = 0; i < 5; ++i) {
    bad.push_back(std::make_unique<FakeBackend>(says(500)));
    urls.push_back(bad.back()->url());
  }
  FakeBackend decode(decodes({"One", " day"}));
  RouteServerOptions options = options_of(urls, {decode.url()});
  options.limits.retries = 2;
  RouteServer router(std::move(options));
  EXPECT_EQ(body_of(ask(router, body_of_request(false))), kWhole);
  int64_t num_asked = 0;
  for (const auto& one : bad) num_asked += one->num_requests();
  EXPECT_EQ(num_asked, 3);
}

// A prefill server may take less than a decode server does; what is wrong everywhere the decode server says.
TEST(Router_Server, WhatAPrefillServerRefusesTheDecodeServerJudges) {
  FakeBackend first(says(404)), second(prefills("P1")), decode(decodes({"One", " day"}));
  RouteServer router(options_of({first.url(), second.url()}, {decode.url()}));
  EXPECT_EQ(body_of(ask(router, body_of_request(false))), kWhole);
  EXPECT_FALSE(decode.request(0).contains("kv_transfer_params"));
  EXPECT_EQ(metric(router, "fallbacks_total"), 1);
  EXPECT_EQ(metric(router, R"(failed_calls_total{role="prefill"})"), 0);
  EXPECT_EQ(second.num_requests(), 0);

  FakeBackend prefill(says(400)), judge(says(422));
  RouteServer other(options_of({prefill.url()}, {judge.url()}));
  const std::string answer = ask(other, body_of_request(false));
  EXPECT_EQ(status_of(answer), 422);
  EXPECT_EQ(body_of(answer), "{\"error\":{\"code\":422}}");
  EXPECT_EQ(metric(other, R"(requests_total{outcome="refused"})"), 1);
}

TEST(Router_Server, APrefillServerThatKeepsNothingLeavesThePromptToTheDecodeServer) {
  FakeBackend prefill([](auto& connection) { connection.answer(200, R"({"choices":[{"text":"FIRST"}]})"); });
  FakeBackend decode(decodes({"One", " day"}));
  RouteServer router(options_of({prefill.url()}, {decode.url()}));
  EXPECT_EQ(body_of(ask(router, body_of_request(false))), kWhole) << "its token is not in the answer";
  EXPECT_FALSE(decode.request(0).contains("kv_transfer_params"));
  EXPECT_EQ(metric(router, "empty_transfers_total"), 1);
}

TEST(Router_Server, ADecodeServerThatFailsBeforeItsFirstByteIsReplacedAndThePromptComputedAgain) {
  for (const bool stream : {false, true})
    for (const auto& [what, script] : std::vector<std::pair<const char*, FakeBackend::Script>>{
             {"dies", dies()},
             {"503", says(503)},
             {"begins and dies", [](auto& connection) { connection.begin_stream(); }},
             {"half an answer", [](auto& connection) {
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"text\": \"On");
              }}}) {
      FakeBackend prefill(prefills("P0")), bad(script), good(decodes({"One", " day"}));
      RouteServer router(options_of({prefill.url()}, {bad.url(), good.url()}));
      const std::string answer = ask(router, body_of_request(stream));
      if (stream)
        EXPECT_EQ(events_of(answer), kStreamed) << what;
      else
        EXPECT_EQ(body_of(answer), kWhole) << what;
      EXPECT_EQ(bad.num_requests(), 1) << what;
      EXPECT_EQ(prefill.num_requests(), 2) << what;
      EXPECT_EQ(good.request(0)["kv_transfer_params"]["remote_request_id"],
                prefill.request(1)["kv_transfer_params"]["remote_request_id"])
          << what;
      EXPECT_EQ(metric(router, R"(failed_calls_total{role="decode"})"), 1) << what;
    }
}

TEST(Router_Server, AfterTheFirstByteAFailureIsAnEventAndTheEnd) {
  FakeBackend prefill(prefills("P0")), other(decodes({"One"}));
  FakeBackend decode([](auto& connection) {
    connection.begin_stream();
    connection.event("first");
  });
  RouteServer router(options_of({prefill.url()}, {decode.url(), other.url()}));
  const std::string answer = ask(router, body_of_request(true));
  const std::vector<std::string> events = events_of(answer);
  ASSERT_EQ(events.size(), 3u) << answer;
  EXPECT_EQ(events[0], "first");
  EXPECT_EQ(Json::parse(events[1])["error"]["code"], 500);
  EXPECT_EQ(events[2], "[DONE]");
  EXPECT_TRUE(answer.ends_with("0\r\n\r\n")) << "the end of the stream";
  EXPECT_EQ(other.num_requests(), 0) << "nothing is said twice";
  EXPECT_EQ(metric(router, R"(requests_total{outcome="cut"})"), 1);
}

TEST(Router_Server, WhereNoDecodeServerCanTheLastAnswerIsPassedOn) {
  FakeBackend prefill(prefills("P0")), busy(says(429, "Retry-After: 7\r\n"));
  RouteServer router(options_of({prefill.url()}, {busy.url()}));
  const std::string answer = ask(router, body_of_request(false));
  EXPECT_EQ(status_of(answer), 429);
  EXPECT_NE(answer.find("Retry-After: 7\r\n"), std::string::npos) << answer;
  busy.set_script(dies());
  const std::string dead = ask(router, body_of_request(false, 1));
  EXPECT_EQ(status_of(dead), 503);
  EXPECT_NE(dead.find("Retry-After: "), std::string::npos) << dead;
  EXPECT_EQ(metric(router, R"(requests_total{outcome="failed"})"), 2);
  for (const int status : {100, 302, 999}) {
    busy.set_script(says(status));
    EXPECT_EQ(status_of(ask(router, body_of_request(false, 2 + status))), 503)
        << status << " is no answer to a client";
  }
}

TEST(Router_Server, AClientThatLeavesClosesWhatItsServersDo) {
  std::atomic<int> num_left = 0, num_begun = 0;
  const FakeBackend::Script hangs = [&](FakeBackend::Connection& connection) {
    ++num_begun;
    if (connection.wait_for_close()) ++num_left;
  };
  FakeBackend prefill(hangs), decode([&](FakeBackend::Connection&connection) {
    connection.begin_stream();
    connection.event("first");
    hangs(connection);
  });
  RouteServer router(options_of({prefill.url()}, {decode.url()}));
  {
    RawClient client(router.port());
    client.send(request_text(body_of_request(true)));
    ASSERT_TRUE(eventually([&] { return num_begun == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return num_left == 1; })) << "the prefill server still computes";
  EXPECT_EQ(decode.num_requests(), 0);
  prefill.set_script(prefills("P0"));
  {
    RawClient client(router.port());
    client.send(request_text(body_of_request(true, 1)));
    ASSERT_TRUE(client.receive_until("data: first"));
  }
  EXPECT_TRUE(eventually([&] { return num_left == 2; })) << "the decode server still answers";
  EXPECT_TRUE(eventually([&] { return metric(router, R"(requests_total{outcome="client_gone"})") == 2; }));
  EXPECT_EQ(metric(router, R"(backend_in_flight{role="decode",url=")" + decode.url() + "\"}"), 0);
}

TEST(Router_Server, WhatCannotBeSplitGoesToADecodeServerAlone) {
  FakeBackend prefill(prefills("P0")), decode(decodes({"One", " day"}));
  RouteServerOptions options = options_of({prefill.url()}, {decode.url()});
  options.policy.min_remote_tokens = 8;
  RouteServer router(std::move(options));
  Json echo = body_of_request(false);
  echo["echo"] = true;
  EXPECT_EQ(body_of(ask(router, echo)), kWhole);
  EXPECT_EQ(body_of(ask(router, body_of_request(false, 1))), kWhole);
  EXPECT_EQ(prefill.num_requests(), 0);
  EXPECT_EQ(metric(router, R"(prefills_skipped_total{reason="echo"})"), 1);
  EXPECT_EQ(metric(router, R"(prefills_skipped_total{reason="short"})"), 1);
  EXPECT_EQ(metric(router, "fallbacks_total"), 0);
}

TEST(Router_Server, OtherRequestsAreADecodeServers) {
  FakeBackend prefill(prefills("P0")), decode([](FakeBackend::Connection&connection) {
    connection.answer(200, "{\"asked\":\"" + connection.path() + "\"}");
  });
  RouteServer router(options_of({prefill.url()}, {decode.url() + "/llm/"}));
  EXPECT_EQ(body_of(get(router, "/v1/models?x=1")), "{\"asked\":\"/llm/v1/models?x=1\"}");
  RawClient client(router.port());
  client.send(request_text({{"prompt", "a"}}, {}, "/tokenize"));
  EXPECT_EQ(body_of(client.rest()), "{\"asked\":\"/llm/tokenize\"}");
  EXPECT_EQ(decode.request(1), Json({{"prompt", "a"}}));
  EXPECT_EQ(body_of(get(router, "/v1/models/a%2Fb")), "{\"asked\":\"/llm/v1/models/a%2Fb\"}");
  for (const char* path : {"/nothing", "/v1/models/", "/v1/modelsx"})
    EXPECT_EQ(status_of(get(router, path)), 404) << path;
}

TEST(Router_Server, AKeyIsAskedOfClientsAndShownToServers) {
  FakeBackend prefill(prefills("P0")), decode(decodes({"One", " day"}));
  RouteServerOptions options = options_of({prefill.url()}, {decode.url()});
  options.http.api_keys = {"first", "second"};
  RouteServer router(std::move(options));
  for (const char* headers : {"", "Authorization: Bearer third\r\n", "Authorization: Bearer \r\n"})
    EXPECT_EQ(status_of(ask(router, body_of_request(false), headers)), 401) << headers;
  EXPECT_EQ(status_of(get(router, "/v1/models")), 401);
  EXPECT_EQ(status_of(get(router, "/metrics")), 401);
  EXPECT_EQ(status_of(get(router, "/health")), 200) << "without a key: it is asked by who watches";
  EXPECT_EQ(prefill.num_requests() + decode.num_requests(), 0);
  EXPECT_EQ(body_of(ask(router, body_of_request(false), "Authorization: Bearer second\r\n")), kWhole);
  for (const FakeBackend* server : {&prefill, &decode}) {
    EXPECT_NE(server->head(0).find("Authorization: Bearer second\r\n"), std::string::npos)
        << "the client's own";
    EXPECT_TRUE(eventually(
        [&] { return server->check_head().find("Authorization: Bearer first\r\n") != std::string::npos; }));
  }
}

TEST(Router_Server, AServerThatDiedIsLeftOutUntilItAnswersAgain) {
  auto first = std::make_unique<FakeBackend>(decodes({"One", " day"}));
  FakeBackend prefill(prefills("P0")), second(decodes({"One", " day"}));
  RouteServer router(options_of({prefill.url()}, {first->url(), second.url()}));
  const auto up = [&](const FakeBackend& backend) {
    return metric(router, R"(backend_up{role="decode",url=")" + backend.url() + "\"}");
  };
  EXPECT_EQ(up(*first), 1);
  first->stop();
  EXPECT_TRUE(eventually([&] { return up(*first) == 0; }));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(body_of(ask(router, body_of_request(false, i))), kWhole);
  EXPECT_EQ(metric(router, R"(failed_calls_total{role="decode"})"), 0) << "it was known to be out";
  EXPECT_NE(get(router, "/health").find("\"live_decode_servers\":1"), std::string::npos);
  first->start_again();
  EXPECT_TRUE(eventually([&] { return up(*first) == 1; }));
  second.stop();
  EXPECT_TRUE(eventually([&] { return up(second) == 0; }));
  EXPECT_EQ(body_of(ask(router, body_of_request(false, 9))), kWhole);
  first->stop();
  EXPECT_TRUE(eventually([&] { return status_of(get(router, "/health")) == 503; }));
}

// One that was stopped keeps its connections and says nothing: what waits for its first byte goes elsewhere.
TEST(Router_Server, AServerThatHangsLosesItsWaitingRequests) {
  FakeBackend prefill(prefills("P0")), good(decodes({"One", " day"}));
  FakeBackend hung([](FakeBackend::Connection& connection) { connection.wait_for_close(); });
  RouteServerOptions options = options_of({prefill.url()}, {hung.url(), good.url()});
  options.check_timeout = 500ms;  // of the others too, which answer in time on a busy machine
  RouteServer router(std::move(options));
  RawClient client(router.port());
  client.send(request_text(body_of_request(true)));
  ASSERT_TRUE(eventually([&] { return hung.num_requests() == 1; })) << "of idle ones the first";
  hung.health = 0;
  EXPECT_EQ(events_of(client.rest()), kStreamed);
}

// It has what it has, and gets no more: so does a server that drains.
TEST(Router_Server, AServerThatSaysItIsNotReadyGetsNoMore) {
  FakeBackend prefill(prefills("P0")), first(decodes({"One"})), second(decodes({"One"}));
  RouteServer router(options_of({prefill.url()}, {first.url(), second.url()}));
  first.health = 503;
  const int checks = first.num_checks;
  // Of two checks after one that was under way the first has been heard of.
  ASSERT_TRUE(eventually([&] { return first.num_checks > checks + 2; }));
  for (int i = 0; i < 4; ++i) ask(router, body_of_request(false, i));
  EXPECT_EQ(first.num_requests(), 0);
  EXPECT_EQ(second.num_requests(), 4);
}

TEST(Router_Server, WhatServersReportOfTheirLoadCounts) {
  FakeBackend prefill(prefills("P0")), busy(decodes({"One"})), idle(decodes({"One"}));
  busy.set_metrics("ladder:num_requests_running{engine=\"0\"} 50\n");
  RouteServer router(options_of({prefill.url()}, {busy.url(), idle.url()}));
  const int checks = busy.num_checks;
  ASSERT_TRUE(eventually([&] { return busy.num_checks > checks + 2; }));
  for (int i = 0; i < 4; ++i) ask(router, body_of_request(false, i));
  EXPECT_EQ(busy.num_requests(), 0);
}

TEST(Router_Server, NoMoreThanTheBoundAreUnderWay) {
  FakeBackend prefill(prefills("P0"));
  std::atomic<bool> go_on = false;
  FakeBackend decode([&](FakeBackend::Connection& connection) {
    eventually([&] { return go_on.load(); });
    connection.answer(200, "{}");
  });
  RouteServerOptions options = options_of({prefill.url()}, {decode.url()});
  options.limits.max_in_flight = 2;
  RouteServer router(std::move(options));
  RawClient first(router.port()), second(router.port());
  first.send(request_text(body_of_request(false, 1)));
  second.send(request_text(body_of_request(false, 2)));
  ASSERT_TRUE(eventually([&] { return decode.num_requests() == 2; }));
  const std::string third = ask(router, body_of_request(false, 3));
  EXPECT_EQ(status_of(third), 503);
  EXPECT_NE(third.find("Retry-After: "), std::string::npos);
  EXPECT_EQ(status_of(get(router, "/health")), 200) << "it is asked past the bound";
  EXPECT_EQ(metric(router, R"(requests_total{outcome="shed"})"), 1);
  go_on = true;
  EXPECT_EQ(status_of(first.rest()), 200);
  EXPECT_EQ(status_of(second.rest()), 200);
  EXPECT_TRUE(eventually([&] { return status_of(ask(router, body_of_request(false, 4))) == 200; }));
}

TEST(Router_Server, StopsWhenWhatIsUnderWayHasEnded) {
  FakeBackend prefill(prefills("P0"));
  std::atomic<bool> go_on = false;
  FakeBackend decode([&](FakeBackend::Connection& connection) {
    connection.begin_stream();
    connection.event("first");
    eventually([&] { return go_on.load(); });
    connection.event("[DONE]");
    connection.end_stream();
  });
  RouteServer router(options_of({prefill.url()}, {decode.url()}));
  RawClient client(router.port());
  client.send(request_text(body_of_request(true)));
  ASSERT_TRUE(client.receive_until("data: first"));
  std::thread stopping([&] { router.stop(kPatience); });
  EXPECT_TRUE(eventually([&] { return !RawClient(router.port()).connected(); })) << "no new connections";
  go_on = true;
  EXPECT_EQ(events_of(client.rest()), (std::vector<std::string>{"first", "[DONE]"}));
  stopping.join();
}

TEST(Router_Server, CutsWhatDoesNotEndInTime) {
  FakeBackend prefill(prefills("P0"));
  FakeBackend decode([&](FakeBackend::Connection& connection) {
    connection.begin_stream();
    connection.event("first");
    if (connection.wait_for_close()) ++decode.num_abandoned;
  });
  RouteServer router(options_of({prefill.url()}, {decode.url()}));
  RawClient client(router.port());
  client.send(request_text(body_of_request(true)));
  ASSERT_TRUE(client.receive_until("data: first"));
  router.stop(0ms);
  client.rest();
  EXPECT_TRUE(eventually([&] { return decode.num_abandoned == 1; }));
}

TEST(Router_Server, ASilentServerIsGivenUp) {
  FakeBackend prefill(prefills("P0")), good(decodes({"One", " day"}));
  FakeBackend silent([](FakeBackend::Connection& connection) { connection.wait_for_close(); });
  RouteServerOptions options = options_of({silent.url(), prefill.url()}, {good.url()});
  options.limits.silence_timeout = 2s;  // of the others too, which answer in time on a busy machine
  RouteServer router(std::move(options));
  EXPECT_EQ(body_of(ask(router, body_of_request(false))), kWhole);
  EXPECT_EQ(silent.num_requests(), 1);
}

TEST(Router_Server, ServersThatAreNoneAreNamed) {
  FakeBackend good(decodes({})), wrong(decodes({}));
  wrong.health = 404;
  uint16_t unused = 0;
  {
    FakeBackend gone(decodes({}));
    unused = static_cast<uint16_t>(std::stoi(gone.url().substr(gone.url().rfind(':') + 1)));
  }
  const std::string nobody = "http://127.0.0.1:" + std::to_string(unused);
  const auto why = [](Urls prefills, Urls decodes) -> std::string {
    try {
      wait_for_servers(options_of(std::move(prefills), std::move(decodes)), 0ms);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(why({good.url()}, {good.url()}), "");
  EXPECT_TRUE(why({nobody}, {good.url()}).starts_with("--prefill " + nobody)) << why({nobody}, {good.url()});
  EXPECT_TRUE(why({good.url()}, {good.url(), wrong.url()}).starts_with("--decode " + wrong.url()));
  EXPECT_NE(why({good.url()}, {wrong.url()}).find("404"), std::string::npos);
  EXPECT_THROW(RouteServer(options_of({good.url()}, {})), Error);
  for (const std::string& wrong : {std::string("ftp://x"), std::string("https://x"), good.url() + "/a b",
                                   good.url() + "/?x", good.url() + "/#x", good.url() + "/\r\nX: y"})
    EXPECT_THROW(RouteServer(options_of({wrong}, {good.url()})), Error) << wrong;
  EXPECT_THROW(RouteServer(options_of({good.url()}, {good.url(), good.url() + "/"})), Error)
      << "a second try there would be none";
}

}  // namespace
}  // namespace ladder::testing
