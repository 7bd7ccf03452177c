#include "tests/support/watchdog.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace ladder::testing {

Watchdog::Watchdog(std::chrono::milliseconds deadline, std::function<std::string()> where)
    : deadline_(deadline), where_(std::move(where)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

// Looks now and then: to guard something costs no wake.
void Watchdog::watch() {
  const auto pause = std::clamp(deadline_ / 4, std::chrono::milliseconds(1), std::chrono::milliseconds(500));
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, pause, [this] { return stopping_; })) {
    if (!until_ || Clock::now() < *until_) continue;
    std::fprintf(stderr, "%s: not done within %lld ms:\n%s", what_.c_str(),
                 static_cast<long long>(deadline_.count()), where_().c_str());
    std::abort();
  }
}

}  // namespace ladder::testing
