// Task 6.6: answers of random pieces to clients that read quickly, slowly, or not to the end.
#include <deque>
#include <stdexcept>
#include <thread>

#include "tests/step6_engine/server/http_routes.h"
#include "tests/support/numerics.h"

namespace ladder::testing {
namespace {

// GET /stream?I: the stream I, for one request at a time; GET /plain.
struct Streams {
  std::deque<std::shared_ptr<TestStream>> streams;
  std::unique_ptr<HttpServer> server;

  explicit Streams(size_t count, HttpServerOptions options = test_options()) {
    for (size_t i = 0; i < count; ++i) streams.push_back(std::make_shared<TestStream>());
    Router router;
    router.add({"GET", "/plain", Access::anyone, RunsOn::connection,
                [](auto exchange) { exchange->respond({.body = "plain"}); }});
    for (const RunsOn runs_on : {RunsOn::connection, RunsOn::worker})
      router.add({"GET", runs_on == RunsOn::worker ? "/stream_worker" : "/stream", Access::anyone, runs_on,
                  [this](std::shared_ptr<HttpExchange> exchange) {
                    const std::shared_ptr<TestStream>& stream =
                        streams.at(std::stoul(exchange->request().query));
                    stream->wake = exchange->waker();
                    exchange->hold(std::make_unique<TestAnswer>(stream));
                    ++stream->num_held;
                  }});
    server = std::make_unique<HttpServer>(std::move(options), std::move(router));
  }
  ~Streams() { server.reset(); }

  // Until the answer is held, and can be woken.
  bool begin(RawClient& client, size_t at, const std::string& path = "/stream",
             const std::string& version = "1.1") {
    const int before = streams[at]->num_held;
    return client.send("GET " + path + "?" + std::to_string(at) + " HTTP/" + version +
                       "\r\nHost: a\r\n\r\n") &&
           client.receive_until("\r\n\r\n") && eventually([&] { return streams[at]->num_held > before; });
  }
  // Until a server of one I/O thread has seen what was woken before.
  void wait_until_seen() const {
    RawClient other(server->port());
    other.send(get("/plain"));
    EXPECT_EQ(status_of(other.answer()), 200);
  }
};

// The text within chunks, up to the last one, and nothing behind it.
std::string unchunked(std::string_view bytes) {
  std::string text;
  while (true) {
    const size_t line = bytes.find("\r\n");
    if (line == bytes.npos || line == 0) return "no chunk: " + std::string(bytes.substr(0, 40));
    const size_t size = std::stoul(std::string(bytes.substr(0, line)), nullptr, 16);
    bytes.remove_prefix(line + 2);
    if (size == 0) return bytes == "\r\n" ? text : "something behind the last chunk";
    if (bytes.size() < size + 2 || bytes.substr(size, 2) != "\r\n") return "a chunk without its end";
    text += bytes.substr(0, size);
    bytes.remove_prefix(size + 2);
  }
}

TEST(Hidden6_6_Streams, EveryClientGetsItsOwnBytesInTheirOrder) {
  Random random;
  SCOPED_TRACE(random.describe());
  HttpServerOptions options = test_options();
  options.io_threads = static_cast<int>(random.integer(1, 3));
  if (random.integer(0, 1) == 0) options.send_buffer_bytes = 16 * 1024;
  constexpr size_t kClients = 24;
  Streams test(kClients, options);
  std::vector<RawClient> clients;
  std::vector<bool> old(kClients);
  for (size_t i = 0; i < kClients; ++i) {
    clients.emplace_back(test.server->port(), random.integer(0, 2) == 0 ? 16 * 1024 : 0);
    old[i] = random.integer(0, 4) == 0;
    ASSERT_TRUE(test.begin(clients[i], i, random.integer(0, 1) == 0 ? "/stream" : "/stream_worker",
                           old[i] ? "1.0" : "1.1"));
  }
  std::vector<std::string> expected(kClients);
  constexpr size_t kWriters = 3;
  std::vector<std::thread> writers;
  for (size_t writer = 0; writer < kWriters; ++writer)
    writers.emplace_back([&, writer, seed = random.engine()()] {
      Random own(seed);
      for (int step = 0; step < 200; ++step) {
        for (size_t i = writer; i < kClients; i += kWriters) {  // as a step of an engine: one after the other
          const std::string piece = std::to_string(step) + " of " + std::to_string(i) +
                                    std::string(static_cast<size_t>(own.integer(0, 900)), 'x') + "\n";
          expected[i] += piece;
          test.streams[i]->push(piece);
        }
        if (own.integer(0, 9) == 0) usleep(static_cast<unsigned>(own.integer(0, 2000)));
      }
      for (size_t i = writer; i < kClients; i += kWriters) test.streams[i]->push("", true);
    });
  bool all = true;
  for (size_t i = 0; i < kClients && all; ++i)
    all = old[i] ? clients[i].rest(10s).size() > 0 && clients[i].closed()
                 : clients[i].receive_until("\r\n0\r\n\r\n", 10s);
  for (std::thread& writer : writers) writer.join();
  ASSERT_TRUE(all) << "a stream does not end";
  for (size_t i = 0; i < kClients; ++i) {
    const std::string body = body_of(clients[i].got());
    EXPECT_TRUE((old[i] ? body : unchunked(body)) == expected[i]) << "client " << i;
    EXPECT_TRUE(eventually([&] { return test.streams[i]->num_destroyed == 1; }, 5s))
        << "an answer that has ended is still there";
    if (old[i]) continue;
    clients[i].got().clear();
    clients[i].send(get("/plain"));
    EXPECT_EQ(body_of(clients[i].answer()), "plain");
  }
}

// Its end has no bytes of its own: it may come with the last ones, while they are written, or when they have left.
TEST(Hidden6_6_Streams, AStreamWithoutChunksEndsWhenItIsToldTo) {
  Random random;
  SCOPED_TRACE(random.describe());
  Streams test(1);
  for (int round = 0; round < 12; ++round) {
    RawClient client(test.server->port());
    ASSERT_TRUE(test.begin(client, 0, random.integer(0, 1) == 0 ? "/stream" : "/stream_worker", "1.0"));
    TestStream& stream = *test.streams[0];
    std::string expected;
    for (int64_t i = random.integer(0, 3); i > 0; --i) {
      const std::string piece(static_cast<size_t>(random.integer(1, 3000)), 'x');
      expected += piece;
      stream.push(piece);
    }
    if (round % 2 == 0) {  // all of it has left, and the server knows
      ASSERT_TRUE(eventually([&] {
        client.receive(1ms);
        return body_of(client.got()) == expected;
      }));
      usleep(10'000);
    }
    stream.push("", true);
    client.rest(10s);
    ASSERT_TRUE(client.closed()) << "round " << round;
    EXPECT_TRUE(body_of(client.got()) == expected);
    ASSERT_TRUE(eventually([&] { return stream.num_destroyed == round + 1; }, 10s));
    stream.ended = false;
  }
}

// It writes at random, so that it is asked by a wake at times, at times after a write.
class HesitantAnswer final : public HttpAnswer {
 public:
  HesitantAnswer(std::function<void()> wake, uint64_t seed) : wake_(std::move(wake)), random_(seed) {}
  void advance(HttpExchange& exchange) override {
    if (calls_ == 0) exchange.begin({});
    if (++calls_ == 60) return exchange.finish();
    const bool early = random_.integer(0, 1) == 0;
    if (early) wake_();
    if (random_.integer(0, 2) == 0) exchange.write("x");
    if (!early || random_.integer(0, 1) == 0) wake_();
  }

 private:
  std::function<void()> wake_;
  Random random_;
  int calls_ = 0;
};

TEST(Hidden6_6_Streams, AnAnswerThatWakesItselfGoesOn) {
  Random random;
  SCOPED_TRACE(random.describe());
  Router router;
  std::atomic<uint64_t> seed = random.engine()();
  router.add({"GET", "/", Access::anyone, RunsOn::connection, [&](std::shared_ptr<HttpExchange> exchange) {
                exchange->hold(std::make_unique<HesitantAnswer>(exchange->waker(), ++seed));
              }});
  HttpServer server(test_options(), std::move(router));
  std::vector<RawClient> clients;
  for (int i = 0; i < 20; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(get("/"));
  }
  for (RawClient& client : clients) ASSERT_TRUE(client.receive_until("\r\n0\r\n\r\n", 10s)) << client.got();
}

TEST(Hidden6_6_Streams, WhatASlowClientHasNotReadStaysWhereItIsMade) {
  Random random;
  SCOPED_TRACE(random.describe());
  HttpServerOptions options = test_options();
  options.send_buffer_bytes = 16 * 1024;
  options.io_threads = 1;
  Streams test(1, options);
  RawClient client(test.server->port(), 16 * 1024);
  ASSERT_TRUE(test.begin(client, 0));
  TestStream& stream = *test.streams[0];
  std::string expected(static_cast<size_t>(random.integer(1 << 20, 3 << 20)), 'a');
  stream.push(expected);
  const int64_t first = std::ssize(expected);
  ASSERT_TRUE(eventually([&] { return stream.num_taken == first; }));
  const int advances = stream.num_advances;
  for (int64_t i = random.integer(3, 40); i > 0; --i) {
    const std::string piece(static_cast<size_t>(random.integer(1, 100'000)), 'b');
    expected += piece;
    stream.push(piece);
    if (random.integer(0, 9) == 0) test.wait_until_seen();
  }
  test.wait_until_seen();
  EXPECT_EQ(stream.num_advances, advances) << "it was asked while a write was under way";
  stream.push("end", true);
  expected += "end";
  ASSERT_TRUE(client.receive_until("\r\n0\r\n\r\n"));
  EXPECT_TRUE(unchunked(body_of(client.got())) == expected);
  EXPECT_LE(stream.num_advances, advances + 3) << "what came meanwhile is one piece";
}

TEST(Hidden6_6_Streams, AClientMayGoAtAnyMoment) {
  Random random;
  SCOPED_TRACE(random.describe());
  HttpServerOptions options = test_options();
  options.send_buffer_bytes = 16 * 1024;
  Streams test(1, options);
  for (int round = 0; round < 40; ++round) {
    const int destroyed = test.streams[0]->num_destroyed;
    {
      RawClient client(test.server->port(), random.integer(0, 1) == 0 ? 16 * 1024 : 0);
      ASSERT_TRUE(test.begin(client, 0, random.integer(0, 1) == 0 ? "/stream" : "/stream_worker"));
      if (random.integer(0, 1) == 0)
        test.streams[0]->push(std::string(static_cast<size_t>(random.integer(1, 1 << 19)), 'x'));
      if (random.integer(0, 1) == 0) client.receive(10ms);
      if (random.integer(0, 1) == 0) usleep(static_cast<unsigned>(random.integer(0, 3000)));
      if (random.integer(0, 1) == 0) client.shut_writing();
      ASSERT_EQ(test.streams[0]->num_held, round + 1);
    }
    ASSERT_TRUE(eventually([&] { return test.streams[0]->num_destroyed == destroyed + 1; }, 10s))
        << "round " << round;
    test.streams[0]->wake();  // after the end: nothing
    std::lock_guard lock(test.streams[0]->mutex);
    test.streams[0]->text.clear();
  }
  EXPECT_TRUE(eventually([&] { return test.server->num_requests() == 0; }));
}

// The log of a failure fails, too, so that something is thrown out of a wake: that connection is closed, and of all that
// were woken with it, while the thread was busy, none is forgotten.
TEST(Hidden6_6_Streams, OfManyThatAreWokenAtOnceOneMayThrow) {
  class Defect final : public HttpAnswer {
   public:
    void advance(HttpExchange& exchange) override {
      if (begun_) throw std::runtime_error("a defect");
      exchange.begin({});
      begun_ = true;
    }

   private:
    bool begun_ = false;
  };
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t count = random.integer(2, 12), broken = random.integer(0, count - 1);
  std::vector<std::shared_ptr<TestStream>> streams;
  for (int64_t i = 0; i < count; ++i) streams.push_back(std::make_shared<TestStream>());
  std::atomic<bool> busy = false, open = false;
  std::atomic<int> num_lines = 0;
  Router router;
  router.add(
      {"GET", "/stream", Access::anyone, RunsOn::connection, [&](std::shared_ptr<HttpExchange> exchange) {
         const auto at = std::stoul(exchange->request().query);
         streams[at]->wake = exchange->waker();
         if (static_cast<int64_t>(at) == broken)
           exchange->hold(std::make_unique<Defect>());
         else
           exchange->hold(std::make_unique<TestAnswer>(streams[at]));
       }});
  router.add({"GET", "/busy", Access::anyone, RunsOn::connection, [&](auto exchange) {
                busy = true;
                while (!open) usleep(1000);
                exchange->respond({});
              }});
  HttpServerOptions options = test_options();
  options.io_threads = 1;
  options.error_log = [&](std::string_view) {
    if (num_lines++ == 0) throw std::runtime_error("the log is full");
  };
  HttpServer server(std::move(options), std::move(router));
  std::vector<RawClient> clients;
  for (int64_t i = 0; i < count; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(get("/stream?" + std::to_string(i)));
    ASSERT_TRUE(clients.back().receive_until("\r\n\r\n"));
  }
  RawClient other(server.port());
  other.send(get("/busy"));
  ASSERT_TRUE(eventually([&] { return busy == true; }));
  for (const auto& stream : streams) stream->push("news", true);
  open = true;
  for (int64_t i = 0; i < count; ++i) {
    RawClient& client = clients[static_cast<size_t>(i)];
    if (i == broken) {
      EXPECT_EQ(client.rest(10s).find("\r\n0\r\n"), std::string::npos);
    } else {
      ASSERT_TRUE(client.receive_until("\r\n0\r\n\r\n", 10s))
          << i << " of " << count << ", " << broken << " throws";
    }
  }
}

// `fails_at`: which call of advance() throws; 1: before anything was begun.
class FailingAnswer final : public HttpAnswer {
 public:
  FailingAnswer(std::function<void()> wake, int64_t fails_at) : wake_(std::move(wake)), fails_at_(fails_at) {}
  void advance(HttpExchange& exchange) override {
    if (++calls_ == fails_at_) throw std::runtime_error("a defect");
    if (calls_ == 1) exchange.begin({});
    exchange.write("piece");
    wake_();
  }

 private:
  std::function<void()> wake_;
  const int64_t fails_at_;
  int64_t calls_ = 0;
};

TEST(Hidden6_6_Streams, AnAnswerThatFailsIsA500OrIsCut) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::atomic<int64_t> fails_at = 1;
  Router router;
  router.add({"GET", "/", Access::anyone, RunsOn::connection, [&](std::shared_ptr<HttpExchange> exchange) {
                exchange->hold(std::make_unique<FailingAnswer>(exchange->waker(), fails_at));
              }});
  HttpServer server(test_options(), std::move(router));
  for (int round = 0; round < 10; ++round) {
    fails_at = round == 0 ? 1 : random.integer(1, 30);
    RawClient client(server.port());
    client.send(get("/"));
    if (fails_at == 1) {
      ASSERT_EQ(status_of(client.answer(10s)), 500);
      continue;
    }
    const std::string& all = client.rest(10s);
    ASSERT_TRUE(client.closed());
    EXPECT_EQ(status_of(all), 200);
    EXPECT_EQ(all.find("\r\n0\r\n"), all.npos) << "a stream that was cut looks like a whole one";
  }
  EXPECT_TRUE(eventually([&] { return server.num_requests() == 0; }));
}

}  // namespace
}  // namespace ladder::testing
