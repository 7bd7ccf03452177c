#pragma once
// Which tokens an expert gets, found on the device: tiles of neighbouring rows that all go to one expert.
//
//   pairs, by expert:   | e0 e0 e0 | e2 e2 e2 e2 e2 e2 e2 | e3 |
//   tiles of 4 rows:    | 0        | 1            2       | 3  |
//
// How many tiles there are is known on the device only. A kernel is launched for as many as there can be, and blocks of
// tiles that do not exist end at once: a captured graph stays right whatever the router says.
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

struct Tile {
  int expert;
  int first;  // of TilePlan::pairs
  int rows;   // 0: there is no such tile
  int unused;
};

struct TilePlan {
  const Tile* tiles = nullptr;     // [max_tiles]
  const int32_t* pairs = nullptr;  // [tokens * top_k] numbers of pairs, by expert; of an expert in any order
  int max_tiles = 0;
};

// Of tiles with this many rows, for the pairs of `expert_ids` [tokens, top_k] that have one of `experts` experts. Its memory is the
// arena's, until the caller's scope ends.
TilePlan plan_tiles(const OpContext& ctx, const Tensor& expert_ids, int64_t experts, int rows);
inline constexpr int64_t kMaxPlannedExperts = 1024;

}  // namespace ladder
