#include "step1_layers/linear/linear_shards.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"

namespace ladder {

// >>> task 1.4.shards: which rows and columns a rank owns
FeatureRange even_shard(const std::string& what, int64_t full, int rank, int size) {
  LADDER_CHECK(full > 0 && full % size == 0, "{}: {} does not divide by {} tensor-parallel ranks", what, full,
               size);
  const int64_t share = full / size;
  return {.full = full, .begin = rank * share, .size = share};
}

LinearShards column_shards(const OpContext& ctx, const std::string& name, int64_t in_features,
                           const std::vector<int64_t>& out_sizes) {
  const Communicator& tp = tp_group(ctx);
  LinearShards shards{.in = {.full = in_features, .begin = 0, .size = in_features}};
  for (int64_t size : out_sizes)
    shards.out.push_back(even_shard(name + ": the number of output features", size, tp.rank(), tp.size()));
  return shards;
}

LinearShards row_shards(const OpContext& ctx, const std::string& name, int64_t in_features,
                        int64_t out_features) {
  const Communicator& tp = tp_group(ctx);
  return {.in = even_shard(name + ": the number of input features", in_features, tp.rank(), tp.size()),
          .out = {{.full = out_features, .begin = 0, .size = out_features}},
          .reduce = true};
}

LinearShards qkv_shards(const OpContext& ctx, const std::string& name, int64_t in_features, int64_t num_heads,
                        int64_t num_kv_heads, int64_t head_dim) {
  const Communicator& tp = tp_group(ctx);
  LADDER_CHECK(num_heads > 0 && num_kv_heads > 0 && head_dim > 0 && num_heads % num_kv_heads == 0,
               "{}: {} query heads cannot share {} key and value heads", name, num_heads, num_kv_heads);
  LADDER_CHECK(tp.size() <= num_kv_heads || tp.size() % num_kv_heads == 0,
               "{}: {} tensor-parallel ranks cannot hold equal copies of {} key and value heads", name,
               tp.size(), num_kv_heads);
  const int copies = static_cast<int>(std::max<int64_t>(tp.size() / num_kv_heads, 1));
  const FeatureRange q = even_shard(name + ": the number of query heads", num_heads, tp.rank(), tp.size());
  const FeatureRange kv = even_shard(name + ": the number of key and value heads", num_kv_heads,
                                     tp.rank() / copies, tp.size() / copies);
  LinearShards shards{.in = {.full = in_features, .begin = 0, .size = in_features}};
  for (FeatureRange heads : {q, kv, kv})
    shards.out.push_back(
        {.full = heads.full * head_dim, .begin = heads.begin * head_dim, .size = heads.size * head_dim});
  return shards;
}
// <<< task 1.4.shards

}  // namespace ladder
