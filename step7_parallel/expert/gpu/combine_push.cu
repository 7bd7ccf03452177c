// What the experts made of tokens back to where the tokens came from.
#include <algorithm>

#include "step7_parallel/expert/gpu/expert_kernel.cuh"
#include "step7_parallel/expert/gpu/gpu_expert_exchange.h"

namespace ladder {

// combine of `peer`
//
//   for each rank r and row that came from it: the part into r's buffer
//   for each of my tokens: wait for the parts of the ranks that it was sent to; add them in rank order; poison again
//   wait until every peer's block has begun this call
//   half = 1 - half
//
// Who has a part of a token is known from the dispatch (sent_to), by the ids that the token had here. Not every rank need
// have one: so that nobody is two calls ahead, where the half would be written again, blocks tell each other that a call has
// begun, by a count. The word goes out first and is waited for last, when it has long arrived.

namespace {

template <class T>
struct Combine {
  const uint4* parts;  // [ranks][rows][packs]
  const int32_t *sent_to, *came_from;
  int packs, tokens, rows;
  T* out;  // [tokens][packs]

  __device__ int64_t place(int rank, int row, int pack) const {
    return (int64_t{rank} * rows + row) * packs + pack;
  }
};

template <int max_size, class T>
__global__ void __launch_bounds__(kMaxPeerThreads) push_parts(ExpertGroup group, Combine<T> c) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int my_rows = rows_of_block(c.rows), size = group.layout.size, me = group.rank;
  allow_next_kernel();
  wait_for_previous_kernel();
  ExpertCounters& counters = expert_counters(group);
  const uint32_t calls = counters.combines, half = calls % 2;
  const bool has_peer = thread < size && thread != me;
  if (has_peer) store_word_for_peer(start_of(group, thread, me), calls + 1);

  for (int i = thread; i < my_rows * c.packs; i += threads) {
    const int row = row_of_block(i / c.packs), pack = i % c.packs;
    const auto from_ranks = static_cast<uint32_t>(c.came_from[row]);
    uint4 words[max_size];
#pragma unroll
    for (int r = 0; r < max_size; ++r)
      if (from_ranks >> r & 1) words[r] = c.parts[c.place(r, row, pack)];
#pragma unroll
    for (int r = 0; r < max_size; ++r)
      if (from_ranks >> r & 1)
        store_for_peer(part_of(group, r, me, half, row) + pack * 16, without_poison(words[r]));
  }
  for (int i = thread; i < my_rows * c.packs; i += threads) {
    const int row = row_of_block(i / c.packs), pack = i % c.packs;
    if (row >= c.tokens) continue;
    const auto of_ranks = static_cast<uint32_t>(c.sent_to[row]);
    char* slots[max_size];
    uint4 words[max_size];
#pragma unroll
    for (int r = 0; r < max_size; ++r)
      if (of_ranks >> r & 1) {
        slots[r] = part_of(group, me, r, half, row) + pack * 16;
        if (r == me) words[r] = c.parts[c.place(me, row, pack)];
      }
    wait_for_packs<max_size>(group, of_ranks & ~(1u << me), slots, words);
    float sum[Pack<T>::kSize] = {};
#pragma unroll
    for (int r = 0; r < max_size; ++r)
      if (of_ranks >> r & 1) {
        add_pack<T>(sum, words[r]);
        if (r != me) poison_again(slots[r]);
      }
    store_pack(c.out + (int64_t{row} * c.packs + pack) * Pack<T>::kSize, from_floats<T>(sum));
  }
  if (has_peer) {
    PeerWait wait(group);
    while (static_cast<int32_t>(load_word_of_peer(start_of(group, me, thread)) - (calls + 1)) < 0 &&
           !wait.is_given_up()) {
    }
  }
  __syncthreads();  // all have read the counter
  if (thread == 0) counters.combines = calls + 1;
}

}  // namespace

void combine_push(const OpContext& ctx, const ExpertCombineArgs& args) {
  const ExpertGroup& group = *args.exchange->peers();
  const int64_t rows = args.from.sent_to.dim(0), packs = group.layout.row_bytes / 16;
  if (rows == 0) return;
  const ExpertGrid grid = expert_grid(rows, packs);
  with_cuda_type(args.out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const Combine<T> combine{.parts = cuda_data<uint4>(args.parts),
                             .sent_to = cuda_data<int32_t>(args.from.sent_to),
                             .came_from = cuda_data<int32_t>(args.from.came_from),
                             .packs = static_cast<int>(packs),
                             .tokens = static_cast<int>(args.out.dim(0)),
                             .rows = static_cast<int>(rows),
                             .out = cuda_data<T>(args.out)};
    with_max_peers(group.layout.size, [&](auto max_size) {
      launch_kernel(ctx, push_parts<max_size(), T>, grid.blocks, grid.threads, 0, group, combine);
    });
  });
}

}  // namespace ladder
