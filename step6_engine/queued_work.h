#pragma once
// What waits for its first step, and the bounds on it: counted and worded in one way by every EngineClient.
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"

namespace ladder {

struct QueuedWork {
  int64_t num_sequences = 0;
  int64_t num_tokens =
      0;  // of these, as Scheduler::num_waiting_tokens(); without a bound on them not all are counted

  QueuedWork& operator+=(const QueuedWork& other) {
    num_sequences += other.num_sequences;
    num_tokens += other.num_tokens;
    return *this;
  }
  QueuedWork& operator-=(const QueuedWork& other) {
    num_sequences -= other.num_sequences;
    num_tokens -= other.num_tokens;
    return *this;
  }
};

// A request's.
inline QueuedWork work_of(int64_t n, const std::vector<int32_t>& prompt_token_ids) {
  return {n, n * std::ssize(prompt_token_ids)};
}

// What a QueueFull says; empty: there is room. A bound of 0 is none.
inline std::string queue_full(const QueuedWork& queued, int64_t max_num_queued_reqs,
                              int64_t max_num_queued_tokens) {
  if (max_num_queued_reqs > 0 && queued.num_sequences >= max_num_queued_reqs)
    return fmt::format("{} requests are waiting, which is all there may be (max_num_queued_reqs {})",
                       queued.num_sequences, max_num_queued_reqs);
  if (max_num_queued_tokens > 0 && queued.num_tokens >= max_num_queued_tokens)
    return fmt::format(
        "requests with {} tokens are waiting, which is all there may be (max_num_queued_tokens {})",
        queued.num_tokens, max_num_queued_tokens);
  return {};
}

}  // namespace ladder
