#pragma once
// An engine tells the end of a turn once (EngineClientOptions::on_turn); here as many hear of it as want to.
#include <functional>
#include <list>
#include <mutex>

namespace ladder {

class TurnListeners {
 public:
  using Listener = std::list<std::function<void()>>::iterator;

  // `heard` is called on the engine's thread: it must neither block nor throw, nor add or remove a listener.
  Listener add(std::function<void()> heard) {
    std::lock_guard lock(mutex_);
    return listeners_.insert(listeners_.end(), std::move(heard));
  }
  // When it returns the listener is not being called, and will not be.
  void remove(Listener listener) {
    std::lock_guard lock(mutex_);
    listeners_.erase(listener);
  }
  void announce() {
    std::lock_guard lock(mutex_);
    for (const std::function<void()>& heard : listeners_) heard();
  }

 private:
  std::mutex mutex_;
  std::list<std::function<void()>> listeners_;
};

}  // namespace ladder
