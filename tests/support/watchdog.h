#pragma once
// Turns what waits for ever into a failed test.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace ladder::testing {

// Where something guarded takes longer than the deadline the program ends (there is no releasing threads that wait for
// each other), with what was guarded and what `where` says on stderr. One guard at a time.
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  Watchdog(std::chrono::milliseconds deadline, std::function<std::string()> where);
  ~Watchdog();

  template <class Work>
  decltype(auto) guard(const std::string& what, Work&& work) {
    const Guard guard(*this, what);
    return work();
  }

 private:
  class Guard {
   public:
    Guard(Watchdog& dog, const std::string& what) : dog_(dog) {
      std::lock_guard lock(dog_.mutex_);
      dog_.what_ = what;
      dog_.until_ = Clock::now() + dog_.deadline_;
    }
    ~Guard() {
      std::lock_guard lock(dog_.mutex_);
      dog_.until_.reset();
    }

   private:
    Watchdog& dog_;
  };
  void watch();

  std::chrono::milliseconds deadline_;
  std::function<std::string()> where_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::string what_;                        // is guarded
  std::optional<Clock::time_point> until_;  // nothing is guarded
  std::thread thread_;
};

}  // namespace ladder::testing
