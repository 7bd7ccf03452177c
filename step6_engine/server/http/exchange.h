#pragma once
// One request of a client and the answer to it, as the code behind the connection sees them; no word of sockets here.
//
//   connection's thread:  handler(exchange)   ->  exchange->respond(...)                 at once, or
//                                                 exchange->hold(answer)                 later, bit by bit
//   any thread:           exchange->waker()() ->  connection's thread: answer->advance()
//
// An answer is asked to go on when someone woke it and the connection has written what it was given before. While a
// client reads slowly nothing is asked of its answer: what comes meanwhile waits where it is made (a RequestStream
// merges it), so a connection never holds more than one piece. A client that goes away, or is cut since it does not
// read, has its answer destroyed: that aborts the request behind it.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ladder {

struct HttpRequest {
  std::string method = {};  // "GET"
  std::string path = {};    // "/v1/models": without the root path and the query
  std::string query = {};   // what follows the '?'
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};

  // The first header of this name, in any case; empty: there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

class HttpExchange;

// What is made bit by bit. Used on the connection's thread alone.
class HttpAnswer {
 public:
  // The answer has ended, or nobody waits for it any more.
  virtual ~HttpAnswer() = default;
  // Once after hold(), then whenever it was woken and all that it has written has left. It takes what there is, and
  // never waits.
  virtual void advance(HttpExchange& exchange) = 0;
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;

  // From any thread, one of the two and once.
  virtual void respond(HttpResponse response) = 0;
  virtual void hold(std::unique_ptr<HttpAnswer> answer) = 0;
  // What wakes the answer: may be called from any thread, at any time (after the end too), and takes well below a
  // microsecond. Wakes that come together are one.
  virtual std::function<void()> waker() = 0;

  // For an answer within advance(). It either responds once as above, or begins a stream, writes, and finishes it. The
  // head's body is ignored.
  virtual void begin(HttpResponse head) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void finish() = 0;
};

using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>)>;

}  // namespace ladder
