#pragma once
// The kernel that rows_stream.cuh and rows_stream_epilogue.cuh have the pieces of.
#include "step8_advanced/quantization/kernels/pending_copies.cuh"
#include "step8_advanced/quantization/kernels/rows_stream_epilogue.cuh"
#include "step8_advanced/quantization/kernels/rows_stream_x.cuh"

namespace ladder::records {

// Calls use(turn) with each turn of a kind as a constant.
template <class K, int turn = 0, class Use>
__device__ void each_turn(Use&& use) {
  use(std::integral_constant<int, turn>{});
  if constexpr (turn + 1 < K::turns) each_turn<K, turn + 1>(use);
}

// rows_stream: x [m, k] in bf16 or f16, up to 16 rows of whole 16-byte packs; weight [n, k] in records; out [m, n] in x's dtype or
// f32. silu_and_mul needs whole tiles in either half of the weight. A block per multiprocessor, or a
// cluster of two, has an even share of the weight's units, and goes through them group by group; the eight warps of a block share the
// columns. The simple version:
//
//   x = norm(x), if there is one, in shared memory
//   for each group of units of this block:
//     for each record's columns of this warp:
//       for each tile:  sum = codes * x                      mma
//                       total += scale * (sum - zero * sum of x)
//     add the warps' totals, write the group's columns as the epilogue says
//
// What makes it fast, and what was seen on the way (8192 x 8192, groups of 128, one row of x, an H200):
// - codes are the smallest numbers of x's type (NibbleOperands): 16 rows take 13.1 us, as numbers of 128 and more 13.8;
// - no zero point is taken off a code: the sums of x come from mma by ones, a quarter of the mma more and four of eight instructions
//   a word less;
// - four tiles in turn, as an mma waits for the one before it: 15.9 us with a tile at a time, 12.5 with four;
// - copies of a thread's own bytes instead of the copy engine's, whose barriers and uniform registers were some 60 of 160
//   instructions of a record, and x asked for a whole record ahead instead of half of one: 11.3 us.
// - one slot is asked for before x, or two where the kernel starts early enough, or all of a whole share, and the others right behind x's loads: behind all of them
//   x waited 1.4 to 3.7 us in a layer of 8B, with memory at rest (1.81 ms a token, so 1.76);
// - nothing stands between the previous kernel's end and x's loads (ArrivingX): a layer's products 41.9 us, so 41.3, and 40.4 with the rest
//   of the ring right behind them;
// - warps do not wait for each other at the end of a group: a warp leaves its sums, multiplies the next group, and by then finds the
//   others' there;
// - the norm before the product costs no kernel of its own, and neither does what follows it (GroupEpilogue).
template <class K>
__global__ void __launch_bounds__(kThreads, K::leaves_room ? 2 : 1)
    rows_stream_kernel(const __grid_constant__ Product<typename K::T> p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t sums_barrier, read_barrier, partner_barrier;
  using T = typename K::T;
  if (p.lets_in_at_once) allow_next_kernel();
  ArrivingX<K> arriving(p);
  const Share share(p);
  RecordRing<K, Share> ring(p, share, shared);
#pragma unroll 1
  for (int s = 0; s < p.early; ++s) ring.copy_next(p, share);
  const uint32_t sums_in_place = shared_address(&sums_barrier), sums_read = shared_address(&read_barrier);
  const PartnerSums partner{reinterpret_cast<float*>(shared + p.partner_at),
                            shared_address(&partner_barrier)};
  if (threadIdx.x == 0) {
    init_barrier(sums_in_place, kWarps);
    init_barrier(sums_read, kWarps);
    if (p.split > 1)
      set_up_byte_barrier(partner.in_place, p.m * share.units(0) * p.unit_tiles() * kTileRows *
                                                static_cast<int>(sizeof(float)));
  }
  __syncthreads();
  if (p.split > 1)
    cluster_arrive_relaxed();  // the other block has started, and its barrier is set up, once this has been waited for

  GroupEpilogue<K> epilogue(p, share, reinterpret_cast<float*>(shared), partner);
  const auto let_in = [&] {
    if (!p.lets_in_at_once && ring.group == share.groups) allow_next_kernel();
  };
  T* const here = reinterpret_cast<T*>(shared + p.x_at);
  const XRows<K> rows = K::shared_x ? XRows<K>(here, share.own_columns(), p.m, share.own_columns())
                                    : XRows<K>(p.x, p.x_stride, p.m, p.k);
  if constexpr (K::shared_x) arriving.set_up(p, share, here);
  wait_for_previous_kernel();
  const auto behind_x = [&] {  // asks for what is to come behind the first of x
    epilogue.load_residual();
#pragma unroll 1
    for (int s = p.early; s < p.slots; ++s) ring.copy_next(p, share);
    let_in();
  };
  XColumns<K::octets> next;
  if constexpr (K::shared_x) {
    arriving.bring(p, share, behind_x);
  } else {
    rows.load(share.first_r, next);
    behind_x();
  }
  int slot = 0;
#pragma unroll 1
  for (int group = 0;; ++group) {
    WarpProduct<K> product;
    if (group < share.groups) {
#pragma unroll 1
      for (int r = share.first_r, at = threadIdx.x / kWarp; r < p.blocks_of_k;
           r += share.stride, at += kWarps) {
        XColumns<K::octets> columns;
        if constexpr (K::shared_x) {
          rows.load(at, columns);
        } else {
          columns = next.template of_codes<typename K::C>();
          rows.load(r + share.stride < p.blocks_of_k ? r + share.stride : share.first_r, next);
        }
        each_turn<K>([&](auto turn) {
          wait_some_copies<0, kMaxSlots - 1>(p.slots - 1);
          product.template multiply<decltype(turn)::value>(ring.codes_at + slot * K::slot_bytes, columns);
          ring.copy_next(p, share);
          let_in();
          slot = slot + 1 < p.slots ? slot + 1 : 0;
        });
      }
      if (p.sums_in_ring) __syncthreads();
    }
    if (group > 0) {
      wait_phase(sums_in_place, (group - 1) % 2);
      epilogue.store(group - 1);
      if (group == share.groups) break;
      epilogue.go_to_group(group);
      epilogue.load_residual();
      if constexpr (K::sums_places == 1) {
        __syncwarp();
        if (threadIdx.x % kWarp == 0) arrive(sums_read);
        wait_phase(sums_read, (group - 1) % 2);
      }
    }
    epilogue.sums_of(group).store(product.total);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(sums_in_place);
  }
#endif
}

}  // namespace ladder::records
