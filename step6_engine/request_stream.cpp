#include "step6_engine/request_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

template <class T>
void append(std::vector<T>& list, std::vector<T>&& more) {
  list.insert(list.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

// >>> task 6.4: a buffer that merges what is not read in time
void StreamBuffer::push(CompletionUpdate&& update) {
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    was_empty = empty();
    std::vector<CompletionUpdate>& updates = content_.updates;
    const auto same = std::find_if(updates.begin(), updates.end(), [&](const CompletionUpdate& earlier) {
      return earlier.completion == update.completion;
    });
    if (same == updates.end()) {
      updates.push_back(std::move(update));
    } else {
      append(same->token_ids, std::move(update.token_ids));
      append(same->logprobs, std::move(update.logprobs));
      same->text += update.text;
      same->finish_reason = update.finish_reason;
      same->stop_reason = std::move(update.stop_reason);
    }
  }
  announce(was_empty);
}

void StreamBuffer::end(RequestOutput&& output) {
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    was_empty = empty();
    content_.output = std::move(output);
  }
  announce(was_empty);
}

// Called without the lock, so that the thread that wakes up finds it free.
void StreamBuffer::announce(bool was_empty) {
  ready_.notify_all();
  if (was_empty && on_ready_) on_ready_();
}

std::optional<StreamUpdate> StreamBuffer::take(std::optional<Clock::time_point> deadline) {
  std::unique_lock lock(mutex_);
  const auto is_ready = [this] { return !empty() || end_taken_; };
  if (!deadline)
    ready_.wait(lock, is_ready);
  else if (!is_ready() && Clock::now() < *deadline)  // to ask the system for no wait at all takes long too
    ready_.wait_until(lock, *deadline, is_ready);
  if (empty()) return std::nullopt;
  end_taken_ = content_.output.has_value();
  return std::exchange(content_, {});
}
// <<< task 6.4

bool StreamBuffer::end_taken() const {
  std::lock_guard lock(mutex_);
  return end_taken_;
}

RequestStream& RequestStream::operator=(RequestStream&& other) {
  if (this != &other) {
    RequestStream dropped(std::move(*this));
    id_ = std::move(other.id_);
    buffer_ = std::move(other.buffer_);
    abandon_ = std::move(other.abandon_);
  }
  return *this;
}

RequestStream::~RequestStream() {
  if (buffer_ && !buffer_->end_taken()) abandon_();
}

RequestOutput RequestStream::output() {
  while (std::optional<StreamUpdate> update = next())
    if (update->output) return std::move(*update->output);
  fail("request {}: its output was returned before", id_);
}

}  // namespace ladder
