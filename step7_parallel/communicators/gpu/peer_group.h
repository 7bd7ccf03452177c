#pragma once
// What a kernel needs to know of the ranks' peer memory, passed to it by value: where each rank's lies, and what lies
// where in it.
//
// Blocks of the same index on all ranks are partners, and everything below belongs to one block index: its counters,
// its flags, its places in the buffers. A call of few bytes uses few blocks; since the grid depends on the call's size
// alone, partners have always taken part in the same calls, whatever the other blocks did. Counters live in device
// memory and are advanced by the kernels, so a graph can be replayed: what a call passes as an argument would be
// frozen by the capture.
#include <cstdint>

namespace ladder {

inline constexpr int kMaxPeers = 8;
// All blocks of a call must be resident at once, since they wait for each other: no more than the GPUs we know have
// multiprocessors (A100: 108, with two such blocks each).
inline constexpr int kMaxPeerBlocks = 128;
inline constexpr int kMaxPeerThreads = 512;

struct PeerCounters {  // of a block, in its own rank's memory; read and written by nobody else
  uint32_t meetings;   // of partners, so far
  uint32_t pulls;      // chunks that went through the `pull` buffer
  uint32_t pushes;     // calls that went through the `push` buffer
  uint32_t exchanges;  // calls that went through the `exchange` buffer
};

// What one block has of every buffer in bytes, multiples of 16, and where the buffers begin; the same on all ranks.
struct PeerLayout {
  static constexpr int64_t kCounters = 0;
  static constexpr int64_t kFlags = kCounters + kMaxPeerBlocks * int64_t{sizeof(PeerCounters)};
  static constexpr int64_t kPull = kFlags + kMaxPeerBlocks * kMaxPeers * int64_t{sizeof(uint32_t)};

  int size = 0;
  int64_t pull_bytes = 0;      // one half
  int64_t slice_bytes = 0;     // of one sender
  int64_t push_bytes = 0;      // of one sender, one half
  int64_t exchange_bytes = 0;  // likewise
  int64_t slices = 0, push = 0, exchange = 0, total = 0;
};

// A push goes to every peer: the more of them, the fewer bytes are worth it, and staging stays below 64 MiB. What is
// exchanged (context/head_exchange.h) goes to some neighbours, in buffers of its own: a rank that is in the sums and in no
// exchange of mine may be a call further.
inline PeerLayout peer_layout(int size) {
  constexpr int64_t kPushOfAll = int64_t{64} << 10, kSlices = int64_t{64} << 10;
  PeerLayout layout;
  layout.size = size;
  layout.pull_bytes = int64_t{8} << 10;
  layout.slice_bytes = kSlices / size / 16 * 16;
  layout.push_bytes = kPushOfAll / (size > 1 ? size - 1 : 1) / 4096 * 4096;
  layout.slices = PeerLayout::kPull + 2 * kMaxPeerBlocks * layout.pull_bytes;
  layout.push = layout.slices + 2 * kMaxPeerBlocks * size * layout.slice_bytes;
  layout.exchange_bytes = kPushOfAll / (size > 4 ? size : 4) / 16 * 16;
  layout.exchange = layout.push + 2 * kMaxPeerBlocks * size * layout.push_bytes;
  layout.total = layout.exchange + 2 * kMaxPeerBlocks * size * layout.exchange_bytes;
  return layout;
}

// One allocation of every rank (peer_memory.h).
struct PeerView {
  int rank = 0;
  char* memory[kMaxPeers] = {};  // by rank, as this rank's GPU sees it
  const int* stop = nullptr;     // host memory: not 0 releases whoever waits (the results are then worthless)
};

struct PeerGroup : PeerView {
  PeerLayout layout;
};

}  // namespace ladder
