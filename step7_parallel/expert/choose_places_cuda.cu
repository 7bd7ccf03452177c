#include "step1_layers/core/cuda_kernel.cuh"
#include "step7_parallel/expert/choose_places.h"

namespace ladder {

namespace {

constexpr int kThreads = 256;

struct Pointers {
  int32_t* ids;
  const int64_t* slots;   // nullptr: not given, as the others
  const int32_t* places;  // [experts][row_words]
  unsigned long long* counts;
  int64_t num_ids, top_k, experts, row_words, first_copy, first_counted, counted_step;
};

// naive: an id per thread.
// Ids and slots are 12 bytes of a choice, the tables stay in the cache. Tokens of an expert meet in one word of the counts: of
// 8,192 tokens with 8 of 128 experts each 512 do, which the second level cache adds up in some microseconds.
__global__ void choose(Pointers p) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.num_ids) return;
  const int64_t row = i / p.top_k, from_first = row - p.first_counted;
  int32_t id = p.ids[i];
  if (id >= p.experts) id = -1;
  if (p.slots != nullptr && p.slots[row] < 0) id = -1;
  if (id >= 0) {
    if (p.counts != nullptr && p.slots != nullptr && from_first >= 0 && from_first % p.counted_step == 0)
      atomicAdd(p.counts + id, 1ull);
    if (p.places != nullptr) {
      const int32_t* const copies = p.places + id * p.row_words;
      id = copies[1 + (p.first_copy + row) % copies[0]];
    }
  }
  p.ids[i] = id < 0 ? -1 : id;
}

}  // namespace

void choose_places_cuda(const OpContext& ctx, const ChoosePlacesArgs& args) {
  const bool has_places = args.places.defined(), has_counts = args.counts.defined();
  Pointers p{};
  p.ids = cuda_data<int32_t>(args.expert_ids);
  p.num_ids = args.expert_ids.numel();
  p.top_k = args.expert_ids.dim(1);
  p.experts = has_places ? args.places.dim(0) : has_counts ? args.counts.dim(0) : INT32_MAX;
  if (args.slots.defined()) p.slots = cuda_data<int64_t>(args.slots);
  if (has_places) {
    p.places = cuda_data<int32_t>(args.places);
    p.row_words = args.places.dim(1);
  }
  if (has_counts) p.counts = reinterpret_cast<unsigned long long*>(cuda_data<int64_t>(args.counts));
  p.first_copy = args.first_copy;
  p.first_counted = args.first_counted;
  p.counted_step = args.counted_step;
  launch_kernel(ctx, choose, static_cast<unsigned>(ceil_div<int64_t>(p.num_ids, kThreads)), kThreads, 0, p);
}

}  // namespace ladder
