// What others send: too much, too little, too slowly, or two things at once. After each the server still answers.
#include <thread>

#include "tests/step6_engine/server/http_routes.h"
#include "tests/step6_engine/server/process_size.h"

namespace ladder::testing {
namespace {

void expect_growth_below(int64_t bytes, int64_t before) {
  if (kCanBeMeasured) {
    EXPECT_LT(resident_bytes() - before, bytes);
  }
}

void expect_alive(const TestServer& test) {
  RawClient client = test.connect();
  client.send(get("/plain"));
  EXPECT_EQ(body_of(client.answer()), "plain");
}

// What it answers to bytes that it must refuse; it closes.
int refusal(const TestServer& test, std::string_view bytes) {
  RawClient client = test.connect();
  client.send(bytes);
  return status_of(client.rest());
}

TEST(Task6_6_Attack, HeadersWithoutEnd) {
  TestServer test;
  const int64_t before = resident_bytes();
  EXPECT_EQ(refusal(test, "GET /plain HTTP/1.1\r\nHost: a\r\nX: " + std::string(1 << 20, 'x')), 431);
  EXPECT_EQ(refusal(test, "GET /" + std::string(1 << 20, 'x')), 431);
  std::string many = "GET /plain HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 100'000; ++i) many += "a: b\r\n";
  EXPECT_EQ(refusal(test, many + "\r\n"), 431);
  std::string few = "GET /plain HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 100; ++i) few += "a: b\r\n";
  EXPECT_EQ(refusal(test, few + "\r\n"), 431) << "101 of them, with Host";
  expect_growth_below(16 << 20, before);
  expect_alive(test);
}

TEST(Task6_6_Attack, BodiesWithoutEnd) {
  TestServer test;  // bodies up to 1 MiB
  const int64_t before = resident_bytes();
  EXPECT_EQ(refusal(test, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n"), 413);
  EXPECT_EQ(refusal(test, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999999\r\n\r\n"), 413);

  RawClient chunked = test.connect();
  chunked.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(0x10000, 'x') + "\r\n";
  const auto begin = std::chrono::steady_clock::now();
  while (chunked.send(chunk) && std::chrono::steady_clock::now() - begin < kPatience) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatience) << "it is cut after linger_timeout";
  EXPECT_EQ(status_of(chunked.rest()), 413) << "the answer arrives though the client went on sending";

  EXPECT_EQ(refusal(test, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;" +
                              std::string(1 << 20, 'x')),
            400)
      << "a chunk's line without end";
  EXPECT_EQ(refusal(test, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffff0\r\n"),
            413)
      << "one chunk of more than there may be";
  expect_growth_below(24 << 20, before);
  EXPECT_EQ(test.num_echoed, 0);
  expect_alive(test);
}

TEST(Task6_6_Attack, AMillionChunksOfSixBytes) {
  HttpServerOptions options = test_options();
  options.request.max_body_bytes = 8 << 20;
  TestServer test(options);
  std::string request = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 1'000'000; ++i) request += "6\r\nabcdef\r\n";
  RawClient client = test.connect();
  ASSERT_TRUE(client.send(request + "0\r\n\r\n", 60s));
  EXPECT_EQ(body_of(client.answer(60s)).size(), 6'000'000u);
  expect_alive(test);
}

// Where two readers of the same bytes could disagree about the request's end.
TEST(Task6_6_Attack, AmbiguousLengths) {
  TestServer test;
  for (const char* headers : {"Content-Length: 5\r\nContent-Length: 6\r\n",
                              "Content-Length: 5\r\nContent-Length: 5\r\n",
                              "Content-Length: 5, 5\r\n",
                              "Content-Length: -5\r\n",
                              "Content-Length: +5\r\n",
                              "Content-Length: 0x5\r\n",
                              "Content-Length: 5 5\r\n",
                              "Content-Length: five\r\n",
                              "Content-Length: \r\n",
                              "Content-Length: 18446744073709551621\r\n",
                              "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                              "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                              "Transfer-Encoding: identity\r\n",
                              "Transfer-Encoding: xchunked\r\n",
                              "Transfer-Encoding: chunked, chunked\r\n",
                              "Transfer-Encoding: chunked, identity\r\n",
                              "Transfer-Encoding: gzip, chunked\r\n",
                              "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                              "Content-Length : 5\r\n",
                              "Content-Length: 5\n\r\nX: y\r\n",
                              "Transfer-Encoding : chunked\r\n"}) {
    const int status =
        refusal(test, "POST /echo HTTP/1.1\r\nHost: a\r\n" + std::string(headers) + "\r\nhello");
    EXPECT_TRUE(status == 400 || status == 413) << headers << status;
  }
  for (const char* chunks :
       {"-1\r\nx\r\n0\r\n\r\n", "0x1\r\nx\r\n0\r\n\r\n", "g\r\nx\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nx\r\n0\r\n\r\n", "\r\nx\r\n0\r\n\r\n", "1\r\nxy\r\n0\r\n\r\n"}) {
    const int status = refusal(
        test, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(chunks));
    EXPECT_TRUE(status == 400 || status == 413) << chunks << status;
  }
  EXPECT_EQ(test.num_echoed, 0);
  expect_alive(test);
}

TEST(Task6_6_Attack, NoHttp) {
  TestServer test;
  for (const std::string& bytes :
       {std::string("hello\r\n\r\n"), std::string("GET /plain\r\n\r\n"),
        std::string("GET  /plain HTTP/1.1\r\n\r\n"), std::string("GET plain HTTP/1.1\r\nHost: a\r\n\r\n"),
        std::string("GET /plain HTTP/1.1\r\n\r\n"),
        std::string("GET /plain HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        std::string("GET /plain HTTP/1.1\r\nHost: a\r\nX\r\n\r\n"),
        std::string("GET /plain HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 40),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(600, 'x') + "\r\n\r\n"})
    EXPECT_EQ(refusal(test, bytes), 400) << bytes;
  EXPECT_EQ(refusal(test, "GET /plain HTTP/2.0\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(refusal(test, "GET /plain HTTP/1.1\r\nHost: a\r\nExpect: wonders\r\n\r\n"), 417);
  expect_alive(test);
}

TEST(Task6_6_Attack, PathsLeadNowhere) {
  TestServer test;
  RawClient client = test.connect();
  for (const char* path :
       {"/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/open/../plain2",
        "/..;/plain", "/%00", "/plain/", "/plain%2f", "/PLAIN", "/.git/config"}) {
    client.send(get(path));
    const std::string answer = client.answer();
    EXPECT_EQ(status_of(answer), 404) << path;
    EXPECT_EQ(answer.find("root:"), answer.npos);
    EXPECT_EQ(answer.find("passwd"), answer.npos) << "a path is not repeated";
  }
}

TEST(Task6_6_Attack, ATruncatedBodyIsNoRequest) {
  TestServer test;
  for (const bool half : {false, true}) {
    RawClient client = test.connect();
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhello");
    ASSERT_TRUE(eventually([&] { return test.server->num_connections() >= 1; }));
    half ? client.shut_writing() : client.close();
    EXPECT_TRUE(eventually([&] { return test.server->num_connections() == 0; }));
  }
  EXPECT_EQ(test.num_echoed, 0);
}

TEST(Task6_6_Attack, ABodyLongerThanItSaysIsNoSecondRequest) {
  TestServer test;
  RawClient client = test.connect();
  client.send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /open HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::string& all = client.rest();
  EXPECT_TRUE(all.ends_with("hello")) << all;
}

// Bytes without end while an answer is made: they are thrown away.
TEST(Task6_6_Attack, AFloodWhileAnAnswerIsMade) {
  TestServer test;
  RawClient client = test.connect();
  client.send(post("/slow", ""));
  ASSERT_TRUE(eventually([&] { return test.num_slow == 1; }));
  const int64_t before = resident_bytes();
  const std::string flood(1 << 20, 'x');
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(client.send(flood));
  expect_growth_below(16 << 20, before);
  test.gate_open = true;
  ASSERT_TRUE(client.receive_until("slow"));
  EXPECT_NE(client.got().find("Connection: close"), std::string::npos);
}

HttpServerOptions impatient() {
  HttpServerOptions options = test_options();
  options.idle_timeout = options.header_timeout = options.body_timeout = 1s;
  options.linger_timeout = 50ms;
  return options;
}

TEST(Task6_6_Timeout, AConnectionWithoutARequestIsClosed) {
  TestServer test(impatient());
  RawClient silent = test.connect();
  EXPECT_EQ(silent.rest(), "");
  RawClient used = test.connect();
  used.send(get("/plain"));
  EXPECT_EQ(body_of(used.answer()), "plain");
  EXPECT_EQ(used.rest(), "") << "between two requests";
  EXPECT_TRUE(eventually([&] { return test.server->num_connections() == 0; }));
}

TEST(Task6_6_Timeout, ARequestThatDripsIsRefused) {
  TestServer test(impatient());
  for (const char* begin : {"GET /plain HTTP/1.1\r\nHost: a\r\nX: ",
                            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"}) {
    RawClient client = test.connect();
    client.send(begin);
    const auto start = std::chrono::steady_clock::now();
    while (!client.receive(5ms) && !client.closed() && std::chrono::steady_clock::now() - start < kPatience)
      client.send("x");
    EXPECT_EQ(status_of(client.got()), 408) << begin << client.got();
  }
  EXPECT_TRUE(eventually([&] { return test.server->num_connections() == 0; }));
  expect_alive(test);
}

TEST(Task6_6_Timeout, ABodyThatNeverComesIsRefused) {
  TestServer test(impatient());
  EXPECT_EQ(refusal(test, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nhello"), 408);
}

// No time-out counts while an answer is made: an engine may be slow.
TEST(Task6_6_Timeout, AnAnswerMayTakeLong) {
  HttpServerOptions options = impatient();
  options.write_timeout = options.idle_timeout;
  TestServer test(options);
  RawClient stream = test.connect(), slow = test.connect();
  stream.send(get("/stream"));
  slow.send(post("/slow", ""));
  ASSERT_TRUE(stream.receive_until("\r\n\r\n"));
  std::this_thread::sleep_for(2 * options.idle_timeout);
  test.gate_open = true;
  EXPECT_EQ(body_of(slow.answer()), "slow");
  test.stream->push("late", true);
  EXPECT_TRUE(stream.receive_until("late"));
}

// It neither reads the answer to its end nor closes: the connection is not held for it.
TEST(Task6_6_Timeout, AClientThatNeverClosesIsLeft) {
  TestServer test(impatient());
  RawClient client = test.connect();
  client.send(get("/plain", "Connection: close\r\n"));
  EXPECT_TRUE(client.receive_until("plain"));
  EXPECT_TRUE(eventually([&] { return test.server->num_connections() == 0; }));
}

}  // namespace
}  // namespace ladder::testing
