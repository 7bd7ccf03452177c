#pragma once
// Waiting in memory that processes share: a futex with the number of those who sleep on it. Whoever waits looks for
// a while and lets others run, and then sleeps; whoever makes something ready rings, which is a system call only if
// somebody sleeps. step7_parallel/README.md has the argument why no wake is lost.
#include <chrono>
#include <thread>

#include "step7_parallel/workers/futex.h"

namespace ladder {

struct alignas(64) Bell {
  std::atomic<uint32_t> rung, sleepers;

  using Clock = std::chrono::steady_clock;

  void ring() {
    if (sleepers.load() == 0) return;
    rung.fetch_add(1);
    futex_wake_all(rung);
  }

  // ready() was false and becomes true by something that is followed by a ring(). False: it is not ready within
  // `timeout`.
  template <class Ready>
  bool wait_for(Ready ready, std::chrono::microseconds spin, std::chrono::milliseconds timeout) {
    if (ready()) return true;  // before the clock is asked
    const Clock::time_point begin = Clock::now(), deadline = begin + timeout;
    const Clock::time_point looks_until = std::min<Clock::time_point>(begin + spin, deadline);
    while (Clock::now() < looks_until) {
      std::this_thread::yield();
      if (ready()) return true;
    }
    while (true) {
      sleepers.fetch_add(1);  // first: whoever makes it ready from here on sees it, and wakes
      const uint32_t seen = rung.load();
      bool is_ready = ready();
      const Clock::duration left = deadline - Clock::now();
      if (!is_ready && left > Clock::duration::zero()) {
        futex_sleep(rung, seen, left);
        is_ready = ready();
      }
      sleepers.fetch_sub(1);
      if (is_ready || left <= Clock::duration::zero()) return is_ready;
    }
  }
};

}  // namespace ladder
