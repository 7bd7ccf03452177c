#include "step6_engine/server/window/window_feed.h"

#include <algorithm>
#include <utility>

namespace ladder {

namespace {

constexpr std::chrono::milliseconds kPeriod(50);
constexpr std::chrono::seconds kPing(10);  // so that a connection whose client has gone is noticed
constexpr int64_t kMaxRecords = 256;       // in one piece

}  // namespace

WindowFeed::WindowFeed(EngineClient& client, int max_watchers)
    : client_(client), max_watchers_(max_watchers) {}

WindowFeed::~WindowFeed() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

WindowFeed::Watcher::Piece WindowFeed::Watcher::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(piece_, {});
}

std::shared_ptr<WindowFeed::Watcher> WindowFeed::watch(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  std::erase_if(watchers_, [](const auto& watcher) { return watcher.expired(); });
  if (std::ssize(watchers_) >= max_watchers_) return nullptr;
  auto watcher = std::make_shared<Watcher>();
  watcher->wake_ = std::move(wake);
  watchers_.push_back(watcher);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
  return watcher;
}

void WindowFeed::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::vector<std::shared_ptr<Watcher>> watchers;
    for (const auto& each : watchers_)
      if (auto watcher = each.lock()) watchers.push_back(std::move(watcher));
    if (watchers.empty()) {
      watchers_.clear();
      changed_.wait(lock, [this] { return stopping_ || !watchers_.empty(); });
      continue;
    }
    lock.unlock();
    const bool ended = client_.stats().stopped;
    for (const auto& watcher : watchers) feed(*watcher, ended);
    watchers.clear();  // one that has gone meanwhile goes here, without the lock
    lock.lock();
    changed_.wait_for(lock, kPeriod, [this] { return stopping_; });
  }
}

void WindowFeed::feed(Watcher& watcher, bool ended) {
  {
    std::lock_guard lock(watcher.mutex_);
    if (!watcher.piece_.events.empty()) return;  // it has not written what it had
  }
  TraceSlice slice;
  try {
    slice = client_.trace_since(watcher.position_, kMaxRecords);
  } catch (const std::exception&) {
    // An engine that is gone has nothing to tell; /health says that it is.
  }
  const auto now = std::chrono::steady_clock::now();
  std::string events;
  for (const std::string& line : slice.lines) events += "data: " + line + "\n\n";
  if (events.empty()) {
    if (now < watcher.written_ + kPing && !ended) return;
    events = ": still here\n\n";
  } else {
    watcher.position_ = slice.next;
  }
  watcher.written_ = now;
  {
    std::lock_guard lock(watcher.mutex_);
    watcher.piece_ = {std::move(events), ended && slice.lines.empty()};
  }
  watcher.wake_();
}

}  // namespace ladder
