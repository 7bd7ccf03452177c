#pragma once
// From bytes to an HttpRequest: HTTP/1.0 and 1.1, bodies with a length or in chunks. No sockets here: it is fed.
//
// Memory stays within the limits whatever is fed. Where two readers of the same bytes could differ about where a
// request ends (two lengths, a length beside chunks, an encoding that is not chunks alone) it is refused: behind a
// proxy one request could be smuggled inside another.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "step6_engine/server/http/exchange.h"

namespace ladder {

struct RequestLimits {
  int64_t max_header_bytes = 64 * 1024;  // request line and headers together
  int64_t max_headers = 100;
  int64_t max_body_bytes = 32 * 1024 * 1024;
};

class RequestReader {
 public:
  explicit RequestReader(const RequestLimits& limits);
  ~RequestReader();

  // Takes bytes up to the end of the head, then, in the next call, up to the end of the request; returns how many
  // it took. It takes none after the end or an error. Call it once more (with what is left, maybe nothing) while
  // it has a head that was just completed.
  size_t feed(std::string_view bytes);

  bool has_head() const;  // all of request() but the body is there
  bool done() const;
  // 0, or the status to refuse the request with, and why.
  int error_status() const;
  const std::string& error() const;

  bool started() const;           // it took a byte of a request
  bool expects_continue() const;  // the client waits for "100 Continue" before it sends the body
  bool keep_alive() const;        // as the client wants it
  bool is_http_1_0() const;
  HttpRequest& request();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ladder
