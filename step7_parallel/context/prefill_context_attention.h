#pragma once
// Attention of a rank that computes a part of a step's rows and keeps all keys (prefill_context_model.h).
//
//   norm, rotate    each its own new keys, into a buffer
//   all-gather      the new keys and values of all ranks
//   store           all of them, on every rank
//   attend          the own rows, to the cache: keys of earlier steps, of a prefix hit and of other ranks alike
//
// So there is nothing to merge and any rank may compute any row of a later step; in return the cache is on every rank whole.
#include "step2_model/model_makers.h"

namespace ladder {

// For ModelMakers::attention; the group is cp_group(ctx). The metadata of forward() are those of this rank's rows, but for
// slot_mapping: that lists the rows of all ranks, rank after rank, each filled up with -1 to as many as the fullest has, and
// after them 0, 1, 2, ..., as many: the places of this rank's own in what it sends.
// Error: keys and values of unequal width.
std::unique_ptr<Attention> make_prefill_context_attention(const OpContext& ctx, int64_t layer,
                                                          const KvCacheSpec& cache);

}  // namespace ladder
