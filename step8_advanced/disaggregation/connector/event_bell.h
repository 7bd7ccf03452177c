#pragma once
// Where threads of a connector say that something has happened, and the engine's thread waits for it (KvConnector::wait()).
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

namespace ladder {

class KvEventBell {
 public:
  void ring() {
    std::function<void()> wake;
    {
      const std::lock_guard lock(mutex_);
      has_rung_ = true;
      wake = wake_;
    }
    rung_.notify_all();
    if (wake) wake();
  }
  // Who calls it looks for himself from now on.
  void silence() {
    const std::lock_guard lock(mutex_);
    has_rung_ = false;
  }
  void wait(std::chrono::milliseconds at_most) {
    std::unique_lock lock(mutex_);
    rung_.wait_for(lock, at_most, [this] { return has_rung_; });
  }
  void on_ring(std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
  bool has_rung_ = false;
  std::function<void()> wake_;
};

}  // namespace ladder
