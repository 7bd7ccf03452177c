#pragma once
// What lies where in the peer memory of an exchange of tokens: the same on all ranks.
//
//   counters, starts   of a block index, as in peer_group.h
//   notes              [half][from][row] expert ids, then weights, of the token that lies beside them, or of none
//   tokens             [half][from][row] a token of rank `from`, pushed by its dispatch
//   parts              [half][from][row] what the experts of rank `from` made of this rank's token, pushed by its combine
//
// Row r of all of them belongs to block r % kMaxPeerBlocks of both kernels, however many rows a call has. So a block's
// calls take its rows' halves in turns, by a counter of its own.
#include <cstdint>

#include "step7_parallel/communicators/gpu/peer_group.h"

namespace ladder {

struct ExpertCounters {  // of a block, in its own rank's memory; read and written by nobody else
  uint32_t dispatches;   // calls so far
  uint32_t combines;
  uint32_t unused[2];
};

struct ExpertLayout {
  static constexpr int64_t kCounters = 0;
  static constexpr int64_t kStarts = kCounters + kMaxPeerBlocks * int64_t{sizeof(ExpertCounters)};
  static constexpr int64_t kNotes = kStarts + kMaxPeerBlocks * kMaxPeers * int64_t{sizeof(uint32_t)};

  int size = 0;
  int64_t max_rows = 0, note_bytes = 0, row_bytes = 0;  // row_bytes: a multiple of 16
  int64_t tokens = 0, parts = 0, total = 0;
};

inline ExpertLayout expert_layout(int size, int64_t max_rows, int64_t top_k, int64_t row_bytes) {
  ExpertLayout layout;
  layout.size = size;
  layout.max_rows = max_rows;
  layout.note_bytes = 2 * top_k * int64_t{sizeof(uint32_t)};
  layout.row_bytes = row_bytes;
  const int64_t rows = 2 * size * max_rows;
  layout.tokens = (ExpertLayout::kNotes + rows * layout.note_bytes + 15) / 16 * 16;
  layout.parts = layout.tokens + rows * row_bytes;
  layout.total = layout.parts + rows * row_bytes;
  return layout;
}

struct ExpertGroup : PeerView {
  ExpertLayout layout;
};

}  // namespace ladder
