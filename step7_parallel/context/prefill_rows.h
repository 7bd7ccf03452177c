#pragma once
// Which rows of a step each rank of a context-parallel group computes (prefill context parallelism).
//
// Of every sequence's new tokens a rank takes a zigzag share (zigzag.h): a chunk of a long prompt, or what a prefix hit
// left of it, is shared out like a whole prompt. A sequence that decodes has one new token, and one rank has it: were it
// on all of them, a step of 256 such sequences would cost each rank as much as one rank alone. Which rank takes which
// share of a sequence's zigzag is free: the largest goes to the rank that has the fewest rows as yet, the next to the next,
// so that no two ranks are ever more than two rows apart. Of equal shares, and of equal ranks, the first comes first.
//
//   2 ranks    sequence 0, 8 tokens    0 1 1 0       chunks of 2
//              sequence 1, decodes     0
//              sequence 2, decodes     1
//              sequence 3, decodes     0
#include <cstdint>
#include <span>
#include <vector>

#include "step7_parallel/context/zigzag.h"

namespace ladder {

struct RowSpan {
  int64_t sequence = 0;  // of the step
  TokenSpan tokens;      // of its new ones, counted from 0

  bool operator==(const RowSpan&) const = default;
};

// By rank: its rows, in this order. Every row of the step is on one rank; a rank may have none.
// query_start_loc: [sequences + 1], as AttentionMetadata's. Error: fewer than one rank.
std::vector<std::vector<RowSpan>> share_out_rows(std::span<const int32_t> query_start_loc, int ranks);

int64_t num_rows(const std::vector<RowSpan>& spans);

}  // namespace ladder
