#pragma once
// Sequences whose queries, keys and values are random and come in several steps of unequal lengths: attention of one rank
// with a whole cache, and of ranks that share out the keys of a head (7.11).
#include <functional>
#include <string>
#include <vector>

#include "step2_model/model_makers.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

struct GrowingSizes {
  int64_t heads = 1, kv_heads = 1;  // of the model
  int64_t dim = 8, block = 12;
  DType dtype = DType::f32;
  int64_t most_rows = 14;  // of a sequence in a step; about twice as many in the first one
};

struct GrowingSequences {
  static constexpr int64_t kPages = 40;

  GrowingSizes sizes;
  std::vector<std::vector<int32_t>> tables;  // of each sequence
  std::vector<std::vector<int64_t>>
      steps;                    // how many rows each sequence has in each step; one in every second step
  std::vector<Tensor> q, k, v;  // of each step, rows of all heads
  Tensor rope;

  GrowingSequences(Random& random, const GrowingSizes& of);

  // The results of all steps for heads [head, head + count) of q, by an attention that keeps KV heads [kv, kv + kv_count) in
  // blocks of 1 / shares of a block. On the CPU, whatever ctx.device; on a GPU every step is computed, captured in a graph, and
  // replayed three times, before which `meet` is called.
  std::vector<Tensor> run(OpContext ctx, const Attention& attention, int64_t head, int64_t count, int64_t kv,
                          int64_t kv_count, int shares, const std::function<void()>& meet = {}) const;
};

KvCacheSpec kv_cache_of(int64_t kv_heads, const GrowingSizes& sizes = {});

// Where the results of rank `rank` of `tp`, of which `shares` neighbours share out the keys of a head in turns of `run`, are
// something else than one rank's in f32, from the same values; empty: nowhere. `expected`: by one rank, on the CPU.
std::string difference_of_rank(const GrowingSequences& sequences, const std::vector<Tensor>& expected,
                               const OpContext& ctx, int rank, int tp, int shares, int64_t run,
                               const std::function<void()>& meet = {});
std::vector<Tensor> results_of_one_rank(const GrowingSequences& sequences);

// The same of all ranks, as threads on the CPU.
std::string difference_from_one_rank(const GrowingSequences& sequences, int tp, int shares, int64_t run);

}  // namespace ladder::testing
