#pragma once
// A step as a rank sees it that keeps a part of the keys (kv_interleave.h): where its own of the new keys go, and how many of a
// sequence's it has. All repeats after a round of runs, one of each rank; what the formulas say of one round is a table, made
// once. So a device needs no formulas, and a step no host.
//
// Where every sequence has one row, its new key is stored first and then counted among the local ones. A prompt's new keys
// are on every rank anyway, since each computes them; they are kept whole for the step, beside the cache, in blocks of their
// own, and what is local are the keys of earlier steps:
//
//   the step        sequence 0: 5 cached, 3 new        sequence 1: 2 new         2 ranks, runs of 1, fresh blocks of 4 slots
//   fresh keys      a5 a6 a7 -    | b0 b1 - -           block tables 0 and 1, lengths 3 and 2
//   rank 0          has a0 a2 a4, stores a6 b0          lengths 3 and 0
//   rank 1          has a1 a3,    stores a5 a7 b1       lengths 2 and 0
#include <span>

#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/core/arena.h"
#include "step1_layers/core/context.h"
#include "step1_layers/core/variants.h"
#include "step7_parallel/context/kv_interleave.h"

namespace ladder {

// Slots of a fresh block, of which every sequence has its own.
inline constexpr int64_t kFreshSlots = 64;
inline constexpr int64_t fresh_blocks(int64_t rows, int64_t num_seqs) {
  return rows / kFreshSlots + num_seqs;
}

// What a rank has of any one round, on its device.
struct LocalRound {
  KvInterleave kv;  // its block: a round
  int rank = 0;
  Tensor slots;   // i32 [round]: which slot of its part, or -1: another rank has it
  Tensor counts;  // i32 [round]: how many of the first 0, 1, ... tokens it has

  LocalRound(int ranks, int64_t run, int of_rank, Device device);
};

struct LocalKeysArgs {
  const LocalRound* round = nullptr;
  // The step's. slot_mapping may list rows after those of the sequences, of padding.
  Tensor slot_mapping;     // i64 [rows]
  Tensor query_start_loc;  // i32 [seqs + 1]
  Tensor seq_lens;         // i32 [seqs]
  // Written, i32 but for the slots (i64).
  Tensor lengths;  // [seqs]: local keys
  Tensor slots;    // the rank's slot, or -1: single rows: [rows]; prompts: [slots of all fresh blocks]
  // Of prompts; undefined where all have one row.
  Tensor fresh_slots;    // [rows]: the slot in the fresh blocks; -1: a row of padding
  Tensor fresh_lengths;  // [seqs]
  Tensor fresh_tables;   // [seqs, blocks]
};

std::span<const Variant<LocalKeysArgs>> local_keys_variants();

// The next kernel may read what this one writes before it waits (kv_cache.h).
void find_local_keys(const OpContext& ctx, const LocalKeysArgs& args);

#ifdef LADDER_HAS_CUDA
void find_local_keys_cuda(const OpContext& ctx, const LocalKeysArgs& args);
#endif

// What attention is called with; the tensors are of ctx.arena.
struct LocalStep {
  Tensor slots;             // LocalKeysArgs::slots
  AttentionMetadata local;  // of the keys in the rank's cache
  // Of prompts: the new keys, for now without values; where each row's go; and its metadata.
  KvCacheView fresh;
  Tensor fresh_slots;
  AttentionMetadata fresh_keys;
};
// `cache`: the rank's, for the shape and dtype of its keys.
LocalStep local_step(const OpContext& ctx, const LocalRound& round, const AttentionMetadata& metadata,
                     const Tensor& slot_mapping, const KvCacheView& cache);

}  // namespace ladder
