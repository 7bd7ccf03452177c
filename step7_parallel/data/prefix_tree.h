#pragma once
// Task 7.7.tree: what the prefix cache of each replica is thought to hold, as a radix tree of token ids.
//
//   root -- "You are a helpful assistant." {0, 1, 2} -- " Where is ..." {0} -- " And who ..." {0}
//                                                    \- " Write a ..." {1, 2}
//
// An edge holds tokens that all prompts through it share; a node knows which replicas hold the tokens up to its end. Who holds
// a node holds all nodes above it. It is a guess: made when a request is sent, forgotten by the order of use once a replica
// would hold more than its cache does. A wrong guess costs a recomputed prompt, never a wrong answer.
//
// A match reads the prompt once and touches a node for each place where prompts part, so its time is that of comparing
// tokens, whatever the number of prefixes and replicas. SGLang: sgl-router's tree.rs, over characters.
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace ladder {

class PrefixTree {
 public:
  // `cache_tokens`: of one replica, at least 1.
  PrefixTree(int num_replicas, int64_t cache_tokens);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;

  // How many of the prompt's tokens, from its beginning, each replica holds. `lengths`: one for each replica.
  void match(std::span<const int32_t> prompt, std::span<int64_t> lengths) const;
  // The replica computes this prompt: it holds all of it from now on, and has used it last.
  void insert(int replica, std::span<const int32_t> prompt);
  // It holds nothing any more.
  void forget(int replica);

  int64_t num_tokens(int replica) const { return replicas_[static_cast<size_t>(replica)].num_tokens; }
  int64_t num_nodes() const { return num_nodes_; }  // without the root

 private:
  struct Node;
  struct Holder {
    int replica = 0;
    std::list<Node*>::iterator use;  // in the replica's `uses`
  };
  struct Node {
    std::vector<int32_t> tokens;  // of the edge above it
    Node* parent = nullptr;
    std::unordered_map<int32_t, std::unique_ptr<Node>> children;  // by their first token
    std::vector<Holder> holders;
  };
  struct ReplicaTokens {
    // The nodes that it holds, the one used longest ago first. A node is used after all below it, so the first has nothing
    // below it that the replica holds.
    std::list<Node*> uses;
    int64_t num_tokens = 0;
  };

  // Its first `length` tokens become a node of their own above it, which is returned; the same replicas hold both.
  Node* split(Node* node, size_t length);
  Node* add_child(Node* parent, std::span<const int32_t> tokens);
  // Used just now; held from now on if it was not.
  void use(int replica, Node* node);
  // The replica's first node is not held any more.
  void drop_first(int replica);

  const int64_t cache_tokens_;
  std::unique_ptr<Node> root_;
  std::vector<ReplicaTokens> replicas_;
  int64_t num_nodes_ = 0;
};

}  // namespace ladder
