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
// lie side by side are read at about the same time. Parts of a sequence that several blocks share go to
// scratch, and the block that finishes last merges them. The cuts are computed from seq_lens on the device,
// and the number of blocks is fixed, so a captured graph stays right when lengths change. Where a sequence is
// cut depends on the batch: not batch invariant.
// A cut costs three trips to L2 at the end of a part. Where no sequence is so long that blocks would wait for
// it (cuts_pay), blocks take whole ones, and who is done takes the next.
constexpr int kWarps = 4, kThreads = kWarps * kWarp, kTileKeys = kWarps * kStepKeys;
template <int dim>
constexpr int kBlocks = dim == 256 ? 1 : 2;  // of a multiprocessor: while one merges, the other reads

template <int dim>
struct PartialResult {
  float largest[kTileHeads], sum[kTileHeads];
  float out[kTileHeads][dim];  // not divided by the sum
};

// The line of tiles, and the place in it of this block's first one.
struct Line {
  int total, longest;  // tiles of all sequences, of one
  int used;            // sequences up to the last one with tiles
  int64_t seq;         // where tile `position` lies
  int before;          // tiles of the sequences before it
};

// Part p has tiles [p * total / parts, (p + 1) * total / parts).
__device__ int cut(int part, int total, int parts) {
  return static_cast<int>(int64_t{part} * total / parts);
}
// The part that has the tile: the largest p with cut(p) <= tile.
__device__ int part_of(int tile, int total, int parts) {
  return static_cast<int>(((int64_t{tile} + 1) * parts - 1) / total);
}

template <class T>
__device__ int tiles_of(const Attention<T>& a, int64_t seq) {
  return ceil_div(num_decode_keys(a, seq), kTileKeys);
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
  const int position = cut(part, total, parts);
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
// sequences than blocks, it must be about half a part, so that nobody begins a last one when others end.
// Measured on an H200 with heads of 128.
__device__ bool cuts_pay(const Line& line, int parts) {
  return line.used <= parts ? int64_t{line.longest - 6} * 4 * parts > int64_t{line.total} * 5
                            : int64_t{line.longest} * 16 * parts > int64_t{line.total} * 9;
}

// As merge_parts, but every part is looked at once: for parts that are far away.
template <class Part>
__device__ PartialQuad merge_once(int count, Part&& part) {
  PartialQuad merged{-INFINITY, 0, {0, 0, 0, 0}};
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const PartialQuad x = part(i);
    const float top = fmaxf(merged.largest, x.largest);
    const float scale = exp2f(merged.largest - top), factor = exp2f(x.largest - top);
    merged.largest = top;
    merged.sum = merged.sum * scale + x.sum * factor;
    merged.value.x = merged.value.x * scale + x.value.x * factor;
    merged.value.y = merged.value.y * scale + x.value.y * factor;
    merged.value.z = merged.value.z * scale + x.value.z * factor;
    merged.value.w = merged.value.w * scale + x.value.w * factor;
  }
  return merged;
}

// The first num_seqs sequences, each by the block that is free: nothing is to be merged.
template <int dim, class T>
__device__ void attend_whole(const Attention<T>& a, int64_t num_seqs, bool waited,
                             DecodeShared<dim, kWarps>& shared, unsigned* ticket) {
  __shared__ int64_t next;
  const int head_tiles = head_tiles_of(a);
  const int64_t items = num_seqs * head_tiles;
  for (int64_t item = blockIdx.x; item < items;) {
    const int64_t seq = item / head_tiles;
    const auto head_tile = static_cast<int>(item % head_tiles);
    const int num_keys = num_decode_keys(a, seq);
    int64_t mine = items;
    // The tickets of a call are as many as its items, so the counter is zero again behind the last one.
    auto draw = [&] {
      if (threadIdx.x == 0 && items > gridDim.x)
        mine = gridDim.x + atomicInc(ticket, static_cast<unsigned>(items) - 1);
    };
    if (num_keys == 0 && !waited) {
      wait_for_previous_kernel();
      waited = true;
    }
    if (num_keys == 0)
      draw();
    else
      attend_piece(a, {seq, head_tile, num_keys, 0, num_keys}, waited, shared, draw);
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
  if (!waited) wait_for_previous_kernel();
}

template <int dim, class T>
__global__ void __launch_bounds__(kThreads, kBlocks<dim>)
    attention_split(Attention<T> a, PartialResult<dim>* scratch, int* counters, unsigned* ticket) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<DecodeShared<dim, kWarps>*>(memory);
  __shared__ bool is_last;
  allow_next_kernel();
  bool waited = a.max_query_len > 1;
  if (waited) wait_for_previous_kernel();

  const int head_tiles = head_tiles_of(a);
  const auto head_tile = static_cast<int>(blockIdx.x % head_tiles);
  const auto part = static_cast<int>(blockIdx.x / head_tiles);
  const int heads = heads_in_tile(a, head_tile), head0 = first_head(a, head_tile);
  auto parts = static_cast<int>(gridDim.x / head_tiles);
  const Line line = find_place(a, part, parts);
  if (!cuts_pay(line, static_cast<int>(gridDim.x / head_tiles)))
    return attend_whole(a, line.used, waited, shared, ticket);
  const int total = line.total;
  int64_t seq = line.seq;
  int before = line.before;
  if (part >= parts) {
    if (!waited) wait_for_previous_kernel();
    return;
  }
  const int end = cut(part + 1, total, parts);
  auto result_of = [&](int warp) -> auto& {
    return shared.result(warp);
  };
  for (int position = cut(part, total, parts); position < end;) {
    const int num_keys = num_decode_keys(a, seq), tiles = ceil_div(num_keys, kTileKeys);
    if (position == before + tiles) {
      before += tiles;
      ++seq;
      continue;
    }
    const int first = position - before, last = min(tiles, end - before);
    position = before + last;
    attend_piece(a, {seq, head_tile, num_keys, first * kTileKeys, min(last * kTileKeys, num_keys)}, waited,
                 shared, [] {});
    const int64_t row = a.query_start_loc[seq];
    if (last - first == tiles) {
      for_each_quad<dim, kWarps>(heads, [&](int head, int element) {
        store_result(a, row, head0 + head, element, merge_warps<kWarps>(result_of, head, element));
      });
      __syncthreads();  // the queue is free again
      continue;
    }
    // A block has at most one part that begins a sequence and one that does not.
    auto scratch_of = [&](int p, bool begins) -> PartialResult<dim>& {
      return scratch[(int64_t{p} * head_tiles + head_tile) * 2 + begins];
    };
    PartialResult<dim>& to = scratch_of(part, first == 0);
    for_each_quad<dim, kWarps>(heads, [&](int head, int element) {
      const PartialQuad merged = merge_warps<kWarps>(result_of, head, element);
      *reinterpret_cast<float4*>(&to.out[head][element]) = merged.value;
      if (element == 0) {
        to.largest[head] = merged.largest;
        to.sum[head] = merged.sum;
      }
    });
    // At most one sequence begins in a part and goes on beyond it, so its first part can count for it.
    const int first_part = part_of(before, total, parts);
    const int last_part = part_of(before + tiles - 1, total, parts);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      int& counter = counters[first_part * head_tiles + head_tile];
      is_last = atomicAdd(&counter, last - first) + last - first == tiles;
      if (is_last) counter = 0;
      __threadfence();
    }
    __syncthreads();
    if (!is_last) continue;
    const int count = last_part - first_part + 1;
    for_each_quad<dim, kWarps>(heads, [&](int head, int element) {
      store_result(a, row, head0 + head, element, merge_once(count, [&](int i) {
                     const PartialResult<dim>& from = scratch_of(first_part + i, i == 0);
                     return PartialQuad{__ldcg(&from.largest[head]), __ldcg(&from.sum[head]),
                                        __ldcg(reinterpret_cast<const float4*>(&from.out[head][element]))};
                   }));
    });
    __syncthreads();  // the queue is free again
  }
}

template <int dim, class T>
void launch(const OpContext& ctx, const Attention<T>& a) {
  constexpr size_t kShared = sizeof(DecodeShared<dim, kWarps>);
  auto kernel = attention_split<dim, T>;
  LADDER_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)));
  const int64_t head_tiles = a.kv_heads * ceil_div(a.group, kTileHeads);
  const int64_t parts = std::max<int64_t>(kBlocks<dim> * ctx.cuda->num_multiprocessors() / head_tiles, 1);
  const int64_t blocks = parts * head_tiles;
  ArenaScope scope(*ctx.arena);
  constexpr int64_t kFloats = sizeof(PartialResult<dim>) / sizeof(float);
  auto* scratch = static_cast<PartialResult<dim>*>(ctx.arena->take({2 * blocks, kFloats}, DType::f32).raw());
  launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, kShared, a, scratch,
                ctx.cuda->counters(),
                reinterpret_cast<unsigned*>(ctx.cuda->counters()) + CudaContext::kNumCounters - 1);
}

// A single row beside longer ones leaves max_query_len - 1 rows of their bound unused. Exact for prompts of
// one length, one prompt included; otherwise the kernel may be launched for nothing.
bool may_have_single_rows(const AttentionMetadata& metadata) {
  const int64_t unused = metadata.num_seqs * metadata.max_query_len - metadata.num_tokens;
  return unused >= metadata.max_query_len - 1;
}

}  // namespace

void paged_attention_cuda_split(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  if (may_have_single_rows(args.metadata))
    with_decode_call(args, [&]<int dim, class T>(const Attention<T>& a) { launch<dim>(ctx, a); });
  if (args.metadata.max_query_len > 1) attention_prefill(ctx, args, false);
}
bool paged_attention_takes_split(const PagedAttentionArgs& args) {
  const int64_t dim = args.q.dim(2);
  const size_t shared = dim == 64    ? sizeof(DecodeShared<64, kWarps>)
                        : dim == 128 ? sizeof(DecodeShared<128, kWarps>)
                                     : sizeof(DecodeShared<256, kWarps>);
  return paged_attention_takes_decode(args) && fits_shared_memory(static_cast<int64_t>(shared)) &&
         args.cache.k.dim(2) * ceil_div<int64_t>(args.q.dim(1) / args.cache.k.dim(2), kTileHeads) <=
             CudaContext::kNumCounters - 1 &&
         (args.metadata.max_query_len <= 1 || paged_attention_takes_tensor_core(args));
}

}  // namespace ladder
