#pragma once
// A group over NCCL: any GPUs, within a machine and between machines.
//
// Sums have the same bits on all ranks, in an order of NCCL's own. Every call may be captured in a graph once
// warm_up() has made the connections, which NCCL makes lazily and for which it allocates. The counts of an all_to_all
// are read by the host: a graph replays those of its capture. Tensors are contiguous.
#include <array>
#include <functional>
#include <memory>

#include "step1_layers/distributed/communicator.h"

namespace ladder {

// Names one group that is yet to be made: one rank makes it, all ranks use it, once.
using NcclId = std::array<char, 128>;

class NcclCommunicator : public Communicator {
 public:
  // Releases whoever waits in this rank's calls; the group is of no more use. From any thread. All ranks must do it.
  virtual void abort() = 0;
  // Error: what NCCL has found wrong since. A peer's death on the same machine it does not notice (NCCL issue 279).
  virtual void check() const = 0;
  // The calls of this group that `calls` makes, as one launch.
  virtual void together(const std::function<void()>& calls) = 0;
  // Every call, and every peer, once. All ranks together, before the first capture.
  virtual void warm_up(const OpContext& ctx) = 0;
};

// The NCCL calls that `calls` makes, of any groups, as one launch: what is sent and received in it does not wait for each
// other. Without NCCL just the calls.
void in_one_nccl_launch(const std::function<void()>& calls);

std::string nccl_obstacle();  // why there is no NCCL in this build or on this machine; empty: there is
NcclId make_nccl_id();
// Made by all ranks at once, each on its own GPU. Error: NCCL's reason.
std::unique_ptr<NcclCommunicator> make_nccl_communicator(const NcclId& id, int rank, int size,
                                                         int device_index);

}  // namespace ladder
