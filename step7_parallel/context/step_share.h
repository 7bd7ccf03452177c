#pragma once
// What one rank of a context-parallel group computes of a step, as the host plans it (prefill_rows.h says who has which rows).
//
//   the step    sequence 0, tokens 4 to 11 (8 new)     sequence 1, decodes        2 ranks
//   rank 0      rows 0 1 . . . . 6 7 8                 spans: 0 ends at 2, 0 ends at 8, 1 ends at 1
//   rank 1      rows . . 2 3 4 5 . . .                 spans: 0 ends at 6 (two spans that meet are two)
//   all rows    0 1 6 7 8  2 3 4 5 -1                  places  0 1 5 6 7 8 2 3 4
//
// The rows of a span are a sequence of their own for attention: it ends where their last key is.
#include <cstdint>
#include <span>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder {

// The lists that a device reads, all i32.
template <class List>
struct ShareLists {
  List rows;  // which of the step's rows this rank computes, in its order; never none: then row 0, for nobody
  List all_rows;         // [ranks * most]: those of all ranks, rank after rank, each filled up with -1
  List places;           // [rows of the step]: where in all_rows each is
  List sequences;        // [spans]: whose tokens
  List ends;             // [spans]: the end of the span among the sequence's new tokens
  List query_start_loc;  // [spans + 1]: the rank's rows of each span
};

struct StepShare {
  ShareLists<std::vector<int32_t>> lists;
  int64_t most = 1;           // rows of the rank that has the most
  int64_t max_query_len = 1;  // AttentionMetadata's for the rank's spans

  // Side by side in one tensor: how long it is; all lists written to it; and views of each.
  int64_t numel() const;
  void write(int32_t* to) const;
  ShareLists<Tensor> views(const Tensor& memory) const;
};

// query_start_loc: of the step, as AttentionMetadata's. max_query_len is 1 only where every sequence of the step has one row: a
// batch that says so promises that all keys before a row's own are those of earlier steps (kv_cache.h), and a prompt's spans of
// one row do not.
StepShare share_of_step(std::span<const int32_t> query_start_loc, int ranks, int rank);

}  // namespace ladder
