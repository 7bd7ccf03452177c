#pragma once
// Task 8.7.router: who computes the prompt of a request, and who goes on.
//
//   the prompt --> decode server:  the least busy, a little less so where much of the prompt is cached
//                      |
//                      +-- little of it is missing there:  it computes that itself, and nothing is transferred
//                      +-- else prefill server:            the one that has the fewest tokens to compute before its end
//
// A policy without threads, clocks or sockets, like step7_parallel/data/balancer.h: it gets what is known of the servers, and
// answers at once. What their caches hold is a guess (step7_parallel/data/prefix_tree.h), made from what was sent to them; a wrong
// one costs time, never a wrong answer. NVIDIA Dynamo: its KV router's cost, which both of ours are like.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "step7_parallel/data/prefix_tree.h"

namespace ladder {

struct PrefillLoad {
  bool takes_requests = true;  // it answers, and this request has not failed there
  int64_t queued_tokens =
      0;  // of prompts that were sent to it and are not computed yet, without what was cached
};

struct DecodeLoad {
  bool takes_requests = true;
  int64_t num_active = 0;  // requests that it goes on with, or waits to
  double kv_usage = 0;     // share of its KV blocks that are held, 0 .. 1
};

struct ChosenServers {
  int decode = 0;
  int prefill = -1;            // -1: the decode server computes the prompt
  int64_t num_to_compute = 0;  // tokens of the prompt, by the one that computes it, beyond what it has cached
  bool wanted_prefill =
      false;  // enough is missing at the decode server; without a prefill server: none takes requests
};

struct RoutePolicyOptions {
  int num_prefill = 1;
  int num_decode = 1;
  int64_t cache_tokens = 1 << 20;  // that the KV cache of one server is thought to hold
  // Fewer missing tokens than these are computed by the decode server.
  int64_t min_remote_tokens = 64;
};

class RoutePolicy {
 public:
  // A decode server of that KV usage is full, and taken only where all that take requests are.
  static constexpr double kFull = 0.95;
  // What a wholly cached prompt, and a KV cache in use altogether, are worth in requests. A cached prompt saves its transfer, a
  // full cache preempts.
  static constexpr double kCachedWorth = 8.0, kUsageWorth = 8.0;

  explicit RoutePolicy(const RoutePolicyOptions& options);

  // `prompt`: token ids, or what stands for about one token each. None: no decode server takes requests.
  //
  // The decode server is that of the lowest num_active + kUsageWorth * kv_usage - kCachedWorth * (cached share of the
  // prompt), an empty prompt's share being 0; those that are full come after those that are not. If it lacks
  // min_remote_tokens or more, a prefill server is wanted: that of the lowest queued_tokens + (prompt - cached there). Among
  // equal ones, of either kind, the first behind the one chosen last, so that idle servers take turns.
  // It may be asked again for the same request, which has not been sent then: only who is next among equals changes.
  std::optional<ChosenServers> choose(std::span<const int32_t> prompt, std::span<const PrefillLoad> prefills,
                                      std::span<const DecodeLoad> decodes);

  // The server is sent to this prompt, and has it cached from now on.
  void sent_to_prefill(int server, std::span<const int32_t> prompt) { prefill_cache_.insert(server, prompt); }
  void sent_to_decode(int server, std::span<const int32_t> prompt) { decode_cache_.insert(server, prompt); }
  // Its cache is empty: it was started again.
  void forget_prefill(int server) { prefill_cache_.forget(server); }
  void forget_decode(int server) { decode_cache_.forget(server); }

 private:
  // -1: none.
  int choose_decode(int64_t prompt_size, std::span<const DecodeLoad> decodes);
  int choose_prefill(int64_t prompt_size, std::span<const PrefillLoad> prefills);

  const RoutePolicyOptions options_;
  PrefixTree prefill_cache_, decode_cache_;
  std::vector<int64_t> cached_at_prefill_, cached_at_decode_;  // of the prompt that is being routed
  int next_prefill_ = 0, next_decode_ = 0;                     // where a search begins
};

}  // namespace ladder
