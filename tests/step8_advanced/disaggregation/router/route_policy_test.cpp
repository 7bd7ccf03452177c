// Task 8.7.router: who computes a prompt, and who goes on.
#include "step8_advanced/disaggregation/router/route_policy.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/numerics.h"

namespace ladder {
namespace {

using Prompt = std::vector<int32_t>;
using Prefills = std::vector<PrefillLoad>;
using Decodes = std::vector<DecodeLoad>;

Prompt prompt_of(int size, int first = 0) {
  Prompt prompt(static_cast<size_t>(size));
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

RoutePolicy policy_of(int num_prefill, int num_decode, int64_t min_remote_tokens = 1) {
  return RoutePolicy(
      {.num_prefill = num_prefill, .num_decode = num_decode, .min_remote_tokens = min_remote_tokens});
}

// Chosen, and sent there.
std::optional<ChosenServers> send(RoutePolicy& policy, const Prompt& prompt, const Prefills& prefills,
                                  const Decodes& decodes) {
  const auto chosen = policy.choose(prompt, prefills, decodes);
  if (chosen && chosen->prefill >= 0) policy.sent_to_prefill(chosen->prefill, prompt);
  if (chosen) policy.sent_to_decode(chosen->decode, prompt);
  return chosen;
}

TEST(Task8_7_Router, ThePrefillServerWithTheFewestTokensToComputeIsTaken) {
  RoutePolicy policy = policy_of(3, 1);
  const auto chosen =
      send(policy, prompt_of(100),
           Prefills{{.queued_tokens = 500}, {.queued_tokens = 20}, {.queued_tokens = 300}}, Decodes(1));
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->prefill, 1);
  EXPECT_EQ(chosen->decode, 0);
  EXPECT_EQ(chosen->num_to_compute, 100);
  EXPECT_TRUE(chosen->wanted_prefill);
}

// Of two decode servers the one that does not have the prompt is less busy each time, so the prompt is computed remotely
// again.
TEST(Task8_7_Router, APrefillServerThatHasComputedTheBeginningHasLessToDo) {
  RoutePolicy policy = policy_of(2, 2);
  const Decodes first_free = {{.num_active = 0}, {.num_active = 100}};
  const Decodes second_free = {{.num_active = 100}, {.num_active = 0}};
  const auto before = send(policy, prompt_of(100), Prefills{{.queued_tokens = 1}, {}}, first_free);
  ASSERT_TRUE(before);
  ASSERT_EQ(before->prefill, 1);
  Prompt longer = prompt_of(150);
  // The other one is idle; but 100 tokens more would have to be computed there.
  const auto after = send(policy, longer, Prefills{{}, {.queued_tokens = 99}}, second_free);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->prefill, 1);
  EXPECT_EQ(after->num_to_compute, 50) << "what is cached at the prefill server is not computed again";
  RoutePolicy other = policy_of(2, 2);
  send(other, prompt_of(100), Prefills{{.queued_tokens = 1}, {}}, first_free);
  EXPECT_EQ(send(other, longer, Prefills{{}, {.queued_tokens = 101}}, second_free)->prefill, 0)
      << "a queue longer than what is cached";
}

TEST(Task8_7_Router, TheLeastBusyDecodeServerIsTaken) {
  RoutePolicy policy = policy_of(1, 3);
  EXPECT_EQ(send(policy, prompt_of(10), Prefills(1),
                 Decodes{{.num_active = 3}, {.num_active = 1}, {.num_active = 2}})
                ->decode,
            1);
  // Half a KV cache is worth four requests.
  EXPECT_EQ(send(policy, prompt_of(10, 1000), Prefills(1),
                 Decodes{{.num_active = 5, .kv_usage = 0.0},
                         {.num_active = 2, .kv_usage = 0.5},
                         {.num_active = 6, .kv_usage = 0.0}})
                ->decode,
            0);
}

TEST(Task8_7_Router, AFullDecodeServerIsTakenOnlyWhereAllAreFull) {
  RoutePolicy policy = policy_of(1, 2);
  const double full = RoutePolicy::kFull;
  EXPECT_EQ(send(policy, prompt_of(10), Prefills(1),
                 Decodes{{.num_active = 0, .kv_usage = full}, {.num_active = 500, .kv_usage = 0.5}})
                ->decode,
            1);
  EXPECT_EQ(send(policy, prompt_of(10, 1000), Prefills(1),
                 Decodes{{.num_active = 1, .kv_usage = full}, {.num_active = 500, .kv_usage = full}})
                ->decode,
            0);
}

TEST(Task8_7_Router, ACachedPromptIsWorthSomeRequestsAtTheDecodeServer) {
  RoutePolicy policy = policy_of(1, 2);
  ASSERT_EQ(send(policy, prompt_of(64), Prefills(1), Decodes{{.num_active = 1}, {.num_active = 0}})->decode,
            1);
  EXPECT_EQ(send(policy, prompt_of(64), Prefills(1), Decodes{{.num_active = 0}, {.num_active = 7}})->decode,
            1);
  EXPECT_EQ(send(policy, prompt_of(64), Prefills(1), Decodes{{.num_active = 0}, {.num_active = 9}})->decode,
            0);
}

TEST(Task8_7_Router, AShortPromptIsComputedByTheDecodeServer) {
  RoutePolicy policy = policy_of(1, 1, 64);
  const auto shorter = send(policy, prompt_of(63), Prefills(1), Decodes(1));
  EXPECT_EQ(shorter->prefill, -1);
  EXPECT_FALSE(shorter->wanted_prefill);
  EXPECT_EQ(shorter->num_to_compute, 63);
  EXPECT_EQ(send(policy, prompt_of(64, 1000), Prefills(1), Decodes(1))->prefill, 0);
}

TEST(Task8_7_Router, OfAPromptThatTheDecodeServerHasNothingIsTransferred) {
  RoutePolicy policy = policy_of(1, 1, 64);
  ASSERT_EQ(send(policy, prompt_of(1000), Prefills(1), Decodes(1))->prefill, 0);
  const auto again = send(policy, prompt_of(1050), Prefills(1), Decodes(1));
  EXPECT_EQ(again->prefill, -1);
  EXPECT_FALSE(again->wanted_prefill);
  EXPECT_EQ(again->num_to_compute, 50);
  policy.forget_decode(0);
  EXPECT_EQ(send(policy, prompt_of(1050), Prefills(1), Decodes(1))->prefill, 0) << "it was started again";
}

// The decode server's own computation leaves nothing at the prefill server.
TEST(Task8_7_Router, WhatTheDecodeServerComputesIsNotCachedAtAPrefillServer) {
  RoutePolicy policy = policy_of(1, 1, 64);
  ASSERT_EQ(send(policy, prompt_of(50), Prefills(1), Decodes(1))->prefill, -1);
  policy.forget_decode(0);
  const auto longer = send(policy, prompt_of(150), Prefills(1), Decodes(1));
  EXPECT_EQ(longer->prefill, 0);
  EXPECT_EQ(longer->num_to_compute, 150);
}

TEST(Task8_7_Router, WhoTakesNoRequestsIsNotChosen) {
  RoutePolicy policy = policy_of(2, 2);
  const auto chosen =
      send(policy, prompt_of(10), Prefills{{.takes_requests = false}, {.queued_tokens = 1000}},
           Decodes{{.num_active = 1000}, {.takes_requests = false}});
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->prefill, 1);
  EXPECT_EQ(chosen->decode, 0);
}

TEST(Task8_7_Router, WithoutAPrefillServerTheDecodeServerComputesAndItIsSaid) {
  RoutePolicy policy = policy_of(1, 1);
  for (const Prefills& none : {Prefills{}, Prefills{{.takes_requests = false}}}) {
    policy.forget_decode(0);
    const auto chosen = send(policy, prompt_of(100), none, Decodes(1));
    ASSERT_TRUE(chosen);
    EXPECT_EQ(chosen->prefill, -1);
    EXPECT_TRUE(chosen->wanted_prefill);
    EXPECT_EQ(chosen->num_to_compute, 100);
  }
}

TEST(Task8_7_Router, WithoutADecodeServerThereIsNone) {
  RoutePolicy policy = policy_of(1, 2);
  EXPECT_FALSE(send(policy, prompt_of(10), Prefills(1),
                    Decodes{{.takes_requests = false}, {.takes_requests = false}}));
  EXPECT_FALSE(send(policy, prompt_of(10), Prefills(1), Decodes{}));
}

TEST(Task8_7_Router, IdleServersTakeTurns) {
  RoutePolicy policy = policy_of(3, 2);
  std::vector<int> prefills(3), decodes(2);
  for (int i = 0; i < 12; ++i) {
    const auto chosen = send(policy, prompt_of(10, 100 * (i + 1)), Prefills(3), Decodes(2));
    ++prefills[static_cast<size_t>(chosen->prefill)];
    ++decodes[static_cast<size_t>(chosen->decode)];
  }
  EXPECT_EQ(prefills, std::vector<int>(3, 4));
  EXPECT_EQ(decodes, std::vector<int>(2, 6));
}

TEST(Task8_7_Router, WhatWasNotSentIsNotCached) {
  RoutePolicy policy = policy_of(1, 1);
  for (int i = 0; i < 2; ++i) {
    const auto chosen = policy.choose(prompt_of(100), Prefills(1), Decodes(1));
    EXPECT_EQ(chosen->prefill, 0);
    EXPECT_EQ(chosen->num_to_compute, 100);
  }
}

TEST(Task8_7_Router, AnEmptyPromptGoesToTheLeastBusyDecodeServer) {
  RoutePolicy policy = policy_of(1, 2);
  const auto chosen = send(policy, Prompt{}, Prefills(1), Decodes{{.num_active = 2}, {.num_active = 1}});
  EXPECT_EQ(chosen->decode, 1);
  EXPECT_EQ(chosen->prefill, -1);
}

}  // namespace
}  // namespace ladder
