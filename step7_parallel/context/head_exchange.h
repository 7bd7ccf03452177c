#pragma once
// What the ranks that share out a KV head's keys send each other in a layer (decode_context_attention.h): queries of all their
// heads to all of them, and of every head the partial results to the rank that has it, where they are merged.
//
//   ranks 0, 1 of two heads each         gather_heads             attention here        merge_heads
//   rank 0   q 0 1                       q 0 1 2 3                parts 0 1 | 2 3       both parts of 0 1, merged
//   rank 1   q 2 3                       q 0 1 2 3                parts 0 1 | 2 3       both parts of 2 3, merged
//
// By messages of the communicator, on any device; or, for the few rows of a decode step on GPUs that address each other's
// memory, in one kernel each, which waits for nothing but the data (peer_all_reduce.h).
#include <span>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"
#include "step1_layers/distributed/communicator.h"

namespace ladder {

// Of a group's ranks this one and its neighbours, `ranks` in all, that begin at a multiple of it.
struct Neighbours {
  Communicator& group;
  int ranks;

  int first() const;
  int mine() const;  // which of them this rank is
  // Parts [ranks, ...] by rank: part i of `sent` to rank i, its part for this one into part i of `received`.
  void exchange(const OpContext& ctx, const Tensor& sent, const Tensor& received) const;
};

struct GatherHeadsArgs {
  Neighbours neighbours;
  Tensor mine;  // [rows, heads, dim], the values of a row's heads side by side
  Tensor all;   // [rows, ranks * heads, dim], contiguous
  Tensor
      lse;  // f32 [rows, ranks * heads], contiguous: set to no number, as attention leaves rows without keys alone
};

struct MergeHeadsArgs {
  Neighbours neighbours;
  Tensor parts;  // [rows, ranks * heads, dim] and f32 [rows, ranks * heads], contiguous: of this rank's keys
  Tensor lse;
  Tensor out;  // [rows, heads, dim], the values of a row's heads side by side
  // A part of this rank's heads that nobody else has any of, as out and f32 [rows, heads]; undefined: there is none.
  Tensor own = {}, own_lse = {};
};

std::span<const Variant<GatherHeadsArgs>> gather_heads_variants();
std::span<const Variant<MergeHeadsArgs>> merge_heads_variants();

// By all neighbours at once, with the same sizes. One dtype but for lse. Takes scratch from ctx.arena.
// Error: shapes that do not fit together.
void gather_heads(const OpContext& ctx, const GatherHeadsArgs& args);
void merge_heads(const OpContext& ctx, const MergeHeadsArgs& args);

#ifdef LADDER_HAS_CUDA
bool gather_heads_can_push(const GatherHeadsArgs& args);
void gather_heads_push(const OpContext& ctx, const GatherHeadsArgs& args);
bool merge_heads_can_push(const MergeHeadsArgs& args);
void merge_heads_push(const OpContext& ctx, const MergeHeadsArgs& args);
#endif

}  // namespace ladder
