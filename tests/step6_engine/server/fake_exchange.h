#pragma once
// An exchange without a socket: what a test asks, and what was answered. The test's thread is the connection's.
//
//   auto exchange = FakeExchange::post("/v1/completions", R"({"prompt": "a"})");
//   route.handler(exchange);
//   exchange->run();                 // until the answer has ended
//   exchange->head.status, exchange->body(), exchange->pieces
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "step6_engine/server/http/exchange.h"
#include "step6_engine/server/http/router.h"

namespace ladder::testing {

class FakeExchange final : public HttpExchange {
 public:
  explicit FakeExchange(HttpRequest request) : request_(std::move(request)) {}

  static std::shared_ptr<FakeExchange> get(std::string path, std::string query = {}) {
    return std::make_shared<FakeExchange>(
        HttpRequest{.method = "GET", .path = std::move(path), .query = std::move(query)});
  }
  static std::shared_ptr<FakeExchange> post(std::string path, std::string body) {
    return std::make_shared<FakeExchange>(HttpRequest{.method = "POST",
                                                      .path = std::move(path),
                                                      .headers = {{"Content-Type", "application/json"}},
                                                      .body = std::move(body)});
  }

  // Hands the exchange to the route of its method and path, and runs it. Failure: there is no such route, or its
  // answer does not end.
  static std::shared_ptr<FakeExchange> ask(const Router& router, std::shared_ptr<FakeExchange> exchange) {
    const Route* route = router.find(exchange->request_.method, exchange->request_.path);
    if (route == nullptr) {
      ADD_FAILURE() << "no route " << exchange->request_.method << " " << exchange->request_.path;
      return exchange;
    }
    route->handler(exchange);
    exchange->run();
    return exchange;
  }

  const HttpRequest& request() const override { return request_; }

  void respond(HttpResponse response) override {
    std::lock_guard lock(wakes_->mutex);
    EXPECT_FALSE(ended_ || begun_) << "a second answer";
    head = std::move(response);
    pieces.push_back(head.body);
    ended_ = true;
    wakes_->changed.notify_all();
  }
  void hold(std::unique_ptr<HttpAnswer> answer) override {
    std::lock_guard lock(wakes_->mutex);
    EXPECT_FALSE(ended_ || answer_) << "a second answer";
    answer_ = std::move(answer);
    wakes_->woken = true;
    wakes_->changed.notify_all();
  }
  std::function<void()> waker() override {
    return [wakes = wakes_] {
      std::lock_guard lock(wakes->mutex);
      wakes->woken = true;
      wakes->changed.notify_all();
    };
  }

  void begin(HttpResponse response) override {
    EXPECT_FALSE(ended_ || begun_) << "a second answer";
    head = std::move(response);
    head.body.clear();
    begun_ = true;
  }
  void write(std::string_view bytes) override {
    EXPECT_TRUE(begun_ && !ended_) << "a piece outside of a stream";
    pieces.emplace_back(bytes);
  }
  void finish() override {
    EXPECT_TRUE(begun_ && !ended_);
    ended_ = true;
  }

  // Waits for a wake, at most that long, and lets the answer go on once. False: nothing woke it.
  bool run_once(std::chrono::milliseconds patience = std::chrono::seconds(60)) {
    {
      std::unique_lock lock(wakes_->mutex);
      if (!wakes_->changed.wait_for(lock, patience, [this] { return ended_ || wakes_->woken; })) return false;
      if (ended_) return true;
      if (!answer_) return wakes_->woken = false, true;  // woken before it was held, which wakes it again
      wakes_->woken = false;
    }
    answer_->advance(*this);
    if (ended_) answer_.reset();
    return true;
  }
  // Until the answer has ended. Failure: nothing wakes it for `patience`.
  void run(std::chrono::milliseconds patience = std::chrono::seconds(60)) {
    while (!ended()) {
      if (run_once(patience)) continue;
      ADD_FAILURE() << request_.method << " " << request_.path << ": the answer does not end";
      return;
    }
  }
  bool ended() const {
    std::lock_guard lock(wakes_->mutex);
    return ended_;
  }
  // The client goes away.
  void drop() { answer_.reset(); }

  std::string body() const {
    std::string all;
    for (const std::string& piece : pieces) all += piece;
    return all;
  }
  std::string header(std::string_view name) const {
    return std::string(HttpRequest{.headers = head.headers}.header(name));
  }

  HttpResponse head;                // of either kind of answer
  std::vector<std::string> pieces;  // what was written, piece by piece; a response's body is one

 private:
  struct Wakes {  // outlives the exchange: a waker may be called at any time
    std::mutex mutex;
    std::condition_variable changed;
    bool woken = false;
  };

  HttpRequest request_;
  std::shared_ptr<Wakes> wakes_ = std::make_shared<Wakes>();
  std::unique_ptr<HttpAnswer> answer_;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace ladder::testing
