#pragma once
// Sequences whose queries, keys and values are random and come in several steps of unequal lengths: attention of one rank
// with a whole cache, and of ranks that share out the keys of a head (7.11).
#include <string>
#include <vector>

#include "step2_model/model_makers.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

struct GrowingSequences {
  static constexpr int64_t kDim = 8, kPages = 40, kBlock = 12;

  int64_t heads, kv_heads;                   // of the model
  std::vector<std::vector<int32_t>> tables;  // of each sequence
  std::vector<std::vector<int64_t>> steps;   // how many rows each sequence has in each step
  std::vector<Tensor> q, k, v;               // of each step, rows of all heads
  Tensor rope;

  GrowingSequences(Random& random, int64_t all_heads, int64_t all_kv_heads);

  // The results of all steps for heads [head, head + count) of q, by an attention that keeps KV heads [kv, kv + kv_count) in
  // blocks of kBlock / shares slots.
  std::vector<Tensor> run(OpContext ctx, const Attention& attention, int64_t head, int64_t count, int64_t kv,
                          int64_t kv_count, int shares) const;
};

KvCacheSpec kv_cache_of(int64_t kv_heads);

// Where `tp` ranks, of which `shares` neighbours share out the keys of a head in turns of `run`, compute something else than
// one rank; empty: nowhere.
std::string difference_from_one_rank(const GrowingSequences& sequences, int tp, int shares, int64_t run);

}  // namespace ladder::testing
