#pragma once
// Which rank of a group keeps the keys and values of which position (decode context parallelism; vLLM's dcp).
//
// A block of the block manager is cut over all ranks of the group: `run` tokens for the first rank, `run` for the next, in
// turns. So each rank has every run-th part of a sequence, whatever its length, and a block takes 1 / ranks of its room on
// each.
//
//   block of 16, 2 ranks, runs of 2     offset   0 1 2 3 4 5 6 7 8 9 ...
//                                       rank     0 0 1 1 0 0 1 1 0 0
//                                       slot     0 1 0 1 2 3 2 3 4 5       of 8 in the rank's part of the block
#include <cstdint>

namespace ladder {

struct KvInterleave {
  int ranks = 1;
  int64_t run = 1;
  int64_t block = 1;  // tokens of a block, on all ranks; a multiple of ranks * run
};

// The rank that has this position, or this slot of the block manager.
int kv_owner(const KvInterleave& kv, int64_t position);

// Where `rank` keeps what the block manager has at `slot` (block id * block + offset): in a cache of blocks of
// block / ranks slots. -1: another rank has it, or slot is -1.
int64_t local_kv_slot(const KvInterleave& kv, int64_t slot, int rank);

// How many of the first `length` positions `rank` has. They are the first ones of its slots, in order.
int64_t local_kv_length(const KvInterleave& kv, int64_t length, int rank);

}  // namespace ladder
