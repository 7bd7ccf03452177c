#pragma once
// Memory on every rank's GPU that all ranks of a group can address: what peer_all_reduce.h and expert/gpu work in.
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/communicators/exchange_texts.h"
#include "step7_parallel/communicators/gpu/peer_group.h"

namespace ladder {

// At first every word is zero up to `first_poison`, and the poison (peer_kernel.cuh) from there on.
struct PeerBytes {
  int64_t first_poison = 0, total = 0;  // multiples of 4
};

// One allocation on this rank's GPU, and a view of every other rank's. Ranks of other processes open it by a CUDA IPC
// handle; ranks that are threads of this process, which cannot open their own handle, by its address. Either is
// believed only when a pattern that was written through it has been read at the other end: drivers have reported peer
// access that did not work (vLLM issue 2728).
//
// Made and unmade by all ranks together: `host`, their group on the CPU, is used for both and outlives it.
class PeerMemory {
 public:
  // At most kMaxPeers ranks. stopped_with: stop() of that memory releases whoever waits in this. Error, the same on every
  // rank: two of them cannot reach each other; says which and why.
  PeerMemory(int device_index, Communicator& host, PeerBytes bytes, const PeerMemory* stopped_with = nullptr);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  const PeerView& view() const { return view_; }
  // Releases this rank's kernels from waiting for peers. What they compute then is worthless. From any thread.
  void stop() const;

 private:
  std::string open(int rank, const std::string& handle);  // what is wrong, or empty
  std::string copy_problem();
  void close();

  int device_;
  Communicator& host_;
  PeerView view_;
  void* own_ = nullptr;
  void* opened_[kMaxPeers] = {};
  std::shared_ptr<void> stop_;
};

void clear_peer_memory(const PeerView& view, PeerBytes bytes);
// The pattern of one rank at another: 4 KiB.
void write_peer_pattern(const PeerView& view, int at);
int pattern_word(int from, int at, int index);
inline constexpr int kPatternWords = 1024;

}  // namespace ladder
