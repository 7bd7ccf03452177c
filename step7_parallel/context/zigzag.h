#pragma once
// Which tokens of a prompt each rank of a context-parallel group holds: the zigzag order (ring-flash-attention, Zhu,
// 2024; Llama 3, arXiv 2407.21783, 3.3.2).
//
// Under a causal mask a late token meets more keys than an early one. So the prompt is cut into twice as many chunks as
// there are ranks, and rank r holds chunk r and, counted from the end, chunk r again: together always the same work.
//
//   8 tokens, 2 ranks     0 1 | 2 3 | 4 5 | 6 7
//     rank                 0     1     1     0        both compute 18 of the 36 pairs of query and key
//   in halves             0 0   0 0   1 1   1 1       10 and 26
//
// The last token of a prompt of at least `ranks * 2` tokens is on rank 0.
#include <cstdint>

namespace ladder {

struct TokenSpan {
  int64_t begin = 0, end = 0;  // positions [begin, end)

  int64_t size() const { return end - begin; }
  bool operator==(const TokenSpan&) const = default;
};

// A rank's tokens, in the order of its rows: those of `early`, then those of `late`.
struct ZigzagShare {
  TokenSpan early, late;

  int64_t size() const { return early.size() + late.size(); }
};

// The chunks are equal to within a token, and empty where there are fewer tokens than chunks. Every rank's early chunk
// lies before every rank's late one.
// Error: length < 0, ranks < 1, a rank outside [0, ranks).
ZigzagShare zigzag_share(int64_t length, int ranks, int rank);

// How many pairs of a query and a key that it sees have their query on this rank: its work.
int64_t causal_pairs(const ZigzagShare& share);

}  // namespace ladder
