#pragma once
// Memory on every rank's GPU that all ranks of a group can address: what peer_all_reduce.h works in.
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/communicators/exchange_texts.h"
#include "step7_parallel/communicators/gpu/peer_group.h"

namespace ladder {

// One allocation on this rank's GPU, and a view of every other rank's. Ranks of other processes open it by a CUDA IPC
// handle; ranks that are threads of this process, which cannot open their own handle, by its address. Either is
// believed only when a pattern that was written through it has been read at the other end: drivers have reported peer
// access that did not work (vLLM issue 2728).
//
// Made and unmade by all ranks together: `host`, their group on the CPU, is used for both and outlives it.
class PeerMemory {
 public:
  // At most kMaxPeers ranks. Error, the same on every rank: two of them cannot reach each other; says which and why.
  PeerMemory(int device_index, Communicator& host);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  const PeerGroup& group() const { return group_; }
  // Releases this rank's kernels from waiting for peers. What they compute then is worthless. From any thread.
  void stop() const;

 private:
  std::string open(int rank, const std::string& handle);  // what is wrong, or empty
  std::string copy_problem();
  void close();

  int device_;
  Communicator& host_;
  PeerGroup group_;
  void* own_ = nullptr;
  void* opened_[kMaxPeers] = {};
  std::shared_ptr<void> stop_;
};

// Every word of the memory zero, those of the push buffers the poison. The pattern of one rank at another: 4 KiB.
void clear_peer_memory(const PeerGroup& group);
void write_peer_pattern(const PeerGroup& group, int at);
int pattern_word(int from, int at, int index);
inline constexpr int kPatternWords = 1024;

}  // namespace ladder
