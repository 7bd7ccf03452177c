#pragma once
// One stream of a load: a connection that sends request after request and reads the answers. On its thread alone.
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <optional>

#include "cli/bench/serve_load.h"
#include "cli/bench/serve_sse.h"
#include "step6_engine/server/http_client/response_reader.h"

namespace ladder {

// What the streams of all threads share.
struct LoadState {
  const std::vector<ServeRequest>& requests;
  const LoadOptions& options;
  const std::vector<boost::asio::ip::tcp::endpoint>& endpoints;
  std::vector<ServeRecord>& records;
  std::chrono::steady_clock::time_point begin;
  std::atomic<int64_t> next{0};  // the request that the next free stream takes
  std::atomic<int64_t> done{0};

  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
};

class LoadStream {
 public:
  LoadStream(boost::asio::io_context& context, LoadState& load);
  void start();  // takes requests until there are none

 private:
  using Failure = boost::system::error_code;
  void take_request();
  void send();
  void connect(size_t endpoint);
  void write();
  void read();
  void on_bytes(size_t count);
  void on_body(std::string_view bytes);
  void on_event(std::string_view data);
  void on_lost(const char* kind, const Failure& failure);
  void on_complete();
  void end(std::string error, std::string detail);
  void arm(double seconds);
  ServeRecord& record() { return load_.records[static_cast<size_t>(index_)]; }
  const ServeRequest& request() const { return load_.requests[static_cast<size_t>(index_)]; }

  LoadState& load_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::function<void(std::string_view)> body_to_ = [this](std::string_view bytes) { on_body(bytes); };
  std::optional<ResponseReader> response_;
  SseReader events_;
  std::vector<char> buffer_;
  size_t filled_ = 0;
  std::string other_body_;  // of an answer that is no event stream
  int64_t index_ = -1;
  int64_t generation_ = 0;  // grows with each request, so that a handler of an earlier one knows itself
  double read_at_ = 0.0;
  double free_ = 0.0;
  bool reused_ = false;  // the connection served a request before this one
  bool done_seen_ = false;
  bool usage_seen_ = false;
  bool stream_error_ = false;
};

}  // namespace ladder
