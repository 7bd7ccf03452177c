#pragma once
// From an EngineClient's trace to those who watch it: one thread, which runs while somebody does, asks the client
// twenty times a second and wakes the answers that have something to write.
//
// Each watcher has a position of its own in the engine's ring. It is asked for only when what it was given before has been
// written, so a slow reader holds at most one piece here, and when it has fallen out of the ring it gets a restart.
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "step6_engine/engine_client.h"

namespace ladder {

class WindowFeed {
 public:
  WindowFeed(EngineClient& client, int max_watchers);
  ~WindowFeed();

  class Watcher {
   public:
    struct Piece {
      std::string events;  // what has come since the last call, as server-sent events; empty: nothing yet
      bool ended = false;  // the engine was stopped, nothing follows
    };
    Piece take();

   private:
    friend class WindowFeed;
    std::mutex mutex_;
    Piece piece_;
    std::function<void()> wake_;
    int64_t position_ = 0;  // the feed's thread alone
    std::chrono::steady_clock::time_point written_ = std::chrono::steady_clock::now();
  };

  // Null: as many watch as may. `wake` is called, from the feed's thread, when there is something to take. The watcher
  // is one for as long as its pointer is kept.
  std::shared_ptr<Watcher> watch(std::function<void()> wake);

 private:
  void run();
  void feed(Watcher& watcher, bool ended);

  EngineClient& client_;
  const int max_watchers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::weak_ptr<Watcher>> watchers_;
  bool stopping_ = false;
  std::thread thread_;  // begins with the first watcher
};

}  // namespace ladder
