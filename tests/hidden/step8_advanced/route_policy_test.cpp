// Task 8.7.router: random servers and prompts, and the same policy without a tree.
#include "step8_advanced/disaggregation/router/route_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace ladder::testing;
using Prompt = std::vector<int32_t>;

// What was sent to each server, and how much of a prompt is the beginning of one of them.
class Remembered {
 public:
  explicit Remembered(int num_servers) : sent_(static_cast<size_t>(num_servers)) {}
  void add(int server, const Prompt& prompt) { sent_[static_cast<size_t>(server)].push_back(prompt); }
  void forget(int server) { sent_[static_cast<size_t>(server)].clear(); }
  int64_t known(size_t server, const Prompt& prompt) const {
    int64_t best = 0;
    for (const Prompt& one : sent_[server])
      best = std::max<int64_t>(best, std::ranges::mismatch(one, prompt).in2 - prompt.begin());
    return best;
  }

 private:
  std::vector<std::vector<Prompt>> sent_;
};

// The lowest cost, of equal ones the first behind `last`; -1: none is finite.
int cheapest_after(int last, const std::vector<double>& costs) {
  int best = -1;
  for (size_t i = 1; i <= costs.size(); ++i) {
    const size_t index = (static_cast<size_t>(last + 1) + i - 1) % costs.size();
    if (costs[index] <
        (best < 0 ? std::numeric_limits<double>::infinity() : costs[static_cast<size_t>(best)]))
      best = static_cast<int>(index);
  }
  return best;
}

Prompt random_prompt(Random& random) {
  Prompt prompt;
  for (int64_t size = random.integer(0, 60); size > 0; --size)
    prompt.push_back(static_cast<int32_t>(random.integer(0, 1)));
  return prompt;
}

TEST(Hidden8_7_Router, ChoosesAsTheRuleSays) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 20 && !HasFailure(); ++round) {
    RoutePolicyOptions options;
    options.num_prefill = static_cast<int>(random.integer(1, 4));
    options.num_decode = static_cast<int>(random.integer(1, 4));
    options.min_remote_tokens = random.integer(0, 30);
    RoutePolicy policy(options);
    Remembered at_prefill(options.num_prefill), at_decode(options.num_decode);
    int last_prefill = -1, last_decode = -1;
    for (int turn = 0; turn < 200 && !HasFailure(); ++turn) {
      std::vector<PrefillLoad> prefills(
          static_cast<size_t>(random.integer(0, 5) == 0 ? 0 : options.num_prefill));
      for (PrefillLoad& load : prefills)
        load = {.takes_requests = random.integer(0, 4) > 0, .queued_tokens = random.integer(0, 3) * 20};
      std::vector<DecodeLoad> decodes(static_cast<size_t>(options.num_decode));
      for (DecodeLoad& load : decodes)
        load = {.takes_requests = random.integer(0, 6) > 0,
                .num_active = random.integer(0, 12),
                .kv_usage = static_cast<double>(random.integer(0, 4)) / 4};
      const Prompt prompt = random_prompt(random);
      const int64_t size = std::ssize(prompt);

      std::vector<double> costs;
      for (size_t i = 0; i < decodes.size(); ++i) {
        const double share =
            size == 0 ? 0 : static_cast<double>(at_decode.known(i, prompt)) / static_cast<double>(size);
        double cost = static_cast<double>(decodes[i].num_active) +
                      RoutePolicy::kUsageWorth * decodes[i].kv_usage - RoutePolicy::kCachedWorth * share;
        if (decodes[i].kv_usage >= RoutePolicy::kFull) cost += 1e12;
        costs.push_back(decodes[i].takes_requests ? cost : std::numeric_limits<double>::infinity());
      }
      const auto chosen = policy.choose(prompt, prefills, decodes);
      const int decode = cheapest_after(last_decode, costs);
      ASSERT_EQ(chosen.has_value(), decode >= 0);
      if (!chosen) continue;
      last_decode = decode;
      ASSERT_EQ(chosen->decode, decode) << "turn " << turn;
      const int64_t missing = size - at_decode.known(static_cast<size_t>(decode), prompt);
      ASSERT_EQ(chosen->wanted_prefill, missing >= options.min_remote_tokens);
      int prefill = -1;
      if (chosen->wanted_prefill && !prefills.empty()) {
        costs.clear();
        for (size_t i = 0; i < prefills.size(); ++i)
          costs.push_back(prefills[i].takes_requests ? static_cast<double>(prefills[i].queued_tokens + size -
                                                                           at_prefill.known(i, prompt))
                                                     : std::numeric_limits<double>::infinity());
        prefill = cheapest_after(last_prefill, costs);
        if (prefill >= 0) last_prefill = prefill;
      }
      ASSERT_EQ(chosen->prefill, prefill) << "turn " << turn;
      ASSERT_EQ(chosen->num_to_compute,
                prefill < 0 ? missing : size - at_prefill.known(static_cast<size_t>(prefill), prompt));

      if (random.integer(0, 3) > 0 && prefill >= 0) {
        policy.sent_to_prefill(prefill, prompt);
        at_prefill.add(prefill, prompt);
      }
      if (random.integer(0, 3) > 0) {
        policy.sent_to_decode(decode, prompt);
        at_decode.add(decode, prompt);
      }
      if (random.integer(0, 40) == 0) {
        policy.forget_decode(decode);
        at_decode.forget(decode);
      }
    }
  }
}

}  // namespace
}  // namespace ladder
