#include "step8_advanced/disaggregation/router/server/answer_relay.h"

#include <utility>

namespace ladder {

void AnswerRelay::respond(HttpResponse whole) {
  {
    std::lock_guard lock(mutex_);
    whole_ = std::move(whole);
  }
  wake_();
}

void AnswerRelay::begin(std::string content_type) {
  std::lock_guard lock(mutex_);
  head_ = HttpResponse{.content_type = std::move(content_type), .headers = {{"Cache-Control", "no-cache"}}};
}

bool AnswerRelay::write(std::string_view bytes) {
  bool room = true;
  {
    std::lock_guard lock(mutex_);
    waiting_ += bytes;
    full_ = waiting_.size() > kMostWaiting;
    room = !full_;
  }
  wake_();
  return room;
}

void AnswerRelay::finish() {
  {
    std::lock_guard lock(mutex_);
    finished_ = true;
  }
  wake_();
}

void AnswerRelay::advance(HttpExchange& exchange) {
  std::string bytes;
  std::optional<HttpResponse> whole, head;
  bool finished = false, was_full = false;
  {
    std::lock_guard lock(mutex_);
    whole.swap(whole_);
    head.swap(head_);
    bytes.swap(waiting_);
    finished = finished_;
    was_full = std::exchange(full_, false);
  }
  if (whole) return exchange.respond(std::move(*whole));
  if (head) exchange.begin(std::move(*head));
  if (!bytes.empty()) exchange.write(bytes);
  if (finished) exchange.finish();
  if (was_full) on_room_();
}

}  // namespace ladder
