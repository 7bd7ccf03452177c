#pragma once
// Sleeping on a word of memory until another process changes it: futex(2), in memory that processes share.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace ladder {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

// Returns at once if `word` is not `seen`; else at a wake, at a signal, or when the time is up.
inline void futex_sleep(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds time) {
  const int64_t count = std::max<int64_t>(time.count(), 0);
  const timespec until{static_cast<time_t>(count / 1'000'000'000), static_cast<long>(count % 1'000'000'000)};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &until, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ladder
