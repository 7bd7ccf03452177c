#pragma once
// Two ranks over NCCL that outlive each other: no call waits for the other rank, which may be gone at any time
// (ncclConfig_t::blocking = 0; NCCL user guide, "Fault Tolerance").
#include <cstddef>
#include <memory>

#include "step7_parallel/communicators/gpu/nccl_communicator.h"

namespace ladder {

// One thread's at a time.
class NcclPair {
 public:
  // Gives up what is under way (ncclCommAbort): kernels that wait for the other rank end.
  virtual ~NcclPair() = default;
  // Whether what was asked for last, meeting included, is where it belongs: only then may more be asked for, or an event be
  // recorded behind it. Error: NCCL's reason why it never will be. That the other rank is gone NCCL need not notice.
  virtual bool is_ready() = 0;
  // `size` bytes of this rank's GPU, ordered on the stream (a cudaStream_t); the other rank receives as many, or sends.
  virtual void send(const void* from, size_t size, void* stream) = 0;
  virtual void recv(void* to, size_t size, void* stream) = 0;
};

// Begins to meet the other rank: `rank` is 0 or 1, of an id that both have. Error: NCCL's reason, or that there is none.
std::unique_ptr<NcclPair> begin_nccl_pair(const NcclId& id, int rank, int device_index);

}  // namespace ladder
