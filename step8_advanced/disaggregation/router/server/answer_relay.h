#pragma once
// An answer on its way from the router's thread, which fills it, to the client's connection, which empties it.
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "step6_engine/server/http/exchange.h"

namespace ladder {

class AnswerRelay {
 public:
  // Of a stream, bytes that may wait for a client that reads slowly; beyond it its server is not read either.
  static constexpr size_t kMostWaiting = size_t{1} << 20;

  // `wake`: of the exchange. `on_room`: called on the connection's thread when the client has taken what there was, after write()
  // had returned false.
  AnswerRelay(std::function<void()> wake, std::function<void()> on_room)
      : wake_(std::move(wake)), on_room_(std::move(on_room)) {}

  // The router's thread. One respond(), or begin(), any number of write(), and finish().
  void respond(HttpResponse whole);
  void begin(std::string content_type);
  bool write(std::string_view bytes);
  void finish();

  // The connection's.
  void advance(HttpExchange& exchange);

 private:
  const std::function<void()> wake_, on_room_;
  std::mutex mutex_;
  std::optional<HttpResponse> whole_;
  std::optional<HttpResponse> head_;
  std::string waiting_;
  bool finished_ = false, full_ = false;
};

}  // namespace ladder
