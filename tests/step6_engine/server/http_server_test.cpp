// What an HTTP client may rely on.
#include "step1_layers/core/error.h"
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

TEST(Task6_6_HttpServer, AStreamComesInChunksAsItIsMade) {
  TestServer test;
  RawClient client = test.connect();
  client.send(get("/stream"));
  ASSERT_TRUE(client.receive_until("\r\n\r\n"));
  EXPECT_NE(client.got().find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(client.got().find("Content-Type: text/event-stream\r\n"), std::string::npos);
  test.stream->push("data: one\n\n");
  ASSERT_TRUE(client.receive_until("b\r\ndata: one\n\n\r\n"));
  test.stream->push("data: two\n\n", true);
  ASSERT_TRUE(client.receive_until("b\r\ndata: two\n\n\r\n0\r\n\r\n"));
  EXPECT_TRUE(eventually([&] { return test.stream->num_destroyed == 1; }));
  client.got().clear();
  client.send(get("/plain"));
  EXPECT_EQ(body_of(client.answer()), "plain");
}

}  // namespace
}  // namespace ladder::testing
