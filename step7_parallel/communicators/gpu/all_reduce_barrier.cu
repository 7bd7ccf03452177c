// The clear rung: stage, meet, read what all have staged.
#include "step7_parallel/communicators/gpu/peer_all_reduce.h"
#include "step7_parallel/communicators/gpu/peer_kernel.cuh"

namespace ladder {

// barrier
// Any size. A block copies its share into its own staging, a chunk at a time, meets its partners, and adds what all of
// them staged. Two halves in turns: whoever has come to the next meeting has read the half of this one, so the one
// after the next may write it again, and no second meeting is needed.
//
//   for each chunk:
//     my staging[half] = chunk
//     meet
//     chunk = sum over ranks r, in order, of staging[half] of r
//     half = 1 - half
//
// A chunk is what one half of a block's staging holds (PeerLayout::pull_bytes). The grid has a thread for each pack and
// kMaxPeerBlocks blocks at most; a tensor of no elements launches nothing.

namespace {

constexpr int kThreads = 512;

}  // namespace

// >>> task 7.3: stage, meet, and add what every rank has staged
namespace {

template <int max_size, class T>
__global__ void __launch_bounds__(kThreads)
    sum_staged(PeerGroup group, PeerElements<T> elements, int64_t packs) {
  allow_next_kernel();
  wait_for_previous_kernel();
  PeerCounters& counters = peer_counters(group);
  uint32_t meetings = counters.meetings, pulls = counters.pulls;
  const auto [begin, count] = packs_of_block(packs);
  const int64_t chunk = group.layout.pull_bytes / 16;
  for (int64_t done = 0; done < count; done += chunk) {
    const int64_t length = min(chunk, count - done), first = begin + done;
    const uint32_t half = pulls++ % 2;
    char* const staging = pull_buffer(group, group.rank, half);
    for (int64_t i = threadIdx.x; i < length; i += kThreads)
      store_for_peer(staging + i * 16, elements.load(first + i));
    meet(group, ++meetings);
    for (int64_t i = threadIdx.x; i < length; i += kThreads) {
      uint4 words[max_size];
#pragma unroll
      for (int r = 0; r < max_size; ++r)
        if (r < group.layout.size) words[r] = load_of_peer(pull_buffer(group, r, half) + i * 16);
      float sum[Pack<T>::kSize] = {};
#pragma unroll
      for (int r = 0; r < max_size; ++r)
        if (r < group.layout.size) add_pack<T>(sum, words[r]);
      elements.store(first + i, from_floats<T>(sum));
    }
  }
  __syncthreads();  // all have read the counters
  if (threadIdx.x == 0) counters.meetings = meetings, counters.pulls = pulls;
}

}  // namespace

void all_reduce_barrier(const OpContext& ctx, const PeerAllReduceArgs& args) {
  with_cuda_type(args.tensor.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const PeerElements<T> elements{cuda_data<T>(args.tensor), args.tensor.numel(),
                                   reinterpret_cast<uintptr_t>(args.tensor.raw()) % 16 == 0};
    const int64_t packs = ceil_div<int64_t>(elements.count, Pack<T>::kSize);
    if (packs == 0) return;
    const auto blocks =
        static_cast<unsigned>(std::min<int64_t>(ceil_div<int64_t>(packs, kThreads), kMaxPeerBlocks));
    with_max_peers(args.group->layout.size, [&](auto max_size) {
      launch_kernel(ctx, sum_staged<max_size(), T>, blocks, kThreads, 0, *args.group, elements, packs);
    });
  });
}
// <<< task 7.3

}  // namespace ladder
