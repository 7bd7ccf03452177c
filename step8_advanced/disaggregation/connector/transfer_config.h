#pragma once
// How an engine takes part in transfers of keys and values.
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace ladder {

enum class KvTransferRole : uint8_t {
  producer,  // computes prompts and keeps their blocks for a reader
  consumer,  // loads them
  both,
};

struct KvTransferConfig {
  KvTransferRole role = KvTransferRole::both;
  // Of a producer: where readers reach it (transport/kv_channel.h).
  std::string listen = "tcp://127.0.0.1:0";
  // Of a producer: blocks whose reader says nothing for so long after the prompt is computed are given back.
  std::chrono::milliseconds lease{30'000};
  // Of a producer: while kept blocks and those of prompts that will be kept are more, no further one begins. 0: no limit.
  int64_t max_held_bytes = 0;
  int max_channels = 64;  // of a producer, each with a thread: further readers are turned away

  // Of a consumer: fewer tokens are computed rather than loaded.
  int64_t recompute_threshold = 0;
  int num_loaders = 4;  // threads, each with one load at a time
  std::chrono::milliseconds connect_timeout{5'000};
  // From the start of a load to its end, waiting for a prompt that is still being computed included.
  std::chrono::milliseconds load_timeout{60'000};

  bool produces() const { return role != KvTransferRole::consumer; }
  bool consumes() const { return role != KvTransferRole::producer; }
};

// Counted since the start.
struct KvTransferStats {
  int64_t num_loads = 0;         // that ended, however
  int64_t num_failed_loads = 0;  // of these, with fewer tokens than were wanted; no cancelled ones
  int64_t num_loaded_tokens = 0;
  int64_t num_recomputed_tokens = 0;  // that were wanted and did not come
  int64_t num_loaded_bytes = 0;
  double load_seconds = 0.0;  // of all loads together
  int64_t num_sent_bytes = 0;
  int64_t num_lapsed = 0;       // kept for a reader that never came
  int64_t num_held_blocks = 0;  // now
};

}  // namespace ladder
