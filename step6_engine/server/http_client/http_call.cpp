#include "step6_engine/server/http_client/http_call.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

namespace asio = boost::asio;

namespace {

constexpr size_t kBufferBytes = 16 * 1024;  // a head must fit; what is larger of a body comes in pieces

}  // namespace

HttpCall::HttpCall(asio::io_context& context, Endpoints endpoints, HttpCallRequest request,
                   HttpCallEvents events)
    : socket_(context),
      timer_(context),
      endpoints_(std::move(endpoints)),
      request_(std::move(request)),
      events_(std::move(events)),
      buffer_(kBufferBytes) {}

std::shared_ptr<HttpCall> HttpCall::start(asio::io_context& context, const HttpAddress& address,
                                          const Endpoints& endpoints, HttpCallRequest request,
                                          HttpCallEvents events) {
  const std::string length =
      request.method == "GET" ? std::string() : fmt::format("Content-Length: {}\r\n", request.body.size());
  request.headers = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{}{}\r\n", request.method,
                                request.target, address.authority, length, request.headers);
  std::shared_ptr<HttpCall> call(new HttpCall(context, endpoints, std::move(request), std::move(events)));
  call->on_body_ = [raw = call.get()](std::string_view bytes) {
    if (!std::exchange(raw->head_told_, true)) raw->events_.on_head(raw->response_);
    if (!raw->ended_) raw->events_.on_body(bytes);
  };
  call->arm(call->request_.connect_timeout, HttpCallEnd::no_connect, "connecting timed out");
  asio::post(context, [call] {
    if (!call->ended_) call->connect(0);
  });
  return call;
}

void HttpCall::connect(size_t endpoint) {
  socket_.async_connect(endpoints_[endpoint], [self = shared_from_this(), endpoint](const Failure& failure) {
    if (self->ended_) return;
    Failure ignored;
    if (!failure) {
      self->socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
      return self->write();
    }
    self->socket_.close(ignored);
    if (endpoint + 1 < self->endpoints_.size()) return self->connect(endpoint + 1);
    self->end(HttpCallEnd::no_connect, failure.message());
  });
}

void HttpCall::write() {
  arm(request_.silence_timeout, HttpCallEnd::silent, "no answer in time");
  const std::array<asio::const_buffer, 2> parts = {asio::buffer(request_.headers),
                                                   asio::buffer(request_.body)};
  asio::async_write(socket_, parts, [self = shared_from_this()](const Failure&, size_t) {
    // A server that closed while it was written to may have said why before: so reading goes on.
    if (!self->ended_) self->read();
  });
}

void HttpCall::read() {
  if (reading_ || paused_) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(buffer_.data() + filled_, buffer_.size() - filled_),
                          [self = shared_from_this()](const Failure& failure, size_t count) {
                            self->reading_ = false;
                            if (self->ended_) return;
                            if (!failure) return self->on_bytes(count);
                            boost::beast::error_code bad = asio::error::eof;
                            if (failure == asio::error::eof && self->response_.got_some())
                              self->response_.put_eof(bad);
                            if (!bad) return self->end(HttpCallEnd::whole, {});
                            self->end(HttpCallEnd::lost, failure == asio::error::eof
                                                             ? "the connection was closed"
                                                             : failure.message());
                          });
}

void HttpCall::on_bytes(size_t count) {
  filled_ += count;
  size_t used = 0;
  boost::beast::error_code failure;
  while (used < filled_ && !response_.is_done() && !failure && !ended_) {
    const size_t taken = response_.put(asio::buffer(buffer_.data() + used, filled_ - used), failure);
    used += taken;
    if (taken == 0) break;
  }
  if (ended_) return;
  if (failure && failure != boost::beast::http::error::need_more)
    return end(HttpCallEnd::lost, "not HTTP: " + failure.message());
  filled_ -= used;
  if (filled_ > 0 && used > 0) std::memmove(buffer_.data(), buffer_.data() + used, filled_);
  if (response_.is_header_done() && !std::exchange(head_told_, true)) events_.on_head(response_);
  if (ended_) return;
  if (response_.is_done()) return end(HttpCallEnd::whole, {});
  if (filled_ == buffer_.size())
    return end(HttpCallEnd::lost, "not HTTP: a head or a chunk's header of more than 16 KiB");
  arm(request_.silence_timeout, HttpCallEnd::silent, "nothing more in time");
  read();
}

void HttpCall::resume() {
  if (!std::exchange(paused_, false) || ended_) return;
  arm(request_.silence_timeout, HttpCallEnd::silent, "nothing more in time");
  read();
}

void HttpCall::arm(std::chrono::milliseconds time, HttpCallEnd end, const char* what) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this(), armed = ++armed_, end, what](const Failure& failure) {
    // One who does not read is not waited for.
    if (!failure && armed == self->armed_ && !self->paused_) self->end(end, what);
  });
}

void HttpCall::cancel() {
  if (std::exchange(ended_, true)) return;
  Failure ignored;
  socket_.close(ignored);
  timer_.cancel();
  // What they hold may hold this; and one of them may be running.
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->events_ = {}; });
}

void HttpCall::end(HttpCallEnd how, const std::string& why) {
  if (ended_) return;
  if (how == HttpCallEnd::whole && !std::exchange(head_told_, true)) events_.on_head(response_);
  if (ended_) return;
  const auto on_end = std::move(events_.on_end);
  cancel();
  on_end(how, why);
}

HttpReply http_get(const HttpAddress& address, const std::string& path, const std::string& headers,
                   std::chrono::milliseconds timeout) {
  asio::io_context context;
  HttpReply reply;
  std::string failure = "timed out";
  HttpCallEvents events;
  events.on_head = [&](const ResponseReader& head) { reply.status = head.status; };
  events.on_body = [&](std::string_view bytes) { reply.body += bytes; };
  events.on_end = [&](HttpCallEnd, const std::string& why) { failure = why; };
  const auto call = HttpCall::start(context, address, resolve(address),
                                    {.target = address.path + path,
                                     .headers = headers,
                                     .connect_timeout = timeout,
                                     .silence_timeout = timeout},
                                    std::move(events));
  context.run_for(timeout);
  LADDER_CHECK(failure.empty(), "http://{}{}{}: no answer ({})", address.authority, address.path, path,
               failure);
  return reply;
}

}  // namespace ladder
