#pragma once
// Causal attention of prompts whose tokens lie on several ranks (context parallelism), each with the tokens that
// zigzag_share gives it. Every rank calls it with its rows, in the same step, and gets the rows of the result.
//
// A prompt may begin with tokens of earlier steps (a chunk of a longer prompt, or a prefix from the cache). Their keys lie
// on the ranks in any way: each query sees all of them.
#include <cstdint>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/context/zigzag.h"

namespace ladder {

struct ContextPrompt {
  int64_t length = 0;             // new tokens, of all ranks; 0: none in this step
  std::vector<int64_t> cached{};  // by rank, how many keys of earlier tokens it has; empty: none anywhere

  int64_t cached_of(int rank) const { return cached.empty() ? 0 : cached[static_cast<size_t>(rank)]; }
};

// The rows of `rank` of `ranks`: prompt after prompt, of each its zigzag_share in the order of positions.
// The keys: prompt after prompt, of each the cached ones, then those of the rows.
int64_t context_rows(const std::vector<ContextPrompt>& prompts, int ranks, int rank);
int64_t context_keys(const std::vector<ContextPrompt>& prompts, int ranks, int rank);

class SideStream;  // beside.h

struct ContextAttentionArgs {
  Communicator* group = &single_rank();
  std::vector<ContextPrompt> prompts;
  Tensor q;     // [context_rows, heads, dim]; all of one dtype, on the context's device and contiguous
  Tensor k, v;  // [context_keys, kv_heads, dim], heads % kv_heads == 0
  double scale = 1.0;
  Tensor out;  // [context_rows, heads, dim]
  // Of the method in two dimensions alone: rank r of the group is rank r % inner of `inner` and r / inner of `outer`.
  Communicator* inner = &single_rank();
  Communicator* outer = &single_rank();
  // On a GPU, where keys go round on it beside attention; nullptr: after one another, on the context's stream.
  SideStream* side = nullptr;
};

// Error: rows that are not this rank's, shapes that do not fit together, tensors with gaps, of several dtypes or none of
// f32, bf16 and f16, or elsewhere than the context.
void check_context_attention(const OpContext& ctx, const ContextAttentionArgs& args);

}  // namespace ladder
