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

// Of a request whose keys have not all come. vLLM: kv_load_failure_policy.
enum class KvLoadFailurePolicy : uint8_t {
  recompute,  // what is missing is computed here
  fail,       // it ends with an error: for an engine that is never to stop for a long prompt
};

struct KvTransferConfig {
  KvTransferRole role = KvTransferRole::both;
  // Of a producer: where readers reach it (transport/kv_channel.h).
  std::string listen = "tcp://127.0.0.1:0";
  // Of a producer: blocks whose reader says nothing for so long after the prompt is computed are given back.
  std::chrono::milliseconds lease{30'000};
  // Of a producer: while kept blocks and those of prompts that will be kept are more, no further one begins. 0: no limit.
  int64_t max_held_bytes = 0;
  // Of a producer: what it sends is shortened by zstd, where that is shorter (transport/kv_compression.h).
  bool compress = false;
  // Of a producer: a reader that is there already gets a layer's keys while the next layer is computed (layer_by_layer.h);
  // else what a step has computed goes when the step is over.
  bool layer_by_layer = false;
  // Of a producer: so long a reader waits for a prompt that has not begun while one is refused its blocks here, and none is
  // computed. Readers that keep room for prompts which wait for each other's would wait for ever.
  std::chrono::milliseconds start_patience{2'000};
  int max_channels = 64;  // of a producer, each with a thread: further readers are turned away

  // Of a consumer: fewer tokens are computed rather than loaded.
  int64_t recompute_threshold = 0;
  KvLoadFailurePolicy load_failure_policy = KvLoadFailurePolicy::recompute;
  int num_loaders = 4;  // threads, each with one load at a time
  std::chrono::milliseconds connect_timeout{5'000};
  // From the start of a load to its end, waiting for a prompt that is still being computed included.
  std::chrono::milliseconds load_timeout{60'000};

  bool produces() const { return role != KvTransferRole::consumer; }
  bool consumes() const { return role != KvTransferRole::producer; }
};

}  // namespace ladder
