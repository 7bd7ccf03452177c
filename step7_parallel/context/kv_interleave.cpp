#include "step7_parallel/context/kv_interleave.h"

#include <algorithm>

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 7.11: who has a position, in which slot, and how many each has
int kv_owner(const KvInterleave& kv, int64_t position) {
  return static_cast<int>(position / kv.run % kv.ranks);
}

int64_t local_kv_slot(const KvInterleave& kv, int64_t slot, int rank) {
  if (slot < 0) return -1;
  const int64_t page = slot / kv.block, offset = slot % kv.block, round = kv.ranks * kv.run;
  if (kv_owner(kv, offset) != rank) return -1;
  return page * (kv.block / kv.ranks) + offset / round * kv.run + offset % kv.run;
}

int64_t local_kv_length(const KvInterleave& kv, int64_t length, int rank) {
  const int64_t round = kv.ranks * kv.run;
  return length / round * kv.run + std::clamp<int64_t>(length % round - rank * kv.run, 0, kv.run);
}
// <<< task 7.11

}  // namespace ladder
