#pragma once
// Task 6.4: what comes for one request, from the thread that computes it to the thread that waits for it.
//
//   engine's thread:  buffer->push(update); ... buffer->end(output)        never waits
//   reader's thread:  while (auto update = stream.next()) ...              waits
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "step6_engine/request.h"

namespace ladder {

// What has come since the last call of next().
struct StreamUpdate {
  std::vector<CompletionUpdate> updates;  // at most one for each completion
  std::optional<RequestOutput> output;    // in the last one: the request has ended, and this is all of it
};

// Between the two threads. Unread updates are merged.
class StreamBuffer {
 public:
  explicit StreamBuffer(std::function<void()> on_ready) : on_ready_(std::move(on_ready)) {}

  // Appends tokens, text and log probabilities to those of the same completion that were not taken yet; the
  // later reason counts.
  void push(CompletionUpdate&& update);
  void end(RequestOutput&& output);  // nothing is pushed after it

  using Clock = std::chrono::steady_clock;
  // Waits until there is something, and takes all of it; none: nothing came in time, or the end was taken
  // before.
  std::optional<StreamUpdate> take(std::optional<Clock::time_point> deadline);
  bool end_taken() const;

 private:
  // Wakes who waits, and calls on_ready_ if there was nothing before. Without the lock.
  void announce(bool was_empty);
  bool empty() const { return content_.updates.empty() && !content_.output; }

  const std::function<void()> on_ready_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  StreamUpdate content_;
  bool end_taken_ = false;
};

// The reader's end. For one thread at a time. Dropping it before the request has ended aborts the request:
// its reader is gone.
class RequestStream {
 public:
  // `abandon` is called if the stream is dropped before its end was read.
  RequestStream(RequestId id, std::shared_ptr<StreamBuffer> buffer, std::function<void()> abandon)
      : id_(std::move(id)), buffer_(std::move(buffer)), abandon_(std::move(abandon)) {}
  RequestStream(RequestStream&&) = default;
  RequestStream& operator=(RequestStream&& other);
  ~RequestStream();

  const RequestId& request_id() const { return id_; }

  // The next update; waits for it. None: the stream has ended.
  std::optional<StreamUpdate> next() { return buffer_->take({}); }
  // The same, but waits no longer than that (0: not at all). None: nothing came in time, or it has ended().
  std::optional<StreamUpdate> next(std::chrono::nanoseconds timeout) {
    return buffer_->take(StreamBuffer::Clock::now() + timeout);
  }
  // Whether the last update was returned.
  bool ended() const { return buffer_->end_taken(); }

  // Skips all updates and waits for the output. Error: it was returned before.
  RequestOutput output();

 private:
  RequestId id_;
  std::shared_ptr<StreamBuffer> buffer_;  // null: moved from
  std::function<void()> abandon_;
};

}  // namespace ladder
