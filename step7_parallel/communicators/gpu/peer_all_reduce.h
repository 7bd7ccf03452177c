#pragma once
// All-reduce between GPUs that can address each other's memory (NVLink, or PCIe peer access): a ladder of kernels of
// our own, with NCCL as its first rung.
//
// For the messages of a decode step, some kilobytes, bandwidth is nothing and the number of times that GPUs wait for
// each other is all: `barrier` waits twice for a flag and its data, `push` once for the data itself. Ours add in f32
// and in rank order, rounded once, and give the same bits on all ranks.
#include <span>
#include <string_view>

#include "step1_layers/core/variants.h"
#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/communicators/gpu/peer_group.h"

namespace ladder {

struct PeerAllReduceArgs {
  const PeerGroup* group = nullptr;  // nullptr: peers cannot reach each other
  Communicator* nccl = nullptr;      // nullptr: there is no NCCL
  Tensor tensor;  // contiguous f32, bf16 or f16 on this rank's GPU; the sum takes its place
};

std::span<const Variant<PeerAllReduceArgs>> peer_all_reduce_variants();
// What was fastest for so many bytes between so many ranks (bench/results): a row's name.
std::string_view fastest_all_reduce(int size, int64_t bytes);
void peer_all_reduce(const OpContext& ctx, const PeerAllReduceArgs& args);

// The rungs.
void all_reduce_barrier(const OpContext& ctx, const PeerAllReduceArgs& args);
void all_reduce_two_shot(const OpContext& ctx, const PeerAllReduceArgs& args);
void all_reduce_push(const OpContext& ctx, const PeerAllReduceArgs& args);
bool fits_push(const PeerAllReduceArgs& args);

// all_reduce and fused_add_rms_norm in one kernel, with the bits of the two.
void all_reduce_norm_push(const OpContext& ctx, const PeerGroup& group, const AllReduceNormArgs& args);
bool fits_all_reduce_norm(const PeerGroup& group, const AllReduceNormArgs& args);

}  // namespace ladder
