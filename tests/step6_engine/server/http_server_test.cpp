// What an HTTP client may rely on: answers, keep-alive, methods, errors, drain.
#include <thread>

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/io_thread_count.h"
#include "tests/step6_engine/server/http_routes.h"

namespace ladder::testing {
namespace {

TEST(Task6_6_HttpServer, AnswersAndKeepsTheConnection) {
  TestServer test;
  RawClient client = test.connect();
  for (int i = 0; i < 3; ++i) {
    client.send(get("/plain"));
    const std::string answer = client.answer();
    EXPECT_EQ(status_of(answer), 200);
    EXPECT_EQ(body_of(answer), "plain");
    EXPECT_NE(answer.find("Connection: keep-alive"), answer.npos);
    EXPECT_NE(answer.find("Date: "), answer.npos);
  }
  EXPECT_EQ(test.server->num_connections(), 1);
}

TEST(Task6_6_HttpServer, ClosesWhereTheClientWantsIt) {
  TestServer test;
  for (const std::string& request :
       {get("/plain", "Connection: close\r\n"), std::string("GET /plain HTTP/1.0\r\n\r\n")}) {
    RawClient client = test.connect();
    client.send(request);
    const std::string& all = client.rest();
    EXPECT_EQ(status_of(all), 200);
    EXPECT_NE(all.find("Connection: close"), all.npos);
    EXPECT_EQ(body_of(all), "plain");
  }
}

TEST(Task6_6_HttpServer, ABodyComesBackFromTheConnectionsThreadAndFromAWorker) {
  TestServer test;
  RawClient client = test.connect();
  const std::string body(300'000, 'x');
  for (const char* path : {"/echo", "/echo_worker"}) {
    client.send(post(path, body));
    EXPECT_EQ(body_of(client.answer()), body) << path;
    client.send("POST " + std::string(path) +
                " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                "5;name=value\r\nhello\r\n1\r\n,\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\n");
    EXPECT_EQ(body_of(client.answer()), "hello, world") << path;
  }
}

TEST(Task6_6_HttpServer, ARequestMayComeByteByByte) {
  TestServer test;
  RawClient client = test.connect();
  for (const std::string& request :
       {post("/echo", "hello"),
        "\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n" +
            std::string()}) {
    for (const char c : request) {
      client.send({&c, 1});
      usleep(100);
    }
    EXPECT_EQ(body_of(client.answer()), "hello");
  }
}

TEST(Task6_6_HttpServer, MethodsAndPaths) {
  TestServer test;
  RawClient client = test.connect();
  client.send("HEAD /plain HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(client.receive_until("\r\n\r\n"));
  EXPECT_NE(client.got().find("Content-Length: 5"), std::string::npos);
  EXPECT_TRUE(client.got().ends_with("\r\n\r\n"));
  client.got().clear();

  client.send("DELETE /plain HTTP/1.1\r\nHost: a\r\n\r\n");
  std::string answer = client.answer();
  EXPECT_EQ(status_of(answer), 405);
  EXPECT_NE(answer.find("Allow: GET, HEAD, OPTIONS\r\n"), answer.npos);

  client.send("OPTIONS /echo HTTP/1.1\r\nHost: a\r\n\r\n");
  answer = client.answer();
  EXPECT_EQ(status_of(answer), 204);
  EXPECT_NE(answer.find("Allow: POST, OPTIONS\r\n"), answer.npos);

  client.send(get("/nothing"));
  answer = client.answer();
  EXPECT_EQ(status_of(answer), 404);
  EXPECT_EQ(body_of(answer),
            R"({"error":{"message":"there is no such path","type":"Not Found","param":null,"code":404}})");

  client.send(get("/plain?a=b&c"));
  EXPECT_EQ(body_of(client.answer()), "plain");
  client.send("GET http://a:80/plain HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(body_of(client.answer()), "plain");
}

TEST(Task6_6_HttpServer, ASecondRequestThatComesTooEarlyIsNotAnswered) {
  HttpServerOptions options = test_options();
  options.io_threads = 1;
  TestServer test(options);
  {
    RawClient client = test.connect();
    client.send(get("/plain") + get("/open"));  // in one packet
    const std::string& all = client.rest();
    EXPECT_TRUE(all.ends_with("plain")) << all;
    EXPECT_NE(all.find("Connection: close"), all.npos);
  }
  {
    RawClient client = test.connect();
    client.send(post("/slow", ""));
    ASSERT_TRUE(eventually([&] { return test.num_slow == 1; }));
    client.send(get("/open"));
    wait_until_seen(test);
    test.gate_open = true;
    const std::string& all = client.rest();
    EXPECT_TRUE(all.ends_with("slow")) << all;
    EXPECT_NE(all.find("Connection: close"), all.npos);
  }
  {
    RawClient client = test.connect();
    client.send(post("/echo", "hello") + "\r\n");  // an old client's empty line is no request
    EXPECT_NE(client.answer().find("Connection: keep-alive"), std::string::npos);
    client.send(get("/plain"));
    EXPECT_EQ(body_of(client.answer()), "plain");
  }
}

TEST(HttpServer, HalfOfTheCoresServeConnectionsWithinBounds) {
  EXPECT_EQ(io_threads_for(0), 2) << "unknown";
  EXPECT_EQ(io_threads_for(2), 2);
  EXPECT_EQ(io_threads_for(6), 6);
  EXPECT_EQ(io_threads_for(16), 16);
  EXPECT_EQ(io_threads_for(128), 16);
}

TEST(Task6_6_HttpServer, ADefectIsAnAnswerWithoutItsInsides) {
  std::vector<std::string> log;
  HttpServerOptions options = test_options();
  options.io_threads = 1;
  options.error_log = [&](std::string_view line) { log.emplace_back(line); };
  TestServer test(options);
  RawClient client = test.connect();
  for (const std::string& request : {get("/throws"), get("/forgets"), post("/forgets_worker", "")}) {
    client.send(request);
    const std::string answer = client.answer();
    EXPECT_EQ(status_of(answer), 500) << answer;
    EXPECT_EQ(answer.find("secret"), answer.npos);
    EXPECT_EQ(answer.find("0x"), answer.npos);
  }
  test.server->stop();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("/secret/path"), std::string::npos) << "the log of the server's owner has it";
}

TEST(Task6_6_HttpServer, MoreConnectionsThanAllowedAreTurnedAway) {
  HttpServerOptions options = test_options();
  options.max_connections = 2;
  TestServer test(options);
  RawClient first = test.connect(), second = test.connect();
  ASSERT_TRUE(eventually([&] { return test.server->num_connections() == 2; }));
  RawClient third = test.connect();
  EXPECT_EQ(status_of(third.rest()), 503);
  EXPECT_NE(third.got().find("Retry-After: "), std::string::npos);
  second.close();
  ASSERT_TRUE(eventually([&] { return test.server->num_connections() == 1; }));
  RawClient fourth = test.connect();
  fourth.send(get("/plain"));
  EXPECT_EQ(body_of(fourth.answer()), "plain");
}

TEST(Task6_6_HttpServer, WorkThatNoWorkerHasTimeForIsTurnedAway) {
  HttpServerOptions options = test_options();
  options.worker_threads = 1;
  options.max_queued_work = 1;
  TestServer test(options);
  RawClient running = test.connect(), waiting = test.connect(), late = test.connect();
  running.send(post("/slow", ""));
  ASSERT_TRUE(eventually([&] { return test.num_slow == 1; }));
  waiting.send(post("/slow", ""));
  ASSERT_TRUE(eventually([&] { return test.server->num_requests() == 2; }));
  late.send(post("/slow", ""));
  EXPECT_EQ(status_of(late.answer()), 503);
  late.send(get("/plain"));  // what needs no worker is answered
  EXPECT_EQ(body_of(late.answer()), "plain");
  test.gate_open = true;
  EXPECT_EQ(body_of(running.answer()), "slow");
  EXPECT_EQ(body_of(waiting.answer()), "slow");
}

TEST(Task6_6_HttpServer, ItDrains) {
  TestServer test;
  RawClient busy = test.connect(), idle = test.connect();
  busy.send(post("/slow", ""));
  idle.send(get("/plain"));
  idle.answer();
  ASSERT_TRUE(eventually([&] { return test.num_slow == 1; }));
  test.server->stop_accepting();
  EXPECT_TRUE(eventually([&] { return !RawClient(test.server->port()).connected(); }));
  EXPECT_FALSE(test.server->wait_until_idle(10ms));
  idle.send(get("/plain"));  // answered once more, and closed
  EXPECT_NE(idle.rest().find("Connection: close"), std::string::npos);
  test.gate_open = true;
  EXPECT_TRUE(test.server->wait_until_idle(kPatience));
  EXPECT_TRUE(busy.rest().ends_with("slow"));
}

TEST(Task6_6_HttpServer, OneLineOfLogPerAnswer) {
  std::mutex mutex;
  std::vector<std::string> log;
  HttpServerOptions options = test_options();
  options.access_log = [&](std::string_view line) {
    std::lock_guard lock(mutex);
    log.emplace_back(line);
  };
  TestServer test(options);
  RawClient client = test.connect();
  client.send(get("/plain"));
  client.answer();
  client.send(get("/a\"b\x80?key=secret"));
  client.answer();
  test.server->stop();
  ASSERT_EQ(log.size(), 2u);
  EXPECT_NE(log[0].find("\"GET /plain\" 200 "), std::string::npos) << log[0];
  EXPECT_NE(log[1].find("\"GET /a?b?\" 404 "), std::string::npos) << log[1];
}

TEST(Task6_6_HttpServer, WrongOptionsAreErrors) {
  const auto message = [](HttpServerOptions options) -> std::string {
    options.port = options.port == 8000 ? 0 : options.port;
    try {
      HttpServer server(options, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_NE(message({.host = "no such host"}).find("--host"), std::string::npos);
  EXPECT_NE(message({.host = "192.0.2.1"}).find("--host 192.0.2.1"), std::string::npos);
  EXPECT_NE(message({.ssl_certfile = "/none"}).find("expected both or none"), std::string::npos);
  EXPECT_NE(message({.ssl_certfile = "/none", .ssl_keyfile = "/none"}).find("--ssl-certfile /none"),
            std::string::npos);
  EXPECT_NE(message({.root_path = "llm"}).find("--root-path llm"), std::string::npos);
  EXPECT_NE(message({.api_keys = {""}}).find("--api-key"), std::string::npos);
  TestServer test;
  EXPECT_NE(message({.port = test.server->port()}).find("in use"), std::string::npos);
}

}  // namespace
}  // namespace ladder::testing
