// The rung of decode steps: no flags, the data says itself that it is there.
#include "step7_parallel/communicators/gpu/peer_all_reduce.h"
#include "step7_parallel/communicators/gpu/peer_kernel.cuh"

namespace ladder {

// push
// What fits the buffers (PeerLayout::push_bytes times 128 blocks). Each rank writes its values into a buffer at every
// peer and looks at its own buffers until no word there is the poison any more: one way over the link, where a flag
// behind the data costs a fence and the flag's own way. The scheme is that of NCCL's LL protocol, and of TensorRT-LLM's
// "Lamport" all-reduce; a poison in place of LL's flag words leaves all bytes to the data.
//
//   my buffer [half][me] at every peer = my values, without the poison
//   for each rank r: wait until [half][r] holds no poison; sum += it; poison it again
//   half = 1 - half
//
// Two halves in turns are enough. A peer writes this half again two calls from now, when it has ended the next call,
// for which it needed what we push in it, which we do after this kernel has ended, with the poison in place.

namespace {

template <int max_size, class T>
__global__ void __launch_bounds__(kMaxPeerThreads)
    sum_pushed_packs(PeerGroup group, PeerElements<T> elements, int64_t packs) {
  allow_next_kernel();
  wait_for_previous_kernel();
  PeerCounters& counters = peer_counters(group);
  const uint32_t pushes = counters.pushes, half = pushes % 2;
  const auto [begin, count] = packs_of_block(packs);
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    push_to_all<max_size>(group, half, i, elements.load(begin + i));
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    float sum[Pack<T>::kSize];
    sum_pushed<T, max_size>(group, half, i, elements.load(begin + i), sum);
    elements.store(begin + i, from_floats<T>(sum));
  }
  __syncthreads();  // all have read the counter
  if (threadIdx.x == 0) counters.pushes = pushes + 1;
}

// Few threads a block while there are blocks left: the more multiprocessors send, the sooner all is sent.
struct PushGrid {
  int64_t blocks, threads;
};
PushGrid push_grid(int64_t packs) {
  for (int64_t threads = 128; threads < kMaxPeerThreads; threads *= 2)
    if (const int64_t blocks = ceil_div(packs, threads); blocks <= kMaxPeerBlocks) return {blocks, threads};
  return {std::min<int64_t>(ceil_div<int64_t>(packs, kMaxPeerThreads), kMaxPeerBlocks), kMaxPeerThreads};
}

int64_t packs_of(const Tensor& tensor) {
  return ceil_div<int64_t>(tensor.nbytes(), 16);
}

}  // namespace

bool fits_push(const PeerAllReduceArgs& args) {
  if (args.group == nullptr) return false;
  const int64_t packs = packs_of(args.tensor);
  return packs == 0 || ceil_div(packs, push_grid(packs).blocks) * 16 <= args.group->layout.push_bytes;
}

void all_reduce_push(const OpContext& ctx, const PeerAllReduceArgs& args) {
  const int64_t packs = packs_of(args.tensor);
  if (packs == 0) return;
  const auto [blocks, threads] = push_grid(packs);
  with_cuda_type(args.tensor.dtype(), [&, blocks = blocks, threads = threads](auto tag) {
    using T = decltype(tag);
    const PeerElements<T> elements{cuda_data<T>(args.tensor), args.tensor.numel(),
                                   reinterpret_cast<uintptr_t>(args.tensor.raw()) % 16 == 0};
    with_max_peers(args.group->layout.size, [&](auto max_size) {
      launch_kernel(ctx, sum_pushed_packs<max_size(), T>, static_cast<unsigned>(blocks),
                    static_cast<unsigned>(threads), 0, *args.group, elements, packs);
    });
  });
}

}  // namespace ladder
