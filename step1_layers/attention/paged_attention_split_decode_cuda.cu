// Attention of single query rows: whole sequences, or equal parts of all keys where lengths differ too much.
#include <algorithm>

#include "step1_layers/attention/paged_attention_decode_cuda.cuh"
#include "step1_layers/attention/paged_attention_prefill_cuda.cuh"

namespace ladder {

namespace {

// split (sm_80)
// Shapes: paged_attention_decode_cuda.cuh. The rung below leaves the chip idle where there are few sequences,
// and waits for the longest where their lengths differ. Here the tiles of 64 keys of all sequences stand in
// one line, which is cut into equal parts; a block takes one part of one head tile, and may end one sequence
// and begin the next. Blocks of the same part and different heads are neighbours, so rows of the cache that
// lie side by side are read at about the same time. Where a sequence ends in another part than it begins, the
// block of its last part merges what the others send. The cuts are computed from seq_lens on the device, and
// the number of blocks is fixed, so a captured graph stays right when lengths change. Where a sequence is cut
// depends on the batch: not batch invariant.
// A cut costs two trips to L2 at the end of a part. Where no sequence is so long that blocks would wait for
// it (cuts_pay), blocks take whole ones, and a block that is done takes the next.
constexpr int kWarps = 4, kThreads = kWarps * kWarp, kTileKeys = kWarps * kStepKeys;
template <int dim>
constexpr int kBlocks = dim == 256 ? 1 : 2;  // of a multiprocessor: while one merges, the other reads
// Between two sequences the queues run dry, which takes as long as two tiles: in the line each sequence has
// so many more, before its own.
constexpr int kGapTiles = 2;

// What a block sends to the one that merges. The memory is zero before and after every kernel, and what is
// sent has no zero: a word is there when it is not zero, and neither fence nor counter is waited for.
template <int dim>
struct PartialResult {
  float2 state[kTileHeads];    // largest, sum
  float out[kTileHeads][dim];  // not divided by the sum
};
__device__ float no_zero(float x) {
  return x == 0 ? -0.0f : x;
}
__device__ bool is_there(float x) {
  return __float_as_uint(x) != 0;
}
__device__ void send(float2* to, float2 x) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(no_zero(x.x)), "f"(no_zero(x.y))
               : "memory");
}
__device__ void send(float4* to, const float4& x) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(no_zero(x.x)),
               "f"(no_zero(x.y)), "f"(no_zero(x.z)), "f"(no_zero(x.w))
               : "memory");
}
__device__ float2 look(const float2* at) {
  float2 x;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(at) : "memory");
  return x;
}
__device__ float4 look(const float4* at) {
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
__device__ int cut(int part, int total, int parts) {
  return static_cast<int>(int64_t{part} * total / parts);
}
// The part that has the tile: the largest p with cut(p) <= tile.
__device__ int part_of(int tile, int total, int parts) {
  return static_cast<int>(((int64_t{tile} + 1) * parts - 1) / total);
}

// With the gap.
template <class T>
__device__ int tiles_of(const Attention<T>& a, int64_t seq) {
  const int tiles = ceil_div(num_decode_keys(a, seq), kTileKeys);
  return tiles == 0 ? 0 : tiles + kGapTiles;
}

// Counted by all threads together, a stretch of sequences each.
template <class T>
__device__ Line find_place(const Attention<T>& a, int part, int& parts) {
  __shared__ int warp_sums[kWarps], warp_longest[kWarps], warp_used[kWarps];
  __shared__ Line found;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t stretch = ceil_div<int64_t>(a.num_seqs, kThreads), first = threadIdx.x * stretch;
  const int64_t last = first + stretch < a.num_seqs ? first + stretch : a.num_seqs;
  int mine = 0, longest = 0, used = 0;
  for (int64_t seq = first; seq < last; ++seq) {
    const int tiles = tiles_of(a, seq);
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
  for (int w = 0; w < kWarps; ++w) {
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
    for (int tiles = tiles_of(a, seq); before + tiles <= position; tiles = tiles_of(a, ++seq))
      before += tiles;
    found = {total, longest, used, seq, before};
  }
  __syncthreads();
  return found;
}

// Whether blocks that take whole sequences would end later than with equal parts of total / parts tiles,
// whose merge takes about as long as six tiles. A block alone is some three times as fast as in company, so
// with a block for each sequence the longest may be somewhat longer than a part. Where there are more
// sequences than blocks, it must be about half a part, so that no block begins its last one when others end.
// Measured on an H200 with heads of 128.
__device__ bool cuts_pay(const Line& line, int parts) {
  const int64_t total = line.total - kGapTiles * line.used, longest = line.longest - kGapTiles;
  return line.used <= parts ? (longest - 6) * 4 * parts > total * 5 : longest * 16 * parts > total * 9;
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
template <int dim, class T>
__device__ void attend_whole(const Attention<T>& a, int64_t num_seqs, PreviousKernel<> previous,
                             DecodeShared<dim, kWarps>& shared, unsigned* ticket) {
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
      for_each_quad<dim, kWarps>(heads_in_tile(a, head_tile), [&](int head, int element) {
        store_result(a, row, head0 + head, element,
                     merge_warps<kWarps>(
                         [&](int warp) -> auto& { return shared.result(warp); }, head, element));
      });
    }
    __syncthreads();  // the queue is free again
    item = next;
    __syncthreads();
  }
  if (!previous.has_ended) wait_for_previous_kernel();
}

}  // namespace

// >>> task 1.7.cuda.split: decode, the keys of all sequences in one line that is cut into equal parts
namespace {

// Registers are left for one more block: the previous and the next kernel share the multiprocessors.
template <int dim, class T>
__global__ void __launch_bounds__(kThreads, kBlocks<dim> + 1)
    attention_split(Attention<T> a, PartialResult<dim>* sent, unsigned* ticket) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<DecodeShared<dim, kWarps>*>(memory);
  allow_next_kernel();
  PreviousKernel<> previous{.has_ended = a.max_query_len > 1};
  if (previous.has_ended) wait_for_previous_kernel();

  const int head_tiles = head_tiles_of(a);
  const auto head_tile = static_cast<int>(blockIdx.x % head_tiles);
  const auto part = static_cast<int>(blockIdx.x / head_tiles);
  const int heads = heads_in_tile(a, head_tile), head0 = first_head(a, head_tile);
  auto parts = static_cast<int>(gridDim.x / head_tiles);
  const Line line = find_place(a, part, parts);
  if (!cuts_pay(line, static_cast<int>(gridDim.x / head_tiles)))
    return attend_whole(a, line.used, previous, shared, ticket);
  if (part >= parts) {
    if (!previous.has_ended) wait_for_previous_kernel();
    return;
  }
  auto result_of = [&](int warp) -> auto& {
    return shared.result(warp);
  };
  auto sent_by = [&](int p) -> PartialResult<dim>& { return sent[int64_t{p} * head_tiles + head_tile]; };
  // From the end of the part to its begin: what is sent leaves first, and the sequence that needs other parts
  // comes last. A block waits for blocks of lower index only, which have started before it (no rule of
  // CUDA's, but what every GPU does and single-pass scans rely on), and which send before they wait.
  const int begin = cut(part, line.total, parts);
  int64_t seq = line.seq;
  int before = line.before;
  for (int end = cut(part + 1, line.total, parts);;) {
    const int num_keys = num_decode_keys(a, seq), tiles = ceil_div(num_keys, kTileKeys);
    const int first_tile = before + kGapTiles;  // of the sequence, in the line
    const int first = max(begin - first_tile, 0), last = min(end - first_tile, tiles);
    if (first < last) {
      attend_piece(a, {seq, head_tile, num_keys, first * kTileKeys, min(last * kTileKeys, num_keys)},
                   previous, shared, [] {});
      const int64_t row = a.query_start_loc[seq];
      const int first_part = first == 0 ? part : part_of(first_tile, line.total, parts);
      for_each_quad<dim, kWarps>(heads, [&](int head, int element) {
        PartialQuad merged = merge_warps<kWarps>(result_of, head, element);
        if (last < tiles) {
          PartialResult<dim>& to = sent_by(part);
          send(reinterpret_cast<float4*>(&to.out[head][element]), merged.value);
          if (element == 0) send(&to.state[head], {merged.largest, merged.sum});
        } else {
          merge_sent<dim>(merged, first_part, part, head, element, sent_by);
          store_result(a, row, head0 + head, element, merged);
        }
      });
      __syncthreads();  // the queue is free again, and all have looked at the states
      if (last == tiles)
        for (int i = threadIdx.x; i < (part - first_part) * kTileHeads; i += kThreads)
          sent_by(first_part + i / kTileHeads).state[i % kTileHeads] = {0, 0};
    }
    if (before <= begin) break;
    end = before;
    do --seq;
    while (tiles_of(a, seq) == 0);
    before -= tiles_of(a, seq);
  }
  if (!previous.has_ended) wait_for_previous_kernel();
}

template <int dim, class T>
void launch(const OpContext& ctx, const Attention<T>& a) {
  constexpr size_t kShared = sizeof(DecodeShared<dim, kWarps>);
  auto kernel = attention_split<dim, T>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<int64_t>(kShared));
  constexpr auto kRoom = (CudaContext::kNumCounters - 1) * static_cast<int64_t>(sizeof(int)) /
                         static_cast<int64_t>(sizeof(PartialResult<dim>));
  const int64_t head_tiles = a.kv_heads * ceil_div(a.group, kTileHeads);
  const int64_t blocks = std::min<int64_t>(kBlocks<dim> * ctx.cuda->num_multiprocessors(), kRoom);
  const int64_t parts = std::max<int64_t>(blocks / head_tiles, 1);  // one sends nothing
  launch_kernel(ctx, kernel, static_cast<unsigned>(parts * head_tiles), kThreads, kShared, a,
                reinterpret_cast<PartialResult<dim>*>(ctx.cuda->counters()),
                reinterpret_cast<unsigned*>(ctx.cuda->counters()) + CudaContext::kNumCounters - 1);
}

}  // namespace

void paged_attention_cuda_split(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  with_decode_call(args, [&]<int dim, class T>(const Attention<T>& a) {
    if (may_have_single_rows(a)) launch<dim>(ctx, a);
  });
  if (args.metadata.max_query_len > 1) attention_prefill(ctx, args, false);
}
// <<< task 1.7.cuda.split

bool paged_attention_takes_split(const PagedAttentionArgs& args) {
  const int64_t dim = args.q.dim(2);
  const size_t shared = dim == 64    ? sizeof(DecodeShared<64, kWarps>)
                        : dim == 128 ? sizeof(DecodeShared<128, kWarps>)
                                     : sizeof(DecodeShared<256, kWarps>);
  return paged_attention_takes_decode(args) && fits_shared_memory(static_cast<int64_t>(shared)) &&
         (args.metadata.max_query_len <= 1 || paged_attention_takes_tensor_core(args));
}

}  // namespace ladder
