#include "step8_advanced/disaggregation/router/route_policy.h"

#include <algorithm>
#include <limits>

#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

RoutePolicy::RoutePolicy(const RoutePolicyOptions& options)
    : options_(options),
      prefill_cache_(std::max(options.num_prefill, 1), options.cache_tokens),
      decode_cache_(std::max(options.num_decode, 1), options.cache_tokens),
      cached_at_prefill_(static_cast<size_t>(std::max(options.num_prefill, 1))),
      cached_at_decode_(static_cast<size_t>(std::max(options.num_decode, 1))) {}

// >>> task 8.7.router: who computes a prompt, and who goes on
// The index of the lowest cost(index) among `count`, looked for from `begin` on; -1: all costs are infinite.
template <class Cost>
static int cheapest(int count, int begin, Cost cost) {
  int best = -1;
  double best_cost = std::numeric_limits<double>::infinity();
  for (int i = 0; i < count; ++i) {
    const int index = (begin + i) % count;
    const double value = cost(static_cast<size_t>(index));
    if (value >= best_cost) continue;
    best = index;
    best_cost = value;
  }
  return best;
}

int RoutePolicy::choose_decode(int64_t prompt_size, std::span<const DecodeLoad> decodes) {
  // More than any server's requests: whoever is full comes after all that are not.
  constexpr double kAfterAllOthers = 1e12;
  const int chosen = cheapest(static_cast<int>(decodes.size()), next_decode_, [&](size_t index) -> double {
    const DecodeLoad& load = decodes[index];
    if (!load.takes_requests) return std::numeric_limits<double>::infinity();
    const double share =
        prompt_size == 0 ? 0.0
                         : static_cast<double>(cached_at_decode_[index]) / static_cast<double>(prompt_size);
    return static_cast<double>(load.num_active) + kUsageWorth * load.kv_usage - kCachedWorth * share +
           (load.kv_usage >= kFull ? kAfterAllOthers : 0.0);
  });
  if (chosen >= 0) next_decode_ = chosen + 1;
  return chosen;
}

int RoutePolicy::choose_prefill(int64_t prompt_size, std::span<const PrefillLoad> prefills) {
  const int chosen = cheapest(static_cast<int>(prefills.size()), next_prefill_, [&](size_t index) -> double {
    const PrefillLoad& load = prefills[index];
    if (!load.takes_requests) return std::numeric_limits<double>::infinity();
    return static_cast<double>(load.queued_tokens + prompt_size - cached_at_prefill_[index]);
  });
  if (chosen >= 0) next_prefill_ = chosen + 1;
  return chosen;
}

std::optional<ChosenServers> RoutePolicy::choose(std::span<const int32_t> prompt,
                                                 std::span<const PrefillLoad> prefills,
                                                 std::span<const DecodeLoad> decodes) {
  const int64_t size = std::ssize(prompt);
  decode_cache_.match(prompt, cached_at_decode_);
  ChosenServers route;
  route.decode = choose_decode(size, decodes);
  if (route.decode < 0) return std::nullopt;
  route.num_to_compute = size - cached_at_decode_[static_cast<size_t>(route.decode)];
  route.wanted_prefill = route.num_to_compute >= options_.min_remote_tokens;
  if (!route.wanted_prefill) return route;

  prefill_cache_.match(prompt, cached_at_prefill_);
  route.prefill = choose_prefill(size, prefills);
  if (route.prefill < 0) return route;
  route.num_to_compute = size - cached_at_prefill_[static_cast<size_t>(route.prefill)];
  return route;
}
// <<< task 8.7.router

}  // namespace ladder
