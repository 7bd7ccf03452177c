// An answer that is made bit by bit: woken, written, read slowly, or by nobody any more.
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/step6_engine/server/http_routes.h"

namespace ladder::testing {
namespace {

// The bytes within chunks; empty on a mistake in their framing.
std::string unchunked(std::string_view bytes) {
  std::string text;
  while (true) {
    const size_t line = bytes.find("\r\n");
    if (line == bytes.npos) return {};
    const size_t size = std::stoul(std::string(bytes.substr(0, line)), nullptr, 16);
    bytes.remove_prefix(line + 2);
    if (size == 0) return bytes == "\r\n" ? text : std::string();
    if (bytes.size() < size + 2 || bytes.substr(size, 2) != "\r\n") return {};
    text += bytes.substr(0, size);
    bytes.remove_prefix(size + 2);
  }
}

bool begins_stream(RawClient& client, TestServer& test, std::string_view request) {
  const int before = test.stream->num_held;
  return client.send(request) && client.receive_until("\r\n\r\n") &&
         eventually([&] { return test.stream->num_held > before; });
}

TEST(Task6_6_Stream, ComesInChunksAsItIsMade) {
  TestServer test;
  for (const std::string& request : {get("/stream"), post("/stream_worker", "{}")}) {
    RawClient client = test.connect();
    ASSERT_TRUE(begins_stream(client, test, request));
    EXPECT_NE(client.got().find("Transfer-Encoding: chunked"), std::string::npos);
    EXPECT_NE(client.got().find("Content-Type: text/event-stream\r\n"), std::string::npos);
    test.stream->push("data: one\n\n");
    ASSERT_TRUE(client.receive_until("b\r\ndata: one\n\n\r\n"));
    test.stream->push("data: two\n\n", true);
    ASSERT_TRUE(client.receive_until("b\r\ndata: two\n\n\r\n0\r\n\r\n"));
    client.got().clear();
    client.send(get("/plain"));
    EXPECT_EQ(body_of(client.answer()), "plain");
    test.stream->ended = false;
  }
  EXPECT_TRUE(eventually([&] { return test.stream->num_destroyed == 2; }));
}

TEST(Task6_6_Stream, AClientOfHttp10GetsItWithoutChunksUntilTheEnd) {
  TestServer test;
  RawClient client = test.connect();
  ASSERT_TRUE(begins_stream(client, test, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  test.stream->push("one");
  ASSERT_TRUE(client.receive_until("\r\n\r\none"));
  test.stream->push(" two", true);
  const std::string& all = client.rest();
  EXPECT_TRUE(all.ends_with("\r\n\r\none two")) << all;
  EXPECT_NE(all.find("Connection: close"), all.npos);
  EXPECT_EQ(all.find("chunked"), all.npos);
}

// Without chunks the end has no bytes: when it comes alone, there is nothing to write that could lead to it.
TEST(Task6_6_Stream, AStreamWithoutChunksEndsAfterItsLastBytesHaveLeft) {
  TestServer test;
  RawClient client = test.connect();
  ASSERT_TRUE(begins_stream(client, test, "GET /stream HTTP/1.0\r\n\r\n"));
  test.stream->push("all of it");
  ASSERT_TRUE(client.receive_until("all of it"));
  const int advances = test.stream->num_advances;
  usleep(20'000);  // that the server, too, knows that it has left
  test.stream->push("", true);
  EXPECT_TRUE(client.rest().ends_with("\r\n\r\nall of it"));
  EXPECT_GT(test.stream->num_advances, advances);
  EXPECT_TRUE(eventually([&] { return test.server->num_requests() == 0; }));
}

TEST(Task6_6_Stream, AWakeWithinAdvanceIsNotLost) {
  TestServer test;
  RawClient client = test.connect();
  client.send(get("/chain"));
  EXPECT_TRUE(client.receive_until("line 99\n")) << client.got().size();
}

// It writes at every second call only, so that it is asked from within a wake too, not just after a write.
class HesitantAnswer final : public HttpAnswer {
 public:
  explicit HesitantAnswer(std::function<void()> wake) : wake_(std::move(wake)) {}
  void advance(HttpExchange& exchange) override {
    if (calls_ == 0) exchange.begin({});
    if (++calls_ == 20) return exchange.finish();
    if (calls_ % 2 == 0) exchange.write("x");
    wake_();
  }

 private:
  std::function<void()> wake_;
  int calls_ = 0;
};

TEST(Task6_6_Stream, AWakeFromWithinAWakeIsNotLost) {
  Router router;
  router.add({"GET", "/", Access::anyone, RunsOn::connection, [](std::shared_ptr<HttpExchange> exchange) {
                exchange->hold(std::make_unique<HesitantAnswer>(exchange->waker()));
              }});
  HttpServer server(test_options(), std::move(router));
  RawClient client(server.port());
  client.send(get("/"));
  EXPECT_TRUE(client.receive_until("\r\n0\r\n\r\n")) << client.got();
}

// Two are woken while the thread is busy. What the first one throws, here out of the log of its own failure, closes its
// connection and no other.
TEST(Task6_6_Stream, AConnectionThatThrowsTakesNoOtherWakesAlong) {
  class Defect final : public HttpAnswer {
   public:
    void advance(HttpExchange& exchange) override {
      if (std::exchange(begun_, true)) throw std::runtime_error("a defect");
      exchange.begin({});
    }

   private:
    bool begun_ = false;
  };
  const auto stream = std::make_shared<TestStream>();
  std::function<void()> wake_defect;
  std::atomic<bool> busy = false, gate_open = false;
  std::atomic<int> num_lines = 0;
  Router router;
  const auto add = [&](const char* path, HttpHandler handler) {
    router.add({"GET", path, Access::anyone, RunsOn::connection, std::move(handler)});
  };
  add("/defect", [&](std::shared_ptr<HttpExchange> exchange) {
    wake_defect = exchange->waker();
    exchange->hold(std::make_unique<Defect>());
  });
  add("/stream", [&](std::shared_ptr<HttpExchange> exchange) {
    stream->wake = exchange->waker();
    exchange->hold(std::make_unique<TestAnswer>(stream));
  });
  add("/busy", [&](auto exchange) {
    busy = true;
    while (!gate_open) usleep(1000);
    exchange->respond({});
  });
  HttpServerOptions options = test_options();
  options.io_threads = 1;
  options.error_log = [&](std::string_view) {
    if (num_lines++ == 0) throw std::runtime_error("the log is full");
  };
  HttpServer server(std::move(options), std::move(router));
  RawClient broken(server.port()), sound(server.port()), other(server.port());
  broken.send(get("/defect"));
  ASSERT_TRUE(broken.receive_until("\r\n\r\n"));
  sound.send(get("/stream"));
  ASSERT_TRUE(sound.receive_until("\r\n\r\n"));
  other.send(get("/busy"));
  ASSERT_TRUE(eventually([&] { return busy == true; }));
  wake_defect();
  stream->push("data", true);
  gate_open = true;
  EXPECT_TRUE(sound.receive_until("data\r\n0\r\n\r\n")) << sound.got();
  EXPECT_EQ(broken.rest().find("\r\n0\r\n"), std::string::npos);
  EXPECT_EQ(num_lines, 2) << "the failure, and that it could not be logged";
}

TEST(Task6_6_Stream, WakesOfAnotherThreadAreNotLost) {
  TestServer test;
  RawClient client = test.connect();
  ASSERT_TRUE(begins_stream(client, test, get("/stream")));
  std::string expected;
  std::thread writer([&] {
    for (int i = 0; i < 20000; ++i) {
      const std::string line = std::to_string(i) + "\n";
      expected += line;
      test.stream->push(line);
      if (i % 1000 == 0) usleep(1000);  // so that the connection falls asleep now and then
    }
    test.stream->push("", true);
  });
  EXPECT_TRUE(client.receive_until("\r\n0\r\n\r\n"));
  writer.join();
  EXPECT_EQ(unchunked(body_of(client.got())), expected);
}

HttpServerOptions small_buffers() {
  HttpServerOptions options = test_options();
  options.send_buffer_bytes = 16 * 1024;
  return options;
}

// The engine's wakes for a client that does not read: its answer is not asked until what it gave has left.
TEST(Task6_6_Stream, ASlowReaderHoldsNoMoreThanOnePiece) {
  HttpServerOptions options = small_buffers();
  options.io_threads = 1;
  TestServer test(options);
  RawClient client = test.connect(16 * 1024);
  ASSERT_TRUE(begins_stream(client, test, get("/stream")));
  const std::string first(1 << 20, 'x'), piece(64 * 1024, 'x');
  test.stream->push(first);  // more than the kernel's two buffers hold
  const int64_t num_first = std::ssize(first);
  ASSERT_TRUE(eventually([&] { return test.stream->num_taken == num_first; }));
  const int advances = test.stream->num_advances;
  constexpr int kPieces = 150;
  for (int i = 0; i < kPieces; ++i) test.stream->push(piece);
  wait_until_seen(test);
  EXPECT_EQ(test.stream->num_taken, num_first) << "the rest stays where it is made";
  EXPECT_EQ(test.stream->num_advances, advances) << "it was asked while a write was under way";
  test.stream->push("", true);
  EXPECT_TRUE(client.receive_until("\r\n0\r\n\r\n"));
  EXPECT_EQ(unchunked(body_of(client.got())).size(), first.size() + piece.size() * kPieces);
}

// All of the first answer is made, and waits for the client, which sends its next request meanwhile.
TEST(Task6_6_Stream, ARequestThatComesBeforeTheAnswerHasLeftIsKeptWhole) {
  TestServer test(small_buffers());
  RawClient client = test.connect(16 * 1024);
  const std::string body(1 << 20, 'x');
  client.send(post("/echo", body));
  ASSERT_TRUE(client.receive_until("\r\n\r\n"));
  std::string next;
  while (next.size() < 400'000) next += std::to_string(next.size()) + " ";
  std::thread sender([&] { client.send(post("/echo", next)); });
  usleep(100'000);  // that the server reads of it what it will; the answer is the same if it has not
  EXPECT_EQ(body_of(client.answer()), body);
  EXPECT_EQ(body_of(client.answer()), next);
  sender.join();
}

TEST(Task6_6_Stream, AReaderThatIsTooSlowIsCut) {
  HttpServerOptions options = small_buffers();
  options.write_timeout = 100ms;
  TestServer test(options);
  RawClient client = test.connect(16 * 1024);
  ASSERT_TRUE(begins_stream(client, test, get("/stream")));
  test.stream->push(std::string(8 << 20, 'x'));
  EXPECT_TRUE(eventually([&] { return test.stream->num_destroyed == 1; }));
  EXPECT_TRUE(eventually([&] { return test.server->num_connections() == 0; }));
  EXPECT_EQ(test.server->num_requests(), 0);
}

TEST(Task6_6_Stream, AReaderThatReadsSlowlyButReadsIsNotCut) {
  HttpServerOptions options = small_buffers();
  options.write_timeout = 3s;
  TestServer test(options);
  RawClient client = test.connect(16 * 1024);
  ASSERT_TRUE(begins_stream(client, test, get("/stream")));
  const std::string all(8 << 20, 'x');
  test.stream->push(all, true);
  for (const auto end = std::chrono::steady_clock::now() + options.write_timeout * 3 / 2;
       std::chrono::steady_clock::now() < end && client.receive();)
    usleep(100'000);
  EXPECT_LT(client.got().size(), all.size()) << "the test was too quick to show it";
  EXPECT_TRUE(client.receive_until("\r\n0\r\n\r\n"));
  EXPECT_EQ(unchunked(body_of(client.got())), all);
}

TEST(Task6_6_Stream, AClientThatGoesAwayIsNoticedThoughNothingIsWritten) {
  TestServer test;
  for (const bool half : {false, true}) {
    RawClient client = test.connect();
    const int destroyed = test.stream->num_destroyed;
    ASSERT_TRUE(begins_stream(client, test, get("/stream")));
    EXPECT_EQ(test.stream->num_destroyed, destroyed);
    if (half) {
      client.shut_writing();  // as a client that ends: nobody tells the two apart
    } else {
      client.close();
    }
    EXPECT_TRUE(eventually([&] { return test.stream->num_destroyed == destroyed + 1; })) << half;
    EXPECT_TRUE(eventually([&] { return test.server->num_requests() == 0; }));
    test.stream->wake();  // after the end: nothing happens
  }
}

// It went while its request was on a worker: what the worker then holds is destroyed at once.
TEST(Task6_6_Stream, AnAnswerForNobodyIsDestroyed) {
  HttpServerOptions options = test_options();
  options.worker_threads = 1;
  TestServer test(options);
  RawClient blocker = test.connect();
  blocker.send(post("/slow", ""));
  ASSERT_TRUE(eventually([&] { return test.num_slow == 1; }));
  {
    RawClient client = test.connect();
    client.send(post("/stream_worker", ""));
    ASSERT_TRUE(eventually([&] { return test.server->num_requests() == 2; }));
  }
  ASSERT_TRUE(eventually([&] { return test.server->num_requests() == 1; }));
  test.gate_open = true;
  EXPECT_EQ(body_of(blocker.answer()), "slow");
  blocker.send(post("/echo_worker", "next"));  // the worker is done with the one before
  EXPECT_EQ(body_of(blocker.answer()), "next");
  EXPECT_TRUE(eventually([&] { return test.stream->num_held == test.stream->num_destroyed; }));
}

TEST(Task6_6_Stream, ManyStreamsAtOnceOnTwoThreads) {
  TestServer test;
  std::vector<RawClient> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(test.connect());
    clients.back().send(get("/chain"));
  }
  for (RawClient& client : clients) ASSERT_TRUE(client.receive_until("\r\n0\r\n\r\n"));
}

TEST(Task6_6_Stream, StopDestroysWhatIsHeld) {
  TestServer test;
  RawClient client = test.connect();
  ASSERT_TRUE(begins_stream(client, test, get("/stream")));
  test.server->stop();
  EXPECT_EQ(test.stream->num_destroyed, 1);
  test.stream->wake();  // the waker outlives the server
  test.server.reset();
  test.stream->wake();
}

TEST(Task6_6_Stream, HeadGetsTheHeadAlone) {
  TestServer test;
  RawClient client = test.connect();
  client.send("HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(client.receive_until("\r\n\r\n"));
  EXPECT_TRUE(eventually([&] { return test.stream->num_destroyed == 1; }));
  EXPECT_TRUE(client.got().ends_with("\r\n\r\n"));
  client.got().clear();
  client.send(get("/plain"));
  EXPECT_EQ(body_of(client.answer()), "plain");
}

}  // namespace
}  // namespace ladder::testing
