#include "step6_engine/server/http/io_thread.h"

#include <boost/asio/post.hpp>

#include "step1_layers/core/task_not_implemented.h"
#include "step6_engine/server/http/connection.h"

namespace ladder {

IoThread::IoThread(Clock::duration tick, std::function<void(std::string)> on_error)
    : tick_(tick), on_error_(std::move(on_error)) {}

IoThread::~IoThread() {
  stop();
}

void IoThread::start() {
  thread_ = std::thread([this] { run(); });
}

// One connection's trouble (no memory left, say) does not end the others'.
void IoThread::run() {
  id_ = std::this_thread::get_id();
  while (true) {
    try {
      context_.run();
      return;
    } catch (const std::exception& error) {
      on_error_(error.what());
    }
  }
}

void IoThread::stop() {
  if (!thread_.joinable()) return;
  asio::post(context_, [this] {
    const std::vector<std::shared_ptr<Connection>> connections(connections_.begin(), connections_.end());
    for (const auto& connection : connections) connection->close();
    timer_.cancel();
    work_.reset();
    std::vector<std::shared_ptr<Wake>> dropped;
    std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(ready_);
  });
  thread_.join();
}

// A task that is dropped ends on the caller's thread, without the lock.
void IoThread::post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  if (!closed_) asio::post(context_, std::move(task));
}

// >>> task 6.6: many wakes become one
void IoThread::wake(const std::shared_ptr<Wake>& wake) {
  if (wake->pending.exchange(true)) return;
  std::lock_guard lock(mutex_);
  if (closed_) return;
  ready_.push_back(wake);
  if (ready_posted_) return;
  ready_posted_ = true;
  asio::post(context_, [this] { run_ready(); });
}

void IoThread::run_ready() {
  {
    std::lock_guard lock(mutex_);
    ready_posted_ = false;
    running_.swap(ready_);
  }
  for (const std::shared_ptr<Wake>& wake : running_) {
    wake->pending = false;  // first: what comes while the answer looks for news is a wake of its own
    const auto connection = wake->connection.lock();
    if (!connection) continue;
    try {
      connection->on_wake(wake->exchange_number);
    } catch (const std::exception&
                 error) {  // nobody knows how far it came; the others' wakes are not lost with it
      on_error_(error.what());
      connection->close();
    }
  }
  running_.clear();
}

// <<< task 6.6

void IoThread::add(std::shared_ptr<Connection> connection) {
  connections_.insert(std::move(connection));
  if (!ticking_) schedule_tick();
}

// No connection, no tick: an idle server sleeps.
void IoThread::schedule_tick() {
  ticking_ = !connections_.empty();
  if (!ticking_) return;
  timer_.expires_after(tick_);
  timer_.async_wait([this](ErrorCode code) {
    if (code) return;
    const Clock::time_point now = Clock::now();
    std::vector<std::shared_ptr<Connection>> late;
    for (const auto& connection : connections_)
      if (connection->deadline() <= now) late.push_back(connection);
    for (const auto& connection : late) connection->on_deadline();
    schedule_tick();
  });
}

}  // namespace ladder
