// match:   walk down as long as the tokens are equal; at each node its holders have matched so much
// insert:  the same walk; where it ends in the middle of an edge the node is split, what is left becomes a leaf; then the
//          nodes on the way are used, from the leaf up
//
// What the rest buys: the books of who used what last, by which a replica forgets.
#include "step7_parallel/data/prefix_tree.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

namespace {

// Tokens that both begin with. Whole pieces by memcmp, which compares vectors of them.
size_t common_length(std::span<const int32_t> a, std::span<const int32_t> b) {
  constexpr size_t kPiece = 128;
  const size_t size = std::min(a.size(), b.size());
  size_t at = 0;
  while (at + kPiece <= size && std::memcmp(&a[at], &b[at], kPiece * sizeof(int32_t)) == 0) at += kPiece;
  while (at < size && a[at] == b[at]) ++at;
  return at;
}

}  // namespace

PrefixTree::PrefixTree(int num_replicas, int64_t cache_tokens)
    : cache_tokens_(cache_tokens),
      root_(std::make_unique<Node>()),
      replicas_(static_cast<size_t>(num_replicas)) {
  LADDER_CHECK(num_replicas >= 1 && cache_tokens >= 1,
               "PrefixTree: {} replicas of {} tokens, expected 1 or more", num_replicas, cache_tokens);
}

// A child's destructor would call its child's, and so on: prompts that grow turn by turn make deep trees.
PrefixTree::~PrefixTree() {
  std::vector<std::unique_ptr<Node>> nodes;
  nodes.push_back(std::move(root_));
  while (!nodes.empty()) {
    const std::unique_ptr<Node> node = std::move(nodes.back());
    nodes.pop_back();
    for (auto& [token, child] : node->children) nodes.push_back(std::move(child));
  }
}

// >>> task 7.7.tree: a radix tree that knows who holds what
void PrefixTree::match(std::span<const int32_t> prompt, std::span<int64_t> lengths) const {
  std::ranges::fill(lengths, 0);
  const Node* node = root_.get();
  size_t at = 0;
  while (at < prompt.size()) {
    const auto child = node->children.find(prompt[at]);
    if (child == node->children.end()) return;
    node = child->second.get();
    const size_t length = common_length(node->tokens, prompt.subspan(at));
    at += length;
    for (const Holder& holder : node->holders)
      lengths[static_cast<size_t>(holder.replica)] = static_cast<int64_t>(at);
    if (length < node->tokens.size()) return;
  }
}

void PrefixTree::insert(int replica, std::span<const int32_t> prompt) {
  Node* node = root_.get();
  size_t at = 0;
  while (at < prompt.size()) {
    const auto child = node->children.find(prompt[at]);
    if (child == node->children.end()) {
      node = add_child(node, prompt.subspan(at));
      break;
    }
    node = child->second.get();
    const size_t length = common_length(node->tokens, prompt.subspan(at));
    if (length < node->tokens.size()) node = split(node, length);
    at += length;
  }
  for (; node != root_.get(); node = node->parent) use(replica, node);
  while (num_tokens(replica) > cache_tokens_) drop_first(replica);
}

PrefixTree::Node* PrefixTree::split(Node* node, size_t length) {
  Node* const parent = node->parent;
  std::unique_ptr<Node>& place = parent->children.at(node->tokens[0]);
  std::unique_ptr<Node> below = std::move(place);
  place = std::make_unique<Node>();
  Node* const above = place.get();
  ++num_nodes_;
  const auto cut = node->tokens.begin() + static_cast<std::ptrdiff_t>(length);
  above->tokens.assign(node->tokens.begin(), cut);
  above->parent = parent;
  node->tokens.erase(node->tokens.begin(), cut);
  node->parent = above;
  above->children.emplace(node->tokens[0], std::move(below));
  for (const Holder& holder : node->holders) {
    std::list<Node*>& uses = replicas_[static_cast<size_t>(holder.replica)].uses;
    above->holders.push_back({holder.replica, uses.insert(std::next(holder.use), above)});
  }
  return above;
}

void PrefixTree::use(int replica, Node* node) {
  ReplicaTokens& own = replicas_[static_cast<size_t>(replica)];
  const auto holder = std::ranges::find(node->holders, replica, &Holder::replica);
  if (holder != node->holders.end()) {
    own.uses.splice(own.uses.end(), own.uses, holder->use);
    return;
  }
  own.num_tokens += std::ssize(node->tokens);
  node->holders.push_back({replica, own.uses.insert(own.uses.end(), node)});
}

void PrefixTree::drop_first(int replica) {
  ReplicaTokens& own = replicas_[static_cast<size_t>(replica)];
  Node* const node = own.uses.front();
  own.uses.pop_front();
  own.num_tokens -= std::ssize(node->tokens);
  std::erase_if(node->holders, [&](const Holder& holder) { return holder.replica == replica; });
  if (!node->holders.empty()) return;
  --num_nodes_;
  node->parent->children.erase(node->tokens[0]);
}
// <<< task 7.7.tree

PrefixTree::Node* PrefixTree::add_child(Node* parent, std::span<const int32_t> tokens) {
  auto child = std::make_unique<Node>();
  child->tokens.assign(tokens.begin(), tokens.end());
  child->parent = parent;
  ++num_nodes_;
  return parent->children.emplace(tokens[0], std::move(child)).first->second.get();
}

void PrefixTree::forget(int replica) {
  while (!replicas_[static_cast<size_t>(replica)].uses.empty()) drop_first(replica);
}

}  // namespace ladder
