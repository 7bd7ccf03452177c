#pragma once
// Task 7.9: tokens and their experts on different ranks. Every rank has tokens of its own (attention over requests) and some of
// a layer's experts whole, so a token has to come to its experts, and what they make of it back:
//
//   tokens a b on rank 0      dispatch            experts            combine           .6 e1(a) + .4 e4(a) on rank 0
//   token  c   on rank 1   ------------->   0 1 2 on rank 0      ------------->
//                                           3 4 5 on rank 1
//
// (Lepikhin et al., "GShard", 2020; DeepSeek's DeepEP, 2025)
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"
#include "step1_layers/distributed/communicator.h"

namespace ladder {

class GpuExpertExchange;  // gpu/gpu_expert_exchange.h

struct ExpertExchangeArgs {
  Communicator* ranks = &single_rank();
  Tensor x;  // [tokens of this rank, hidden] f32, bf16 or f16; ranks may have different numbers, also none
  Tensor expert_ids;  // [tokens, top_k] i32, by the numbers of the layer, each at most once; -1: of none
  Tensor weights;     // [tokens, top_k] f32
  // Of every expert of the layer the rank that has it. Empty: each rank has a part of every expert, and all tokens go everywhere.
  std::vector<int32_t> rank_of = {};
  // What the experts of this rank make of some tokens, as moe_experts: out = the weighted sums. The ids are the layer's;
  // those of experts elsewhere are -1 already. Every rank calls it once.
  std::function<void(const OpContext& ctx, const Tensor& x, const Tensor& expert_ids, const Tensor& weights,
                     const Tensor& out)>
      compute;
  Tensor
      out;  // [tokens, hidden] x's dtype: the sum over the ranks, in f32 and in rank order, rounded once more
  // Where the tensors are on a GPU: the memory for it, made for these experts; `ranks` and `rank_of` are not looked at. The ranks
  // have agreed on a number of rows, at least the tokens of each. `compute` gets so many of every rank, of which those without an
  // expert here hold anything and have ids of -1, and writes zeros for them. Ids as sizes().number_of says.
  const GpuExpertExchange* gpu = nullptr;
  int64_t rows = 0;
};

// The clearest first. All ranks of a group call the same one.
std::span<const Variant<ExpertExchangeArgs>> expert_exchange_variants();

// By the method that is forced as a kernel of "expert_exchange", else by the last of the table. Error: shapes or dtypes that do
// not fit together, tensors with gaps or on another device than ctx's, an id without a rank (on a GPU it counts as -1).
void expert_exchange(const OpContext& ctx, const ExpertExchangeArgs& args);

// The methods.
void expert_exchange_all_gather(const OpContext& ctx, const ExpertExchangeArgs& args);
void expert_exchange_all_to_all(const OpContext& ctx, const ExpertExchangeArgs& args);

}  // namespace ladder
