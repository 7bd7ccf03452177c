#pragma once
// What is left until a deadline, as system calls want it. Internal to this folder.
#include <algorithm>

#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

inline bool is_over(KvDeadline deadline) {
  return std::chrono::steady_clock::now() >= deadline;
}

// Not negative, and no more than a day.
inline std::chrono::milliseconds left_until(KvDeadline deadline) {
  using std::chrono::milliseconds;
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::clamp<milliseconds>(left + milliseconds(1), milliseconds(0), std::chrono::hours(24));
}

}  // namespace ladder
