// Attention of single query rows, cut into equal parts whatever the sequences' lengths.
#include <algorithm>

#include "step1_layers/attention/paged_attention_decode_cuda.cuh"

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
constexpr int kWarps = 4, kThreads = kWarps * kWarp, kTileKeys = kWarps * kStepKeys, kMaxParts = 1024;
template <int dim>
constexpr int kBlocks = dim == 256 ? 1 : 2;  // of a multiprocessor: while one merges, the other reads

template <int dim>
struct PartialResult {
  float largest[kTileHeads], sum[kTileHeads];
  float out[kTileHeads][dim];  // not divided by the sum
};

// The line of tiles, and the place in it of this block's first one.
struct Line {
  int total;    // tiles
  int64_t seq;  // where tile `position` lies
  int before;   // tiles of the sequences before it
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
  __shared__ int warp_sums[kWarps];
  __shared__ Line found;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t stretch = ceil_div<int64_t>(a.num_seqs, kThreads), first = threadIdx.x * stretch;
  const int64_t last = first + stretch < a.num_seqs ? first + stretch : a.num_seqs;
  int mine = 0;
  for (int64_t seq = first; seq < last; ++seq) mine += tiles_of(a, seq);
  int through = mine;  // sum up to this thread's, inclusive
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += other;
  }
  if (lane == kWarp - 1) warp_sums[warp] = through;
  __syncthreads();
  int total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) through += warp_sums[w];
    total += warp_sums[w];
  }
  parts = parts < total ? parts : total;
  if (part >= parts) return {};
  const int position = cut(part, total, parts);
  int before = through - mine;
  if (before <= position && position < through) {
    int64_t seq = first;
    for (int tiles = tiles_of(a, seq); before + tiles <= position; tiles = tiles_of(a, ++seq))
      before += tiles;
    found = {total, seq, before};
  }
  __syncthreads();
  return found;
}

template <int dim, class T>
__global__ void __launch_bounds__(kThreads, kBlocks<dim>)
    attention_split(Attention<T> a, PartialResult<dim>* scratch, int* counters) {
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
  auto [total, seq, before] = find_place(a, part, parts);
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
                 shared);
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
    auto& factors = *reinterpret_cast<float(*)[kTileHeads][kMaxParts]>(memory);
    __shared__ float largest[kTileHeads], sums[kTileHeads];
    for (int head = threadIdx.x / kWarp; head < heads; head += kWarps) {
      const int lane = threadIdx.x % kWarp;
      float top = -INFINITY, sum = 0;
      for (int i = lane; i < count; i += kWarp)
        top = fmaxf(top, factors[head][i] = __ldcg(&scratch_of(first_part + i, i == 0).largest[head]));
      top = warp_max(top);
      for (int i = lane; i < count; i += kWarp) {
        const float factor = exp2f(factors[head][i] - top);
        factors[head][i] = factor;
        sum += __ldcg(&scratch_of(first_part + i, i == 0).sum[head]) * factor;
      }
      sum = warp_sum(sum);
      if (lane == 0) {
        largest[head] = top;
        sums[head] = sum;
      }
    }
    __syncthreads();
    for_each_quad<dim, kWarps>(heads, [&](int head, int element) {
      PartialQuad merged{largest[head], sums[head], {0, 0, 0, 0}};
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        const float factor = factors[head][i];
        const float4 x =
            __ldcg(reinterpret_cast<const float4*>(&scratch_of(first_part + i, i == 0).out[head][element]));
        merged.value.x += x.x * factor;
        merged.value.y += x.y * factor;
        merged.value.z += x.z * factor;
        merged.value.w += x.w * factor;
      }
      store_result(a, row, head0 + head, element, merged);
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
  const int64_t parts =
      std::clamp<int64_t>(kBlocks<dim> * ctx.cuda->num_multiprocessors() / head_tiles, 1, kMaxParts);
  const int64_t blocks = parts * head_tiles;
  ArenaScope scope(*ctx.arena);
  constexpr int64_t kFloats = sizeof(PartialResult<dim>) / sizeof(float);
  auto* scratch = static_cast<PartialResult<dim>*>(ctx.arena->take({2 * blocks, kFloats}, DType::f32).raw());
  launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, kShared, a, scratch,
                ctx.cuda->counters());
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
  return paged_attention_takes_decode(args) &&
         args.cache.k.dim(2) * ceil_div<int64_t>(args.q.dim(1) / args.cache.k.dim(2), kTileHeads) <=
             CudaContext::kNumCounters &&
         (args.metadata.max_query_len <= 1 || paged_attention_takes_tensor_core(args));
}

}  // namespace ladder
