// Task 7.7.tree: what each replica is thought to hold.
#include "step7_parallel/data/prefix_tree.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using Tokens = std::vector<int32_t>;

std::vector<int64_t> match(const PrefixTree& tree, const Tokens& prompt, size_t num_replicas) {
  std::vector<int64_t> lengths(num_replicas, -1);
  tree.match(prompt, lengths);
  return lengths;
}
using Lengths = std::vector<int64_t>;

TEST(Task7_7_PrefixTree, AMatchEndsWhereTheTokensPart) {
  PrefixTree tree(2, 1000);
  tree.insert(0, Tokens{1, 2, 3, 4, 5});
  tree.insert(1, Tokens{1, 2, 3, 9});
  EXPECT_EQ(match(tree, {1, 2, 3, 4, 5, 6}, 2), Lengths({5, 3}));
  EXPECT_EQ(match(tree, {1, 2, 3, 9, 9}, 2), Lengths({3, 4}));
  EXPECT_EQ(match(tree, {1, 2}, 2), Lengths({2, 2}));
  EXPECT_EQ(match(tree, {1, 2, 3, 4, 8}, 2), Lengths({4, 3})) << "in the middle of an edge";
  EXPECT_EQ(match(tree, {2}, 2), Lengths({0, 0}));
  EXPECT_EQ(match(tree, {}, 2), Lengths({0, 0}));
  EXPECT_EQ(tree.num_nodes(), 3);
  EXPECT_EQ(tree.num_tokens(0), 5);
  EXPECT_EQ(tree.num_tokens(1), 4);
}

TEST(Task7_7_PrefixTree, ASharedBeginningIsStoredOnce) {
  PrefixTree tree(3, 1000);
  for (int replica = 0; replica < 3; ++replica) tree.insert(replica, Tokens{7, 7, 7, 7});
  tree.insert(2, Tokens{7, 7});
  EXPECT_EQ(tree.num_nodes(), 2);
  for (int replica = 0; replica < 3; ++replica) EXPECT_EQ(tree.num_tokens(replica), 4);
}

TEST(Task7_7_PrefixTree, WhatWasUsedLongestAgoIsForgottenFirst) {
  PrefixTree tree(1, 10);
  tree.insert(0, Tokens{1, 1, 1, 1});
  tree.insert(0, Tokens{2, 2, 2, 2});
  tree.insert(0, Tokens{1, 1, 1, 1});
  tree.insert(0, Tokens{3, 3, 3, 3});  // twelve
  EXPECT_EQ(match(tree, {1, 1, 1, 1}, 1), Lengths({4}));
  EXPECT_EQ(match(tree, {2, 2, 2, 2}, 1), Lengths({0}));
  EXPECT_EQ(match(tree, {3, 3, 3, 3}, 1), Lengths({4}));
  EXPECT_EQ(tree.num_tokens(0), 8);
}

TEST(Task7_7_PrefixTree, ABeginningOutlivesWhatFollowsIt) {
  PrefixTree tree(1, 8);
  tree.insert(0, Tokens{1, 1, 2, 2, 2});
  tree.insert(0, Tokens{1, 1, 3, 3, 3});  // eight
  tree.insert(0, Tokens{1, 1, 4});        // nine: the end of the first goes
  EXPECT_EQ(match(tree, {1, 1, 2}, 1), Lengths({2}));
  EXPECT_EQ(match(tree, {1, 1, 3, 3, 3}, 1), Lengths({5}));
  EXPECT_EQ(tree.num_tokens(0), 6);
}

TEST(Task7_7_PrefixTree, WhatOneReplicaForgetsOthersKeep) {
  PrefixTree tree(2, 1000);
  tree.insert(0, Tokens{1, 2, 3});
  tree.insert(1, Tokens{1, 2, 3, 4});
  tree.forget(1);
  EXPECT_EQ(match(tree, {1, 2, 3, 4}, 2), Lengths({3, 0}));
  EXPECT_EQ(tree.num_tokens(1), 0);
  EXPECT_EQ(tree.num_nodes(), 1);
  tree.forget(0);
  EXPECT_EQ(tree.num_nodes(), 0);
  EXPECT_THROW(PrefixTree(0, 5), Error);
  EXPECT_THROW(PrefixTree(1, 0), Error);
}

// A chain of thousands of turns ends without as many calls within each other, and a prompt that is longer than all that may
// be held is forgotten at once.
TEST(Task7_7_PrefixTree, LongPromptsAndDeepTrees) {
  constexpr int32_t kDepth = 30'000;
  PrefixTree tree(1, 2 * kDepth);
  Tokens session(kDepth);
  std::iota(session.begin(), session.end(), 0);
  while (!session.empty()) {  // from the end: each is split off the first node
    tree.insert(0, session);
    session.pop_back();
  }
  EXPECT_EQ(tree.num_nodes(), kDepth);
  EXPECT_EQ(tree.num_tokens(0), kDepth);
  PrefixTree small(1, 3);
  small.insert(0, Tokens{1, 2, 3, 4});
  EXPECT_EQ(small.num_nodes(), 0);
}

// The same by sets of prefixes: each replica's nodes as the tokens up to their ends, without edges.
class NaiveTree {
 public:
  NaiveTree(int num_replicas) : held_(static_cast<size_t>(num_replicas)) {}
  void insert(int replica, const Tokens& prompt) {
    for (size_t length = 1; length <= prompt.size(); ++length)
      held_[static_cast<size_t>(replica)].emplace(prompt.begin(),
                                                  prompt.begin() + static_cast<std::ptrdiff_t>(length));
  }
  void forget(int replica) { held_[static_cast<size_t>(replica)].clear(); }
  Lengths match(const Tokens& prompt) const {
    Lengths lengths;
    for (const auto& held : held_) {
      int64_t length = 0;
      while (length < std::ssize(prompt) && held.contains({prompt.begin(), prompt.begin() + length + 1}))
        ++length;
      lengths.push_back(length);
    }
    return lengths;
  }
  int64_t num_tokens(int replica) const { return std::ssize(held_[static_cast<size_t>(replica)]); }

 private:
  std::vector<std::set<Tokens>> held_;
};

TEST(Task7_7_PrefixTree, EqualsANaiveTreeWhereThereIsRoom) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  PrefixTree tree(3, 1'000'000);
  NaiveTree naive(3);
  for (int i = 0; i < 2000; ++i) {
    Tokens prompt(static_cast<size_t>(random.integer(1, 12)));
    for (int32_t& token : prompt) token = static_cast<int32_t>(random.integer(0, 2));
    const int replica = static_cast<int>(random.integer(0, 2));
    EXPECT_EQ(match(tree, prompt, 3), naive.match(prompt));
    if (random.integer(0, 99) == 0) {
      tree.forget(replica);
      naive.forget(replica);
    } else {
      tree.insert(replica, prompt);
      naive.insert(replica, prompt);
    }
    for (int r = 0; r < 3; ++r) ASSERT_EQ(tree.num_tokens(r), naive.num_tokens(r));
  }
}

// Under pressure: never above the budget, and what is held matches whole again after its use.
TEST(Task7_7_PrefixTree, KeepsItsBudgetAndWhatWasJustUsed) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  PrefixTree tree(4, 60);
  for (int i = 0; i < 5000; ++i) {
    Tokens prompt(static_cast<size_t>(random.integer(1, 30)));
    for (int32_t& token : prompt) token = static_cast<int32_t>(random.integer(0, 3));
    const int replica = static_cast<int>(random.integer(0, 3));
    tree.insert(replica, prompt);
    ASSERT_EQ(match(tree, prompt, 4)[static_cast<size_t>(replica)], std::ssize(prompt));
    for (int r = 0; r < 4; ++r) ASSERT_LE(tree.num_tokens(r), 60);
  }
  for (int r = 0; r < 4; ++r) tree.forget(r);
  EXPECT_EQ(tree.num_nodes(), 0);
  for (int r = 0; r < 4; ++r) EXPECT_EQ(tree.num_tokens(r), 0);
}

}  // namespace
}  // namespace ladder
