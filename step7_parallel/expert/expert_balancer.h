#pragma once
// Task 7.9.balance: where the experts of a layer go, by how many tokens ask for each. All ranks wait for the one with the most
// tokens; an expert that is asked for a lot gets copies on several ranks, and its tokens are shared out over them.
//
//   tokens of each expert     e0 90   e1 30   e2 20   e3 20
//   2 ranks, as they are      rank 0: e0 e1     120          rank 1: e2 e3      40        imbalance 120 / 80 = 1.5
//   and 2 redundant experts   copies: e0 2, of 45 tokens each; e1 2, of 15; e2 1; e3 1
//                             rank 0: e0 e2 e1   80          rank 1: e0 e3 e1   80        imbalance 1
//
// In two steps. Copies: one of each expert; then each redundant one goes to the expert that has the most tokens per copy.
// Packing: the copies with the most tokens first, each to the rank that has the fewest tokens so far, among those that
// have room and not that expert already.
// (DeepSeek's EPLB, 2025, https://github.com/deepseek-ai/EPLB, without its groups of experts on nodes)
#include <cstdint>
#include <span>
#include <vector>

namespace ladder {

struct ExpertPlacement {
  // Of each rank the experts that it has, by their numbers in the layer: rank_experts[rank][place].
  std::vector<std::vector<int32_t>> rank_experts;
  bool operator==(const ExpertPlacement&) const = default;
};

// `loads`: tokens of each expert, at least 0, over however many steps. Every rank gets (experts + num_redundant) / ranks of them,
// no expert is twice on a rank, and each is somewhere. The same on every rank that is asked: products of integers are
// compared, not quotients, and of equals the lowest expert, or the lowest rank, comes first. A rank's list is in the order in
// which it got them.
//
// No expert has more copies than there are ranks. In rare cases all ranks that have room have the expert already. It is put there
// all the same, and afterwards, while a rank has an expert twice, that copy changes places: with an expert of a rank
// that has no such copy, one that the first rank has not yet or the other one has twice, and among these the one whose tokens
// per copy are nearest. (There is always one, and each exchange leaves fewer doubles.)
//
// Error: numbers that do not fit (step4_runner/redundant_experts.h); a negative load.
ExpertPlacement balance_experts(std::span<const int64_t> loads, int64_t ranks, int64_t num_redundant);

// Tokens of the rank with the most over those of the mean one, where the copies of an expert share its tokens equally. 1 is
// perfect, also where there are no tokens; the number of ranks is the worst.
double imbalance(std::span<const int64_t> loads, const ExpertPlacement& placement);

}  // namespace ladder
