#pragma once
// What the kernels share that cut the keys of all sequences into equal parts (attention_split explains them): the line of tiles,
// where a part lies in it, and how blocks send each other results. A call is an Attention, or what is derived from it; with the
// type of its queues an overload of attend_piece computes a piece of it.
#include "step1_layers/attention/paged_attention_decode_cuda.cuh"

namespace ladder {

inline constexpr int kSplitWarps = 4, kSplitThreads = kSplitWarps * kWarp,
                     kSplitTileKeys = kSplitWarps * kStepKeys;
// Between two sequences the queues run dry, which takes as long as two tiles: in the line each sequence has
// so many more, before its own. A call whose tiles are of fewer bytes has more of them in its place.
inline constexpr int kGapTiles = 2;

// What a block sends to the one that merges. The memory is zero before and after every kernel, and what is
// sent has no zero: a word is there when it is not zero, and neither fence nor counter is waited for.
template <int dim>
struct PartialResult {
  float2 state[kTileHeads];    // largest, sum
  float out[kTileHeads][dim];  // not divided by the sum
};
__device__ inline float no_zero(float x) {
  return x == 0 ? -0.0f : x;
}
__device__ inline bool is_there(float x) {
  return __float_as_uint(x) != 0;
}
__device__ inline void send(float2* to, float2 x) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(no_zero(x.x)), "f"(no_zero(x.y))
               : "memory");
}
__device__ inline void send(float4* to, const float4& x) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(no_zero(x.x)),
               "f"(no_zero(x.y)), "f"(no_zero(x.z)), "f"(no_zero(x.w))
               : "memory");
}
__device__ inline float2 look(const float2* at) {
  float2 x;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(at) : "memory");
  return x;
}
__device__ inline float4 look(const float4* at) {
  float4 x;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(at)
               : "memory");
  return x;
}

// The line of tiles and gaps, and the place in it of this block's last one.
struct Line {
  int total, longest;  // of all sequences, of one
  int used;            // sequences up to the last one with tiles
  int64_t seq;         // where the last one lies
  int before;          // tiles and gaps of the sequences before it
};

// Part p has tiles [p * total / parts, (p + 1) * total / parts).
__device__ inline int cut(int part, int total, int parts) {
  return static_cast<int>(int64_t{part} * total / parts);
}
// The part that has the tile: the largest p with cut(p) <= tile.
__device__ inline int part_of(int tile, int total, int parts) {
  return static_cast<int>(((int64_t{tile} + 1) * parts - 1) / total);
}

// With the gap.
template <int gap = kGapTiles, class T>
__device__ int tiles_of(const Attention<T>& a, int64_t seq) {
  const int tiles = ceil_div(num_decode_keys(a, seq), kSplitTileKeys);
  return tiles == 0 ? 0 : tiles + gap;
}

// Counted by all threads together, a stretch of sequences each.
template <int gap = kGapTiles, class T>
__device__ Line find_place(const Attention<T>& a, int part, int& parts) {
  __shared__ int warp_sums[kSplitWarps], warp_longest[kSplitWarps], warp_used[kSplitWarps];
  __shared__ Line found;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t stretch = ceil_div<int64_t>(a.num_seqs, kSplitThreads), first = threadIdx.x * stretch;
  const int64_t last = first + stretch < a.num_seqs ? first + stretch : a.num_seqs;
  int mine = 0, longest = 0, used = 0;
  for (int64_t seq = first; seq < last; ++seq) {
    const int tiles = tiles_of<gap>(a, seq);
    mine += tiles;
    longest = max(longest, tiles);
    if (tiles > 0) used = static_cast<int>(seq) + 1;
  }
  int through = mine;  // sum up to this thread's, inclusive
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += other;
    longest = max(longest, __shfl_xor_sync(kAllLanes, longest, offset));
    used = max(used, __shfl_xor_sync(kAllLanes, used, offset));
  }
  if (lane == kWarp - 1) warp_sums[warp] = through;
  if (lane == 0) warp_longest[warp] = longest;
  if (lane == 0) warp_used[warp] = used;
  __syncthreads();
  int total = 0;
#pragma unroll
  for (int w = 0; w < kSplitWarps; ++w) {
    if (w < warp) through += warp_sums[w];
    total += warp_sums[w];
    longest = max(longest, warp_longest[w]);
    used = max(used, warp_used[w]);
  }
  parts = parts < total ? parts : total;
  if (part >= parts) return {total, longest, used, 0, 0};
  const int position = cut(part + 1, total, parts) - 1;
  int before = through - mine;
  if (before <= position && position < through) {
    int64_t seq = first;
    for (int tiles = tiles_of<gap>(a, seq); before + tiles <= position; tiles = tiles_of<gap>(a, ++seq))
      before += tiles;
    found = {total, longest, used, seq, before};
  }
  __syncthreads();
  return found;
}

// Whether blocks that take whole sequences would end later than with equal parts of total / parts tiles,
// whose merge takes about as long as three gaps. A block alone is some three times as fast as in company, so
// with a block for each sequence the longest may be somewhat longer than a part. Where there are more
// sequences than blocks, it must be about half a part, so that no block begins its last one when others end.
// Measured on an H200 with heads of 128.
template <int gap = kGapTiles>
__device__ bool cuts_pay(const Line& line, int parts) {
  const int64_t total = line.total - gap * line.used, longest = line.longest - gap;
  return line.used <= parts ? (longest - 3 * gap) * 4 * parts > total * 5 : longest * 16 * parts > total * 9;
}

// Adds what the parts [first_part, last_part) have sent for elements [element, element + 4) of a head, in
// their order, and leaves zeros there. Eight are asked for at once, the last one again where there are fewer:
// more of them, or branches around them, are more instructions, and those come from L2 like data where they
// run once (32 at once took five microseconds longer).
template <int dim, class SentBy>
__device__ void merge_sent(PartialQuad& merged, int first_part, int last_part, int head, int element,
                           SentBy&& sent_by) {
  constexpr int kBatch = 8;
  auto out_of = [&](int part) { return reinterpret_cast<float4*>(&sent_by(part).out[head][element]); };
  for (int first = first_part; first < last_part; first += kBatch) {
    PartialQuad x[kBatch];
    bool all_there;
    do {
      all_there = true;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int part = min(first + i, last_part - 1);
        const float2 state = look(&sent_by(part).state[head]);
        x[i] = {state.x, state.y, look(out_of(part))};
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        all_there = all_there && is_there(x[i].largest) && is_there(x[i].sum) && is_there(x[i].value.x) &&
                    is_there(x[i].value.y) && is_there(x[i].value.z) && is_there(x[i].value.w);
    } while (!all_there);
    float top = merged.largest;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) top = fmaxf(top, x[i].largest);
    const float scale = exp2f(merged.largest - top);
    merged.largest = top;
    merged.sum *= scale;
    merged.value.x *= scale;
    merged.value.y *= scale;
    merged.value.z *= scale;
    merged.value.w *= scale;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float factor = first + i < last_part ? exp2f(x[i].largest - top) : 0.0f;
      merged.sum += x[i].sum * factor;
      merged.value.x += x[i].value.x * factor;
      merged.value.y += x[i].value.y * factor;
      merged.value.z += x[i].value.z * factor;
      merged.value.w += x[i].value.w * factor;
    }
  }
  for (int part = first_part; part < last_part; ++part) *out_of(part) = {0, 0, 0, 0};
}

// The first num_seqs sequences, each by the block that is free: nothing is to be merged.
template <class Call, class Shared>
__device__ void attend_whole(const Call& a, int64_t num_seqs, PreviousKernel<> previous, Shared& shared,
                             unsigned* ticket) {
  __shared__ int64_t next;
  const int head_tiles = head_tiles_of(a);
  const int64_t items = num_seqs * head_tiles;
  for (int64_t item = blockIdx.x; item < items;) {
    const int64_t seq = item / head_tiles;
    const auto head_tile = static_cast<int>(item % head_tiles);
    const int num_keys = num_decode_keys(a, seq);
    int64_t mine = items;
    // The tickets of a call are as many as its items, so the counter is zero again after the last one.
    auto draw = [&] {
      if (threadIdx.x == 0 && items > gridDim.x)
        mine = gridDim.x + atomicInc(ticket, static_cast<unsigned>(items) - 1);
    };
    if (num_keys == 0 && !previous.has_ended) {
      wait_for_previous_kernel();
      previous.has_ended = true;
    }
    if (num_keys == 0)
      draw();
    else
      attend_piece(a, {seq, head_tile, num_keys, 0, num_keys}, previous, shared, draw);
    if (threadIdx.x == 0) next = mine;
    if (num_keys > 0) {
      const int64_t row = a.query_start_loc[seq];
      const int head0 = first_head(a, head_tile);
      for_each_quad<Shared::kDim, kSplitWarps>(heads_in_tile(a, head_tile), [&](int head, int element) {
        store_result(a, row, head0 + head, element,
                     merge_warps<kSplitWarps>(
                         [&](int warp) -> auto& { return shared.result(warp); }, head, element));
      });
    }
    __syncthreads();  // the queue is free again
    item = next;
    __syncthreads();
  }
  if (!previous.has_ended) wait_for_previous_kernel();
}

}  // namespace ladder
