#pragma once
// One server behind the router: whether it answers, how busy it is, and the calls to it.
//
//   up ----- it refuses a connection, or answers kMissedChecks health checks in a row not at all -----> out
//      <---------------------------- it answers a check well -------------------------------------------
//
// One that goes out is not asked any more, and calls that have had no answer yet fail, so that their requests go elsewhere: a
// process that was stopped keeps its connections. One that says 503 (it drains, or its engine is stuck) is not asked either,
// but goes on with what it has. Used on the router's thread alone.
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "step6_engine/server/http_client/http_call.h"
#include "step8_advanced/disaggregation/router/load_report.h"
#include "step8_advanced/disaggregation/router/server/prompt_turns.h"
#include "step8_advanced/disaggregation/router/split_request.h"

namespace ladder {

struct BackendOptions {
  std::string role;  // "prefill" or "decode": for messages and metrics
  std::string url;
  std::string check_headers;  // of health checks, as HttpCallRequest::headers: a key
  std::chrono::milliseconds check_interval{1'000}, check_timeout{2'000};
  std::function<void(const std::string& line)> log;
  std::function<void()> on_back;  // it was out and answers again: maybe another process, with an empty cache
};

class Backend {
 public:
  static constexpr int kMissedChecks = 3;

  // Error: the URL is none, or its host is unknown.
  Backend(boost::asio::io_context& context, BackendOptions options);

  void start();  // health checks, for good
  void stop();   // no check is made any more, and every call ends without a word

  bool takes_requests() const { return up_ && ready_; }
  const LoadReport& report() const { return report_; }  // the last one; nothing after kMissedChecks misses
  const std::string& url() const { return options_.url; }
  const HttpAddress& address() const { return address_; }
  const std::string& role() const { return options_.role; }

  // `request.target` is behind the URL's path.
  std::shared_ptr<HttpCall> call(HttpCallRequest request, HttpCallEvents events);

  // What was sent to it by this router and has not ended.
  int64_t num_in_flight = 0;
  int64_t queued_tokens = 0;

  // Of a prefill server: where what it computes is read, as its last answer said; none: not known (any more).
  std::optional<PromptSource> source;
  PromptTurns turns;

 private:
  void check_health();
  void check_load();
  void check_again();
  void missed(const std::string& why);
  void set_up(bool up, const std::string& why);

  boost::asio::io_context& context_;
  const BackendOptions options_;
  const HttpAddress address_;
  const HttpCall::Endpoints endpoints_;
  boost::asio::steady_timer timer_;
  std::vector<std::weak_ptr<HttpCall>> calls_;
  LoadReport report_;
  int num_missed_ = 0, num_missed_reports_ = 0;
  bool up_ = true, ready_ = true, stopped_ = false;
};

// Counts a request at a server as long as it lives; movable.
class BackendUse {
 public:
  BackendUse() = default;
  BackendUse(Backend& backend, int64_t queued_tokens) : backend_(&backend), queued_tokens_(queued_tokens) {
    ++backend.num_in_flight;
    backend.queued_tokens += queued_tokens;
  }
  BackendUse(BackendUse&& other) noexcept
      : backend_(std::exchange(other.backend_, nullptr)), queued_tokens_(other.queued_tokens_) {}
  BackendUse& operator=(BackendUse&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(queued_tokens_, other.queued_tokens_);
    return *this;
  }
  ~BackendUse() {
    if (backend_ == nullptr) return;
    --backend_->num_in_flight;
    backend_->queued_tokens -= queued_tokens_;
  }

 private:
  Backend* backend_ = nullptr;
  int64_t queued_tokens_ = 0;
};

}  // namespace ladder
