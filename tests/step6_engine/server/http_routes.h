#pragma once
// A server with routes to test HTTP itself by: no engine, no model.
#include <atomic>
#include <memory>
#include <mutex>

#include "step6_engine/server/http/http_server.h"
#include "tests/step6_engine/server/http_client.h"

namespace ladder::testing {

// A stream that a test's thread feeds.
struct TestStream {
  std::mutex mutex;
  std::string text;  // not taken yet
  bool ended = false;
  std::function<void()> wake;
  std::atomic<int> num_advances = 0, num_destroyed = 0, num_held = 0;
  std::atomic<int64_t> num_taken = 0;

  void push(std::string_view more, bool end = false) {
    {
      std::lock_guard lock(mutex);
      text += more;
      ended = end;
    }
    wake();
  }
};

class TestAnswer final : public HttpAnswer {
 public:
  explicit TestAnswer(std::shared_ptr<TestStream> stream) : stream_(std::move(stream)) {}
  ~TestAnswer() override { ++stream_->num_destroyed; }

  void advance(HttpExchange& exchange) override {
    ++stream_->num_advances;
    if (!began_) exchange.begin({.content_type = "text/event-stream"});
    began_ = true;
    std::lock_guard lock(stream_->mutex);
    stream_->num_taken += std::ssize(stream_->text);
    if (!stream_->text.empty()) exchange.write(stream_->text);
    stream_->text.clear();
    if (stream_->ended) exchange.finish();
  }

 private:
  std::shared_ptr<TestStream> stream_;
  bool began_ = false;
};

// Whoever wakes it from within advance() must be asked again.
class ChainAnswer final : public HttpAnswer {
 public:
  explicit ChainAnswer(std::function<void()> wake) : wake_(std::move(wake)) {}
  void advance(HttpExchange& exchange) override {
    if (line_ == 0) exchange.begin({.content_type = "text/event-stream"});
    exchange.write("line " + std::to_string(line_) + "\n");
    if (++line_ == 100) return exchange.finish();
    wake_();
  }

 private:
  std::function<void()> wake_;
  int line_ = 0;
};

inline HttpServerOptions test_options() {
  HttpServerOptions options;
  options.port = 0;
  options.request.max_body_bytes = 1 << 20;
  options.linger_timeout = std::chrono::milliseconds(200);
  return options;
}

//   GET /open      "open", without a key
//   GET /plain     "plain"
//   POST /echo     its body; on a worker: /echo_worker
//   GET /stream    the server's stream
//   GET /chain     a stream that wakes itself after each of 100 lines
//   POST /slow     a worker that waits for `gate`
//   GET /forgets   no answer at all;  GET /throws
struct TestServer {
  std::shared_ptr<TestStream> stream = std::make_shared<TestStream>();
  std::atomic<bool> gate_open = false;
  std::atomic<int> num_slow = 0, num_echoed = 0;
  std::unique_ptr<HttpServer> server;  // last: it ends first

  explicit TestServer(HttpServerOptions options = test_options()) {
    Router router;
    const auto add = [&](const char* method, const char* path, HttpHandler handler,
                         Access access = Access::with_key, RunsOn runs_on = RunsOn::connection) {
      router.add({method, path, access, runs_on, std::move(handler)});
    };
    const HttpHandler echo = [this](std::shared_ptr<HttpExchange> exchange) {
      ++num_echoed;
      exchange->respond({.body = exchange->request().body, .content_type = "text/plain"});
    };
    add(
        "GET", "/open", [](auto exchange) { exchange->respond({.body = "open"}); }, Access::anyone);
    add("GET", "/plain", [](auto exchange) { exchange->respond({.body = "plain"}); });
    add("POST", "/echo", echo);
    add("POST", "/echo_worker", echo, Access::with_key, RunsOn::worker);
    const HttpHandler hold = [stream = stream](std::shared_ptr<HttpExchange> exchange) {
      stream->wake = exchange->waker();
      exchange->hold(std::make_unique<TestAnswer>(stream));
      ++stream->num_held;
    };
    add("GET", "/stream", hold);
    add("POST", "/stream_worker", hold, Access::with_key, RunsOn::worker);
    add("GET", "/chain", [](std::shared_ptr<HttpExchange> exchange) {
      exchange->hold(std::make_unique<ChainAnswer>(exchange->waker()));
    });
    const HttpHandler slow = [this](std::shared_ptr<HttpExchange> exchange) {
      ++num_slow;
      while (!gate_open) usleep(1000);
      exchange->respond({.body = "slow"});
    };
    add("POST", "/slow", slow, Access::with_key, RunsOn::worker);
    add("GET", "/forgets", [](auto) {});
    add(
        "POST", "/forgets_worker", [](auto) {}, Access::with_key, RunsOn::worker);
    add("GET", "/throws", [](auto) { throw std::runtime_error("/secret/path at 0x7ffc00001000"); });
    server = std::make_unique<HttpServer>(std::move(options), std::move(router));
  }

  ~TestServer() { gate_open = true; }

  RawClient connect(int receive_buffer = 0) const { return RawClient(server->port(), receive_buffer); }
};

// Until the server's one I/O thread (options.io_threads = 1) has seen everything that was sent, or woken, before: it takes
// things in their order, and this is a request on another connection.
inline void wait_until_seen(const TestServer& test) {
  RawClient other = test.connect();
  other.send("GET /open HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(status_of(other.answer()), 200);
}

inline std::string get(std::string_view path, std::string_view headers = {}) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n" + std::string(headers) + "\r\n";
}

inline std::string post(std::string_view path, std::string_view body, std::string_view headers = {}) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(headers) + "\r\n" + std::string(body);
}

}  // namespace ladder::testing
