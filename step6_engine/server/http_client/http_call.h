#pragma once
// One request to another HTTP server, and its answer as it comes in.
//
//   connect -> write -> head -> body, body, ... -> end
//                 cancel(): the connection closes        pause(): nothing more is read, so the server stops sending
//
// Each call has a connection of its own: closing it is how a server that makes tokens learns that nobody wants them any
// more, and a kept one that its server has just closed is not told from a server that has died.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "step6_engine/server/http_client/http_address.h"
#include "step6_engine/server/http_client/response_reader.h"

namespace ladder {

struct HttpCallRequest {
  std::string method = "GET";
  std::string target = {};   // "/llm/v1/models"
  std::string headers = {};  // "Name: value\r\n" each, beside Host, Connection and Content-Length
  std::string body = {};
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds silence_timeout{300'000};  // without a byte from the server, once it is connected
};

enum class HttpCallEnd {
  whole,       // all of the answer has come
  no_connect,  // nobody listens there
  lost,        // the connection broke, or what came is not HTTP
  silent,      // a time-out
};

struct HttpCallEvents {
  std::function<void(const ResponseReader& head)> on_head;
  std::function<void(std::string_view bytes)> on_body;
  // Once, and nothing after it. `why`: empty where whole.
  std::function<void(HttpCallEnd end, const std::string& why)> on_end;
};

// Used on its context's thread alone, where its events come.
class HttpCall : public std::enable_shared_from_this<HttpCall> {
 public:
  using Endpoints = std::vector<boost::asio::ip::tcp::endpoint>;

  // It keeps itself alive until its end. No event comes from within start().
  static std::shared_ptr<HttpCall> start(boost::asio::io_context& context, const HttpAddress& address,
                                         const Endpoints& endpoints, HttpCallRequest request,
                                         HttpCallEvents events);

  void cancel();  // no event comes any more
  void fail(const std::string& why) { end(HttpCallEnd::lost, why); }
  void pause() { paused_ = true; }
  void resume();
  bool has_head() const { return head_told_; }

 private:
  using Failure = boost::system::error_code;

  HttpCall(boost::asio::io_context& context, Endpoints endpoints, HttpCallRequest request,
           HttpCallEvents events);
  void connect(size_t endpoint);
  void write();
  void read();
  void on_bytes(size_t count);
  void arm(std::chrono::milliseconds time, HttpCallEnd end, const char* what);
  void end(HttpCallEnd end, const std::string& why);

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  const Endpoints endpoints_;
  HttpCallRequest request_;  // its headers: the whole head
  HttpCallEvents events_;
  std::function<void(std::string_view)> on_body_;
  ResponseReader response_{&on_body_};
  std::vector<char> buffer_;
  size_t filled_ = 0;
  int64_t armed_ = 0;  // grows with each time-out, so that an earlier one knows itself
  bool head_told_ = false, paused_ = false, reading_ = false, ended_ = false;
};

struct HttpReply {
  int status = 0;
  std::string body;
};
// One GET, waited for. Error: nobody answers within the time.
HttpReply http_get(const HttpAddress& address, const std::string& path, const std::string& headers,
                   std::chrono::milliseconds timeout);

}  // namespace ladder
