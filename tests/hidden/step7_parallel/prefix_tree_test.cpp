// Task 7.7.tree: random prompts in caches that are too small, and conversations.
#include "step7_parallel/data/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>

#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace ladder::testing;
using Tokens = std::vector<int32_t>;
using Lengths = std::vector<int64_t>;

Lengths match(const PrefixTree& tree, const Tokens& prompt, int num_replicas) {
  Lengths lengths(static_cast<size_t>(num_replicas), -1);
  tree.match(prompt, lengths);
  return lengths;
}

Tokens random_prompt(Random& random, int64_t most, int32_t num_tokens) {
  Tokens prompt(static_cast<size_t>(random.integer(1, most)));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random.integer(0, num_tokens - 1));
  return prompt;
}

// Prompts that have nothing in common: what is held is a list of them, in the order of their use.
TEST(Hidden7_7_PrefixTree, ForgetsInTheOrderOfUse) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  const auto num_replicas = static_cast<int>(random.integer(2, 4));
  const int64_t budget = random.integer(60, 120);
  PrefixTree tree(num_replicas, budget);
  std::vector<Tokens> prompts;
  for (int32_t i = 0; i < 30; ++i) {
    prompts.push_back(random_prompt(random, 40, 1000));
    prompts.back()[0] = 1000 + i;
  }
  std::vector<std::list<size_t>> held(static_cast<size_t>(num_replicas));
  std::vector<int64_t> num_held(held.size());
  for (int turn = 0; turn < 3000; ++turn) {
    const auto replica = static_cast<size_t>(random.integer(0, num_replicas - 1));
    if (random.integer(0, 199) == 0) {
      tree.forget(static_cast<int>(replica));
      held[replica].clear();
      num_held[replica] = 0;
    }
    const auto prompt = static_cast<size_t>(random.integer(0, 29));
    tree.insert(static_cast<int>(replica), prompts[prompt]);
    if (std::ranges::find(held[replica], prompt) == held[replica].end())
      num_held[replica] += std::ssize(prompts[prompt]);
    held[replica].remove(prompt);
    held[replica].push_back(prompt);
    for (; num_held[replica] > budget; held[replica].pop_front())
      num_held[replica] -= std::ssize(prompts[held[replica].front()]);
    int64_t num_nodes = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      Lengths expected;
      for (const auto& list : held)
        expected.push_back(std::ranges::find(list, i) != list.end() ? std::ssize(prompts[i]) : 0);
      ASSERT_EQ(match(tree, prompts[i], num_replicas), expected) << "prompt " << i << " in turn " << turn;
      num_nodes += std::ranges::any_of(expected, [](int64_t length) { return length > 0; });
    }
    ASSERT_EQ(tree.num_nodes(), num_nodes) << "turn " << turn;
    for (size_t i = 0; i < held.size(); ++i)
      ASSERT_EQ(tree.num_tokens(static_cast<int>(i)), num_held[i]) << "replica " << i << " in turn " << turn;
  }
}

// All prompts over two tokens: those that match whole are what a replica holds. Whoever holds one holds its beginnings.
TEST(Hidden7_7_PrefixTree, HoldsAsManyTokensAsItSays) {
  constexpr int64_t kLongest = 7;
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 10; ++round) {
    const auto num_replicas = static_cast<int>(random.integer(1, 3));
    const int64_t budget = random.integer(kLongest, 40);
    PrefixTree tree(num_replicas, budget);
    for (int turn = 0; turn < 60; ++turn) {
      const auto replica = static_cast<int>(random.integer(0, num_replicas - 1));
      const Tokens used = random_prompt(random, kLongest, 2);
      tree.insert(replica, used);
      ASSERT_EQ(match(tree, used, num_replicas)[static_cast<size_t>(replica)], std::ssize(used));
      Lengths num_held(static_cast<size_t>(num_replicas));
      std::vector<Lengths> matched = {Lengths(num_held.size())};  // of the prompts with a bit for each token
      for (size_t bits = 2; bits < size_t{2} << kLongest; ++bits) {
        Tokens prompt;
        for (size_t rest = bits; rest > 1; rest >>= 1) prompt.insert(prompt.begin(), rest & 1);
        matched.resize(bits);
        matched.push_back(match(tree, prompt, num_replicas));
        for (size_t i = 0; i < num_held.size(); ++i) {
          const bool whole = matched[bits][i] == std::ssize(prompt);
          const int64_t shorter = bits >= 4 ? matched[bits / 2][i] : 0;
          num_held[i] += whole;
          ASSERT_TRUE(whole ? shorter == std::ssize(prompt) - 1 : matched[bits][i] == shorter)
              << "replica " << i << " holds " << matched[bits][i] << " of "
              << ::testing::PrintToString(prompt) << ", and " << shorter << " without its last";
        }
      }
      for (size_t i = 0; i < num_held.size(); ++i) {
        ASSERT_EQ(tree.num_tokens(static_cast<int>(i)), num_held[i]) << "replica " << i << ", turn " << turn;
        ASSERT_LE(num_held[i], budget);
      }
    }
    for (int i = 0; i < num_replicas; ++i) tree.forget(i);
    EXPECT_EQ(tree.num_nodes(), 0);
  }
}

// Conversations with one of a few beginnings in common, each at home on one replica, and branches of them.
TEST(Hidden7_7_PrefixTree, ConversationsAreFoundWhereTheyAreHeld) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  const auto num_replicas = static_cast<int>(random.integer(2, 5));
  PrefixTree tree(num_replicas, int64_t{1} << 40);
  std::vector<Tokens> systems(3);
  for (Tokens& system : systems) system = random_prompt(random, 700, 50'000);
  std::vector<Tokens> sessions;
  std::vector<std::vector<Tokens>> told(static_cast<size_t>(num_replicas));  // prompts of each
  for (int turn = 0; turn < 150; ++turn) {
    Tokens prompt =
        sessions.empty() || random.integer(0, 4) == 0 ? random.one_of(systems) : random.one_of(sessions);
    if (random.integer(0, 5) == 0) prompt.resize(static_cast<size_t>(random.integer(1, std::ssize(prompt))));
    const Tokens words = random_prompt(random, 400, 50'000);
    prompt.insert(prompt.end(), words.begin(), words.end());
    Lengths expected;
    for (const std::vector<Tokens>& prompts : told) {
      int64_t longest = 0;
      for (const Tokens& one : prompts)
        longest = std::max<int64_t>(longest, std::ranges::mismatch(one, prompt).in1 - one.begin());
      expected.push_back(longest);
    }
    ASSERT_EQ(match(tree, prompt, num_replicas), expected) << "turn " << turn;
    const auto replica = random.integer(0, num_replicas - 1);
    tree.insert(static_cast<int>(replica), prompt);
    told[static_cast<size_t>(replica)].push_back(prompt);
    sessions.push_back(std::move(prompt));
  }
}

}  // namespace
}  // namespace ladder
