// Fewer bytes for many ranks: each adds one slice for all.
#include "step7_parallel/communicators/gpu/peer_all_reduce.h"
#include "step7_parallel/communicators/gpu/peer_kernel.cuh"

namespace ladder {

// two_shot
// Any size. A chunk is cut into a slice per rank. Every rank sends each slice to its owner, who adds it and sends the
// sum to all: 2 (n - 1) / n times the message leave a GPU, where a push of the whole to all takes n - 1 times. It
// costs a second meeting. Writes go over the link and reads stay at home, since a write needs no answer.
//
//   for each chunk:
//     for each rank s: slices[from me] at s = my values of slice s
//     meet                                       (the sums of the chunk before have been read by now)
//     my slice = sum over ranks r, in order, of slices[from r]; sums[from me] at every s = it
//     meet                                       (the slices have been read by now)
//     slice s = sums[from s], for each rank s
//
// A chunk is a slice for each rank (PeerLayout::slice_bytes); of a short one the slices are even, in packs and rounded
// up, so the last may be short or empty. A rank's own slice is in no buffer. The grid is that of `barrier`.

namespace {

constexpr int kThreads = 512;

}  // namespace

// >>> task 7.3.slices: slices to their owners, and their sums to all
namespace {

template <int max_size, class T>
__global__ void __launch_bounds__(kThreads)
    sum_slices(PeerGroup group, PeerElements<T> elements, int64_t packs) {
  allow_next_kernel();
  wait_for_previous_kernel();
  PeerCounters& counters = peer_counters(group);
  uint32_t meetings = counters.meetings;
  const int size = group.layout.size, me = group.rank;
  const auto [begin, count] = packs_of_block(packs);
  const int64_t chunk = group.layout.slice_bytes / 16 * size;
  for (int64_t done = 0; done < count; done += chunk) {
    const int64_t length = min(chunk, count - done), first = begin + done;
    const int64_t slice = ceil_div<int64_t>(length, size);
    const auto begin_of = [&](int rank) { return min(rank * slice, length); };
    for (int step = 1; step < size; ++step) {  // each begins with another receiver
      const int to = (me + step) % size;
      char* const theirs = slice_buffer(group, to, me, 0);
      const int64_t at = begin_of(to), end = begin_of(to + 1);
      for (int64_t i = threadIdx.x; i < end - at; i += kThreads)
        store_for_peer(theirs + i * 16, elements.load(first + at + i));
    }
    meet(group, ++meetings);
    const int64_t mine = begin_of(me);
    for (int64_t i = threadIdx.x; i < begin_of(me + 1) - mine; i += kThreads) {
      uint4 words[max_size];
#pragma unroll
      for (int r = 0; r < max_size; ++r)
        if (r < size)
          words[r] = r == me ? elements.load(first + mine + i)
                             : load_of_peer(slice_buffer(group, me, r, 0) + i * 16);
      float sum[Pack<T>::kSize] = {};
#pragma unroll
      for (int r = 0; r < max_size; ++r)
        if (r < size) add_pack<T>(sum, words[r]);
      const Pack<T> rounded = from_floats<T>(sum);
      elements.store(first + mine + i, rounded);
      for (int step = 1; step < size; ++step)
        store_for_peer(slice_buffer(group, (me + step) % size, me, 1) + i * 16,
                       *reinterpret_cast<const uint4*>(&rounded));
    }
    meet(group, ++meetings);
    for (int step = 1; step < size; ++step) {
      const int of = (me + step) % size;
      const char* const sums = slice_buffer(group, me, of, 1);
      const int64_t at = begin_of(of), end = begin_of(of + 1);
      for (int64_t i = threadIdx.x; i < end - at; i += kThreads) {
        const uint4 words = load_of_peer(sums + i * 16);
        elements.store(first + at + i, *reinterpret_cast<const Pack<T>*>(&words));
      }
    }
  }
  __syncthreads();  // all have read the counters
  if (threadIdx.x == 0) counters.meetings = meetings;
}

}  // namespace

void all_reduce_two_shot(const OpContext& ctx, const PeerAllReduceArgs& args) {
  with_cuda_type(args.tensor.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const PeerElements<T> elements{cuda_data<T>(args.tensor), args.tensor.numel(),
                                   reinterpret_cast<uintptr_t>(args.tensor.raw()) % 16 == 0};
    const int64_t packs = ceil_div<int64_t>(elements.count, Pack<T>::kSize);
    if (packs == 0) return;
    const auto blocks =
        static_cast<unsigned>(std::min<int64_t>(ceil_div<int64_t>(packs, kThreads), kMaxPeerBlocks));
    with_max_peers(args.group->layout.size, [&](auto max_size) {
      launch_kernel(ctx, sum_slices<max_size(), T>, blocks, kThreads, 0, *args.group, elements, packs);
    });
  });
}
// <<< task 7.3.slices

}  // namespace ladder
