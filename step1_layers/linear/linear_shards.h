#pragma once
// Task 1.4: which rows and columns of a linear layer's matrix a tensor-parallel rank owns.
#include <cstdint>
#include <string>
#include <vector>

#include "step1_layers/core/context.h"

namespace ladder {

// Features [begin, begin + size) of `full`.
struct FeatureRange {
  int64_t full = 0;
  int64_t begin = 0;
  int64_t size = 0;
};

// What one rank owns of the full matrix: all rows of one rank lie together, part after part.
struct LinearShards {
  FeatureRange in = {};
  std::vector<FeatureRange> out = {};  // one per merged part; a checkpoint tensor fills one part
  bool reduce = false;                 // the ranks' results are partial sums
};

// The even split: rank's share of `full`. Error naming `what` where the ranks do not divide it.
FeatureRange even_shard(const std::string& what, int64_t full, int rank, int size);

// Rows split evenly, part by part; all columns. Error naming `name`: the ranks do not divide a part.
LinearShards column_shards(const OpContext& ctx, const std::string& name, int64_t in_features,
                           const std::vector<int64_t>& out_sizes);

// Columns split evenly, all rows: the ranks' results are partial sums.
LinearShards row_shards(const OpContext& ctx, const std::string& name, int64_t in_features,
                        int64_t out_features);

// Parts q, k, v in whole heads. Fewer KV heads than ranks: each head is held by a run of neighbouring ranks,
// as if there were num_kv_heads ranks. Error: see QkvParallelLinear (linear.h).
LinearShards qkv_shards(const OpContext& ctx, const std::string& name, int64_t in_features, int64_t num_heads,
                        int64_t num_kv_heads, int64_t head_dim);

}  // namespace ladder
