#pragma once
// The communicator of GPU ranks: sums by the kernels of peer_all_reduce.h where they pay and peers can reach each other,
// everything else, and every other machine, by NCCL.
//
// Whether a call is captured in a graph must be the same on all ranks, and so must its kernel (--kernel all_reduce=push).
// One stream at a time. Graphs die before the communicators that were captured in them.
#include <memory>

#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/communicators/gpu/nccl_communicator.h"
#include "step7_parallel/communicators/gpu/peer_all_reduce.h"
#include "step7_parallel/communicators/gpu/peer_memory.h"

namespace ladder {

class GpuCommunicator : public Communicator {
 public:
  // By all ranks of `host` at once, their group on the CPU (threads, shared memory, MPI), through which they find each
  // other; it outlives this. ctx: the rank's GPU and stream, on which everything is run once, so that the first call
  // may be a captured one. Error, the same on all ranks: there is neither NCCL nor peer access; says why.
  GpuCommunicator(const OpContext& ctx, Communicator& host);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(const OpContext& ctx, const Tensor& tensor) override;
  void all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) override;
  void reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) override;
  void all_to_all(const OpContext& ctx, const Tensor& input, std::span<const int64_t> send_counts,
                  const Tensor& output, std::span<const int64_t> recv_counts) override;
  void send(const OpContext& ctx, const Tensor& tensor, int to) override;
  void recv(const OpContext& ctx, const Tensor& tensor, int from) override;
  void broadcast(const OpContext& ctx, const Tensor& tensor, int root) override;
  void barrier(const OpContext& ctx) override;
  void all_reduce_add_norm(const OpContext& ctx, const AllReduceNormArgs& args) override;

  // What it has, for tests, benchmarks and `info`: args of peer_all_reduce for a tensor, and why something is missing
  // (empty: it is there).
  PeerAllReduceArgs peer_args(const Tensor& tensor) const;
  const std::string& without_peers() const { return without_peers_; }
  const std::string& without_nccl() const { return without_nccl_; }
  // For exchanges with memory and calls of their own (expert/gpu). nullptr: not there.
  const PeerMemory* peer_memory() const { return peers_.get(); }
  NcclCommunicator* nccl_group() const { return nccl_.get(); }

  // Error: what NCCL has found wrong with a call that was begun.
  void check() const;
  // Releases this rank's kernels from waiting for peers; the group is of no more use. From any thread.
  void abort();

 private:
  NcclCommunicator& nccl();
  void warm_up(const OpContext& ctx);

  int rank_, size_;
  std::string without_peers_, without_nccl_;
  std::unique_ptr<NcclCommunicator> nccl_;
  std::unique_ptr<PeerMemory> peers_;
  PeerGroup group_;  // of peers_
};

}  // namespace ladder
