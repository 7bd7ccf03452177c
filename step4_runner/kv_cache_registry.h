#pragma once
// The worker's half of a connector (step5_scheduler/kv_connector.h): each rank says where its keys and values lie, once, when
// its caches are allocated, and layer by layer what a step has stored.
#include <cstdint>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

struct RankKvCaches {
  int rank = 0;
  GridPlace place;
  LayerRange layers;                // of the model: those of its stage
  std::vector<KvCacheView> caches;  // one for each of these layers, valid as long as the executor
};

class KvCacheRegistry {
 public:
  virtual ~KvCacheRegistry() = default;
  // By every rank, on its own thread, before the first step.
  virtual void register_kv_caches(RankKvCaches caches) = 0;
};

}  // namespace ladder
