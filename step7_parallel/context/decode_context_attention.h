#pragma once
// Decode context parallelism (vLLM's --decode-context-parallel-size): tensor-parallel ranks that have the same KV head share
// out its keys instead of keeping all of them each.
//
// Without it neighbours whose query heads share a KV head keep the same cache. With it, of `ranks` neighbours each has the
// keys that kv_interleave.h gives it, and a layer's attention is
//
//   store       each its own of the new keys
//   gather      all query heads of the group, to every one of its ranks
//   attend      to the keys that are here, with log-sum-exp (the keys that a query sees: the first of the local ones)
//   bring back  each rank gets the partial results of its own heads, and merges them (head_exchange.h)
//
// two all-to-alls of few rows, where a long context's keys would be read whole by each rank.
//
// A prompt's rows would end at another of the local keys each. But its new keys are on all ranks, which compute them; so a rank
// attends its own heads to these, under the mask and with nobody's help, and what is gathered and brought back is attention
// to the keys of earlier steps alone, of which all rows see all: one part more to merge.
#include <functional>
#include <memory>

#include "step2_model/model_makers.h"

namespace ladder {

// A maker for ModelMakers::attention; empty where ranks is 1. `run`: KvInterleave::run. The rank's groups are those of
// tp_group(ctx) that begin at multiples of `ranks`, and its cache's blocks hold 1 / ranks of a block's tokens. All ranks make
// their layers together.
// Error, by the maker: more than one KV head on a rank, ranks that do not divide the tensor-parallel ones, keys kept as codes.
// That ranks of a group have the same KV head is settled before (resolve_runner_config).
std::function<std::unique_ptr<Attention>(const OpContext& ctx, int64_t layer, const KvCacheSpec& cache)>
decode_context_attention(int ranks, int64_t run);

}  // namespace ladder
