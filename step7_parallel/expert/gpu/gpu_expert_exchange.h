#pragma once
// 7.9 on GPUs: tokens to their experts and back without the host, so that a graph can hold it. What a rank can get is laid
// out for the worst case, as in DeepEP's low-latency kernels, and what did not come is marked on the device:
//
//   rank 0: a b, rank 1: c; rows = 2                 received at rank 0            at rank 1
//   experts 0 1 2 on rank 0, 3 4 5 on rank 1         from 0: a  ids  0 -1          a  ids -1  1
//   a of 0 and 4, b of 0 and 2, c of 5                       b  ids  0  2          -  ids -1 -1
//                                                    from 1: -  ids -1 -1          c  ids  2 -1
//                                                            -  ids -1 -1          -  ids -1 -1
//
// moe_experts adds nothing for -1, so it runs on all rows, whose number is known to the host. (DeepSeek's DeepEP, 2025)
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "step7_parallel/communicators/gpu/gpu_communicator.h"
#include "step7_parallel/expert/expert_exchange.h"
#include "step7_parallel/expert/gpu/expert_memory.h"

namespace ladder {

struct ExpertExchangeSizes {
  int64_t max_rows = 0;  // tokens of a rank in a call, at most
  int64_t hidden = 0, top_k = 0;
  DType dtype = DType::bf16;
  // Of every expert of the layer the rank that has it, and the id under which it is asked for there; empty: the layer's.
  // Both empty: each rank has a part of every expert, and all tokens go everywhere.
  std::vector<int32_t> rank_of = {}, number_of = {};
  bool operator==(const ExpertExchangeSizes&) const = default;
};

// What a dispatch brings to a rank: `rows` from every rank, in rank order.
struct DispatchedTokens {
  Tensor x;           // [ranks * rows, hidden]; rows without an expert here hold anything
  Tensor expert_ids;  // [ranks * rows, top_k] i32; -1: no expert of this rank, or no token
  Tensor weights;     // [ranks * rows, top_k] f32
  // For the combine. [rows] i32, bit r: this rank's token is at rank r; that of rank r is here (r another rank).
  Tensor sent_to, came_from;
};

class GpuExpertExchange {
 public:
  // By all ranks of `group` at once, with the same sizes; `host`, their group on the CPU, and `group` outlive it. Every
  // kernel is run once. Error: sizes that make no sense; the ranks have others; there is neither NCCL nor peer access.
  GpuExpertExchange(const OpContext& ctx, GpuCommunicator& group, Communicator& host,
                    ExpertExchangeSizes sizes);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  const ExpertExchangeSizes& sizes() const { return sizes_; }
  // Tensors for what a dispatch of `rows` brings, the same number on all ranks.
  DispatchedTokens take(Arena& arena, int64_t rows) const;

  // What the rungs work with; nullptr: not there.
  const ExpertGroup* peers() const { return peer_memory_ ? &peers_ : nullptr; }
  NcclCommunicator* nccl() const { return group_.nccl_group(); }
  // Undefined where each rank has a part of every expert.
  const Tensor& experts() const { return experts_; }              // [experts, 2] i32: rank, id there
  const Tensor& local_numbers() const { return local_numbers_; }  // [experts] i32: id here, or -1

 private:
  GpuCommunicator& group_;
  ExpertExchangeSizes sizes_;
  Tensor experts_, local_numbers_;
  std::unique_ptr<PeerMemory> peer_memory_;
  ExpertGroup peers_;  // of peer_memory_
};

struct ExpertDispatchArgs {
  const GpuExpertExchange* exchange = nullptr;
  Tensor x;           // [tokens, hidden], tokens at most the rows of `to`; ranks may have different numbers
  Tensor expert_ids;  // [tokens, top_k] i32, by the numbers of the layer; those that do not exist count as -1
  Tensor weights;     // [tokens, top_k] f32
  DispatchedTokens to;
};

struct ExpertCombineArgs {
  const GpuExpertExchange* exchange = nullptr;
  Tensor
      parts;  // [ranks * rows, hidden]: zeros for tokens without an expert here, as moe_experts writes them
  DispatchedTokens from;  // the dispatch
  Tensor out;             // [tokens, hidden] of this rank
};

// A dispatch and the combine that belongs to it. All ranks call the same one, captured or not. A call neither allocates
// (where tokens are fewer than rows `nccl` takes of ctx.arena) nor synchronises; every tensor is contiguous.
struct GpuExchangeRung {
  std::string_view name;
  bool (*supports)(const GpuExpertExchange& exchange);
  void (*dispatch)(const OpContext& ctx, const ExpertDispatchArgs& args);
  void (*combine)(const OpContext& ctx,
                  const ExpertCombineArgs& args);  // f32, in rank order; NCCL: its order
};
std::span<const GpuExchangeRung> gpu_exchange_rungs();

// Error: shapes, dtypes or devices that do not fit together.
void check_dispatch(const OpContext& ctx, const ExpertDispatchArgs& args);
void check_combine(const OpContext& ctx, const ExpertCombineArgs& args);

// The rung `peer`.
bool fits_expert_peers(const GpuExpertExchange& exchange);
void dispatch_push(const OpContext& ctx, const ExpertDispatchArgs& args);
void combine_push(const OpContext& ctx, const ExpertCombineArgs& args);

// The rows of expert_exchange's table: dispatch, experts, combine, of args.rows a rank.
bool exchange_takes_nccl(const ExpertExchangeArgs& args);
bool exchange_takes_peer(const ExpertExchangeArgs& args);
void expert_exchange_nccl(const OpContext& ctx, const ExpertExchangeArgs& args);
void expert_exchange_peer(const OpContext& ctx, const ExpertExchangeArgs& args);

}  // namespace ladder
