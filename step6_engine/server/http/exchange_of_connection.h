#pragma once
// The exchange that handlers see: it finds its connection's thread, whichever thread it is used on.
#include <atomic>
#include <memory>
#include <string>

#include "step6_engine/server/http/connection.h"

namespace ladder {

class Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(HttpRequest request, std::shared_ptr<IoThread> thread, std::weak_ptr<Connection> connection,
           uint64_t number);
  ~Exchange() override;  // who never answered has answered 500

  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override;
  void hold(std::unique_ptr<HttpAnswer> answer) override;
  std::function<void()> waker() override;
  void begin(HttpResponse head) override { advancing().begin_stream(std::move(head)); }
  void write(std::string_view bytes) override { advancing().write_stream(bytes); }
  void finish() override { advancing().finish_stream(); }

  uint64_t number() const { return number_; }
  bool client_gone() const { return connection_.expired(); }

 private:
  void claim();  // Error: it was answered before
  Connection& advancing() const;

  HttpRequest request_;
  const std::shared_ptr<IoThread> thread_;
  const std::weak_ptr<Connection> connection_;
  const uint64_t number_;
  std::atomic<bool> answered_{false};
};

// Runs a route's handler; what it throws becomes an answer.
void run_handler(const ServerCore& core, const Route& route, const std::shared_ptr<Exchange>& exchange);

}  // namespace ladder
