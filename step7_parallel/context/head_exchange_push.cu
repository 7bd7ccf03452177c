// The rungs of decode steps, in the manner of all_reduce_push.cu: no flags, no rank waits for more than it needs.
#include <algorithm>

#include "step7_parallel/communicators/gpu/gpu_communicator.h"
#include "step7_parallel/communicators/gpu/peer_kernel.cuh"
#include "step7_parallel/context/head_exchange.h"
#include "step7_parallel/context/lse_merge.cuh"

namespace ladder {

// push
// Values in packs of 16 bytes, side by side in a row's heads; what fits the buffers (PeerLayout::exchange_bytes times 128
// blocks). Both kernels:
//
//   my buffer [half][me] at every neighbour = what is for it, without the poison
//   for each neighbour r: wait until [half][r] holds no poison; take it; poison it again
//   half = 1 - half
//
// Two halves in turns are enough, as there: a neighbour writes this half again when it has ended the next exchange, for
// which it needed what we send in it, which we do after this kernel has ended. Taking out the poison makes +0 of a -0 and of the
// pair (+0, -0): queries and results are multiplied and added, where zeros are one.

namespace {

struct Places {  // of the ranks that exchange, in the group
  int first, ranks;
};

struct Gather {
  const uint4* mine;  // [rows], a row's packs side by side
  uint4* all;         // [rows][ranks][packs]
  float* lse;         // [rows * ranks * heads]
  int64_t row_stride, rows, packs, num_lse;
};

// A pack is sent, and its own copy written, before any is waited for.
template <int max_ranks>
__global__ void __launch_bounds__(kMaxPeerThreads) push_queries(PeerGroup group, Places places, Gather g) {
  allow_next_kernel();
  wait_for_previous_kernel();
  PeerCounters& counters = peer_counters(group);
  const uint32_t exchanges = counters.exchanges, half = exchanges % 2;
  const int me = group.rank - places.first;
  const auto [begin, count] = packs_of_block(g.rows * g.packs);
  const auto place = [&](int64_t i, int rank) {
    return ((begin + i) / g.packs * places.ranks + rank) * g.packs + (begin + i) % g.packs;
  };
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const uint4 words = g.mine[(begin + i) / g.packs * g.row_stride + (begin + i) % g.packs];
    const uint4 sent = without_poison(words);
    for (int r = 0; r < places.ranks; ++r)
      if (r != me) store_for_peer(exchange_buffer(group, places.first + r, group.rank, half) + i * 16, sent);
    g.all[place(i, me)] = words;
  }
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < g.num_lse;
       i += int64_t{gridDim.x} * blockDim.x)
    g.lse[i] = -INFINITY;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const auto slot = [&](int r) {
      return exchange_buffer(group, group.rank, places.first + r, half) + i * 16;
    };
    uint4 words[max_ranks];
    PeerWait wait(group);
    bool all_here;
    do {
      all_here = true;
#pragma unroll
      for (int r = 0; r < max_ranks; ++r)
        if (r < places.ranks && r != me) {
          words[r] = load_of_peer(slot(r));
          all_here = all_here && has_arrived(words[r]);
        }
    } while (!all_here && !wait.is_given_up());
#pragma unroll
    for (int r = 0; r < max_ranks; ++r)
      if (r < places.ranks && r != me) {
        g.all[place(i, r)] = words[r];
        poison_again(slot(r));
      }
  }
  __syncthreads();  // all have read the counter
  if (threadIdx.x == 0) counters.exchanges = exchanges + 1;
}

template <class T>
struct Merge {
  const uint4* parts;  // [rows][ranks][heads][packs]
  const float* lse;    // [rows][ranks][heads]
  const uint4* own;    // [rows][heads][packs] and [rows][heads]; nullptr: there is none
  const float* own_lse;
  T* out;                                // [rows], a row's values side by side
  int64_t out_row_stride, items, heads;  // an item: a row's head, of this rank's
  int packs;                             // of a head's values
};

// A warp for each of the rank's items: first it sends what of the same row is the others', a pack with lse behind the values;
// then it waits for theirs. Each lane looks at the packs of its values and at those of lse at once, as they come together.
template <int max_ranks, class T>
__global__ void __launch_bounds__(kMaxPeerThreads) push_results(PeerGroup group, Places places, Merge<T> m) {
  allow_next_kernel();
  wait_for_previous_kernel();
  constexpr int kSize = Pack<T>::kSize;
  PeerCounters& counters = peer_counters(group);
  const uint32_t exchanges = counters.exchanges, half = exchanges % 2;
  const int me = group.rank - places.first, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  const auto [begin, count] = packs_of_block(m.items);
  // Item i's head of rank r in what this rank has computed.
  const auto index = [&](int64_t i, int r) {
    return ((begin + i) / m.heads * places.ranks + r) * m.heads + (begin + i) % m.heads;
  };
  const auto slots = [&](int64_t i, int at, int from) {
    return exchange_buffer(group, places.first + at, places.first + from, half) + i * (m.packs + 1) * 16;
  };
  for (int64_t i = threadIdx.x / kWarp; i < count; i += warps)
    for (int r = 0; r < places.ranks; ++r) {
      if (r == me) continue;
      char* const to = slots(i, r, me);
      for (int pack = lane; pack <= m.packs; pack += kWarp) {
        const uint4 words = pack < m.packs ? m.parts[index(i, r) * m.packs + pack]
                                           : uint4{__float_as_uint(m.lse[index(i, r)]), 0, 0, 0};
        store_for_peer(to + pack * 16, without_poison(words));
      }
    }
  for (int64_t i = threadIdx.x / kWarp; i < count; i += warps) {
    T* const out = m.out + (begin + i) / m.heads * m.out_row_stride + (begin + i) % m.heads * m.packs * kSize;
    const float my_lse = counted_lse(m.lse[index(i, me)]),
                own_lse = m.own == nullptr ? -INFINITY : counted_lse(m.own_lse[begin + i]);
    for (int pack = lane; pack < m.packs; pack += kWarp) {
      uint4 words[max_ranks];
      float lse[max_ranks];
      PeerWait wait(group);
      bool all_here;
      do {
        all_here = true;
#pragma unroll
        for (int r = 0; r < max_ranks; ++r) {
          if (r >= places.ranks) break;
          if (r == me) {
            words[r] = m.parts[index(i, me) * m.packs + pack];
            lse[r] = my_lse;
            continue;
          }
          const char* const from = slots(i, me, r);
          words[r] = load_of_peer(from + pack * 16);
          const uint4 behind = load_of_peer(from + m.packs * 16);
          lse[r] = counted_lse(__uint_as_float(behind.x));
          all_here = all_here && has_arrived(words[r]) && has_arrived(behind);
        }
      } while (!all_here && !wait.is_given_up());
      LseSum sum;
      sum.see(own_lse);
#pragma unroll
      for (int r = 0; r < max_ranks; ++r)
        if (r < places.ranks) sum.see(lse[r]);
      sum.add(own_lse);
#pragma unroll
      for (int r = 0; r < max_ranks; ++r)
        if (r < places.ranks) sum.add(lse[r]);
      const float total = sum.total();
      float merged[kSize] = {};
      const auto add = [&](const uint4& part, float weight) {
        float values[kSize];
        to_floats(*reinterpret_cast<const Pack<T>*>(&part), values);
#pragma unroll
        for (int k = 0; k < kSize; ++k) merged[k] += weight > 0 ? weight * values[k] : 0.0f;
      };
#pragma unroll
      for (int r = 0; r < max_ranks; ++r) {
        if (r >= places.ranks) break;
        add(words[r], lse_weight(lse[r], total));
        if (r != me) poison_again(slots(i, me, r) + pack * 16);
      }
      if (m.own != nullptr) add(m.own[(begin + i) * m.packs + pack], lse_weight(own_lse, total));
      store_pack(out + pack * kSize, from_floats<T>(merged));
    }
    __syncwarp();  // all lanes have read lse
    if (lane < places.ranks && lane != me) poison_again(slots(i, me, lane) + m.packs * 16);
  }
  __syncthreads();  // all have read the counter
  if (threadIdx.x == 0) counters.exchanges = exchanges + 1;
}

// The neighbours' memory, where they can address each other's.
const PeerGroup* peers_of(const Neighbours& neighbours) {
  const auto* group = dynamic_cast<const GpuCommunicator*>(&neighbours.group);
  return group == nullptr ? nullptr : group->peer_args({}).group;
}
Places places_of(const Neighbours& neighbours) {
  return {neighbours.first(), neighbours.ranks};
}

bool is_aligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0;
}
// Whether the values of a row's heads lie together, in packs that begin at multiples of 16 bytes.
bool has_packed_rows(const Tensor& tensor) {
  const int64_t size = 16 / dtype_size(tensor.dtype());
  return is_aligned(tensor) && tensor.stride(2) == 1 && tensor.stride(1) == tensor.dim(2) &&
         tensor.stride(0) % size == 0;
}
int64_t packs_of(const Tensor& heads, int from_dim) {
  int64_t bytes = dtype_size(heads.dtype());
  for (int i = from_dim; i < heads.ndim(); ++i) bytes *= heads.dim(i);
  return bytes % 16 == 0 ? bytes / 16 : 0;
}

// Depend on what is the same on all ranks alone. Few threads a block while there are blocks left.
struct ExchangeGrid {
  int64_t blocks, threads;
};
ExchangeGrid exchange_grid(int64_t units, int64_t units_of_threads) {
  for (int64_t threads = 128; threads < kMaxPeerThreads; threads *= 2)
    if (const int64_t blocks = ceil_div(units * units_of_threads, threads); blocks <= kMaxPeerBlocks)
      return {blocks, threads};
  return {std::min<int64_t>(ceil_div<int64_t>(units * units_of_threads, kMaxPeerThreads), kMaxPeerBlocks),
          kMaxPeerThreads};
}
bool fits_buffers(const PeerGroup& group, int64_t units, const ExchangeGrid& grid, int64_t unit_bytes) {
  return units > 0 && ceil_div(units, grid.blocks) * unit_bytes <= group.layout.exchange_bytes;
}

ExchangeGrid grid_of(const GatherHeadsArgs& args) {
  return exchange_grid(args.mine.dim(0) * packs_of(args.mine, 1), 1);
}
ExchangeGrid grid_of(const MergeHeadsArgs& args) {
  return exchange_grid(args.out.dim(0) * args.out.dim(1), kWarp);
}

}  // namespace

bool gather_heads_can_push(const GatherHeadsArgs& args) {
  const PeerGroup* group = peers_of(args.neighbours);
  return group != nullptr && packs_of(args.mine, 1) > 0 && has_packed_rows(args.mine) &&
         is_aligned(args.all) && args.all.is_contiguous() &&
         fits_buffers(*group, args.mine.dim(0) * packs_of(args.mine, 1), grid_of(args), 16);
}

void gather_heads_push(const OpContext& ctx, const GatherHeadsArgs& args) {
  const Tensor& mine = args.mine;
  const Gather gather{.mine = cuda_data<const uint4>(mine),
                      .all = cuda_data<uint4>(args.all),
                      .lse = cuda_data<float>(args.lse),
                      .row_stride = mine.stride(0) * dtype_size(mine.dtype()) / 16,
                      .rows = mine.dim(0),
                      .packs = packs_of(mine, 1),
                      .num_lse = args.lse.numel()};
  const auto [blocks, threads] = grid_of(args);
  with_max_peers(args.neighbours.ranks, [&, blocks = blocks, threads = threads](auto max_ranks) {
    launch_kernel(ctx, push_queries<max_ranks()>, static_cast<unsigned>(blocks),
                  static_cast<unsigned>(threads), 0, *peers_of(args.neighbours), places_of(args.neighbours),
                  gather);
  });
}

bool merge_heads_can_push(const MergeHeadsArgs& args) {
  const PeerGroup* group = peers_of(args.neighbours);
  const int64_t packs = packs_of(args.out, 2);
  const bool takes_own = !args.own.defined() ||
                         (is_aligned(args.own) && args.own.is_contiguous() && args.own_lse.is_contiguous());
  return group != nullptr && takes_own && packs > 0 && has_packed_rows(args.out) && is_aligned(args.parts) &&
         args.parts.is_contiguous() && args.lse.is_contiguous() &&
         fits_buffers(*group, args.out.dim(0) * args.out.dim(1), grid_of(args), (packs + 1) * 16);
}

void merge_heads_push(const OpContext& ctx, const MergeHeadsArgs& args) {
  const Tensor& out = args.out;
  const auto [blocks, threads] = grid_of(args);
  with_cuda_type(out.dtype(), [&, blocks = blocks, threads = threads](auto tag) {
    using T = decltype(tag);
    const Merge<T> merge{.parts = cuda_data<const uint4>(args.parts),
                         .lse = cuda_data<const float>(args.lse),
                         .own = cuda_data<const uint4>(args.own),
                         .own_lse = cuda_data<const float>(args.own_lse),
                         .out = cuda_data<T>(out),
                         .out_row_stride = out.stride(0),
                         .items = out.dim(0) * out.dim(1),
                         .heads = out.dim(1),
                         .packs = static_cast<int>(packs_of(out, 2))};
    with_max_peers(args.neighbours.ranks, [&](auto max_ranks) {
      launch_kernel(ctx, push_results<max_ranks(), T>, static_cast<unsigned>(blocks),
                    static_cast<unsigned>(threads), 0, *peers_of(args.neighbours), places_of(args.neighbours),
                    merge);
    });
  });
}

}  // namespace ladder
