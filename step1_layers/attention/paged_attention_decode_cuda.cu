// Attention of single query rows: every key is read once, so its speed is that of memory.
#include <algorithm>

#include "step1_layers/attention/paged_attention_cuda.cuh"
#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_core.cuh"

namespace ladder {

namespace {

// grouped (sm_80)
// bf16 or f16, one query row per sequence, head size 64, 128 or 256, pages of a multiple of 16 slots. The
// query heads that share a key/value head are packed into one tensor-core tile: keys are read once for all of
// them, and the arithmetic is a few mma instead of a shuffle reduction per key and head. A block takes one
// sequence and key/value head (eight query heads at most), each of its four warps sixteen keys of every 64.
// Both products run transposed, with keys and values as the A operand, and the free choice of the order in
// which mma sums and of the rows it computes makes every fragment come straight from global memory in 16-byte
// loads, without shared memory; a warp has 8 KB in flight (head size 128).
//
//   scores^T [16 keys, 8 heads] = K [16 keys, dim] * q^T [dim, 8 heads]
//   out^T    [dim, 8 heads]    += V^T [dim, 16 keys] * p^T [16 keys, 8 heads]
//
// split
// The rung below leaves the chip idle where there are few sequences, and waits for the longest where their
// lengths differ. Here the tiles of 64 keys of all sequences and heads stand in one line, which is cut into
// equal parts, one per block; a block may end one head and begin the next. Parts of a head that several
// blocks share go to scratch, and a second kernel merges them. The cuts are computed from seq_lens on the
// device, and the number of blocks is fixed, so a captured graph stays right when lengths change. Where a
// head is cut depends on the batch: not batch invariant.
constexpr int kThreads = 128, kWarps = kThreads / kWarp, kTile = 64, kHeads = 8;

// A stretch of tiles of one head of one sequence, over all warps.
struct Piece {
  int64_t seq;
  int head_tile;  // kv_head * head tiles per group + which of them
  int first_tile, last_tile;
};

// The state of a softmax over part of the keys, for eight heads.
template <int dim>
struct PartialResult {
  float largest[kHeads], sum[kHeads];
  float out[kHeads][dim];  // not divided by the sum
};

__device__ uint32_t transpose_8x8(uint32_t x) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(x));
  return result;
}

// Element e (0 to 7) of packs a and b as a pair.
__device__ uint32_t pair_of(const uint4& a, const uint4& b, int e) {
  const uint32_t words_a[4] = {a.x, a.y, a.z, a.w}, words_b[4] = {b.x, b.y, b.z, b.w};
  return __byte_perm(words_a[e / 2], words_b[e / 2], e % 2 == 0 ? 0x5410 : 0x7632);
}

// The first of the eight query heads, and how many of the tile's heads there are.
template <class T>
__device__ int first_head(const Attention<T>& a, int head_tile) {
  const int tiles_per_group = ceil_div(a.group, kHeads);
  return head_tile / tiles_per_group * a.group + head_tile % tiles_per_group * kHeads;
}
template <class T>
__device__ int heads_in_tile(const Attention<T>& a, int head_tile) {
  const int left = a.group - head_tile % ceil_div(a.group, kHeads) * kHeads;
  return left < kHeads ? left : kHeads;
}

// Computes a piece into `result` (shared memory), merged over the warps. scratch: a result per warp.
template <int dim, class T>
__device__ void attend_piece(const Attention<T>& a, const Piece& piece, PartialResult<dim>* of_warps) {
  constexpr int kQChunks = dim / 32, kVChunks = dim / 64, kOutTiles = dim / 16;
  constexpr uint4 kZero{0, 0, 0, 0};
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int kv_head = piece.head_tile / ceil_div(a.group, kHeads);
  const int head = first_head(a, piece.head_tile), heads = heads_in_tile(a, piece.head_tile);
  const int num_keys = a.seq_lens[piece.seq];
  const int32_t* table = a.block_tables + piece.seq * a.table_stride;

  uint4 q[kQChunks];
  const T* q_row = a.q + a.query_start_loc[piece.seq] * a.q_token + (head + g) * a.q_head;
#pragma unroll
  for (int c = 0; c < kQChunks; ++c)
    q[c] = g < heads ? *reinterpret_cast<const uint4*>(q_row + c * 32 + t * 8) : kZero;

  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // of heads 2t and 2t + 1
  float out[kOutTiles][4] = {};
  int key = piece.first_tile * kTile + warp * 16;
  const int end = piece.last_tile * kTile < num_keys ? piece.last_tile * kTile : num_keys;
  int block = key < end ? table[key / a.block_size] : 0;
  for (; key < end; key += kTile) {
    const int slot = key % a.block_size;
    const T* k_tile = a.k + block * a.k_block + slot * a.k_slot + kv_head * a.k_head;
    const T* v_tile = a.v + block * a.v_block + slot * a.v_slot + kv_head * a.v_head;
    if (key + kTile < end) block = table[(key + kTile) / a.block_size];
    const int valid = num_keys - key;  // keys past it may hold anything, NaN too: they are not read

    uint4 k[2][kQChunks], v[4][kVChunks];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int c = 0; c < kQChunks; ++c)
        k[half][c] =
            load_streaming(k_tile + (half * 8 + g) * a.k_slot + c * 32 + t * 8, half * 8 + g < valid);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2 * 8 + 2 * t + i % 2;
#pragma unroll
      for (int c = 0; c < kVChunks; ++c)
        v[i][c] = load_streaming(v_tile + row * a.v_slot + c * 64 + g * 8, row < valid);
    }

    float s[4] = {};
#pragma unroll
    for (int c = 0; c < kQChunks; ++c) {
      mma_16x8x16<T>(s, {k[0][c].x, k[1][c].x, k[0][c].y, k[1][c].y}, {q[c].x, q[c].y});
      mma_16x8x16<T>(s, {k[0][c].z, k[1][c].z, k[0][c].w, k[1][c].w}, {q[c].z, q[c].w});
    }
    float correction[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // head 2t + i: s[i] of key g, s[2 + i] of key g + 8
      s[i] = g < valid ? s[i] * a.scale : -INFINITY;
      s[2 + i] = g + 8 < valid ? s[2 + i] * a.scale : -INFINITY;
      float tile_largest = fmaxf(s[i], s[2 + i]);
#pragma unroll
      for (int offset = 4; offset < kWarp; offset *= 2)
        tile_largest = fmaxf(tile_largest, __shfl_xor_sync(kAllLanes, tile_largest, offset));
      const float new_largest = fmaxf(largest[i], tile_largest);
      correction[i] = exp2f(largest[i] - new_largest);
      largest[i] = new_largest;
      s[i] = exp2f(s[i] - new_largest);
      s[2 + i] = exp2f(s[2 + i] - new_largest);
      sum[i] = sum[i] * correction[i] + s[i] + s[2 + i];  // this lane's keys; added up at the end
    }
    const uint32_t p[2] = {transpose_8x8(pack_pair<T>(s[0], s[1])), transpose_8x8(pack_pair<T>(s[2], s[3]))};
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) {
      // Rows g and g + 8 of an output tile: element `low` of chunk `c` and element `high` of chunk `d`.
      const int c = dim == 64 ? 0 : tile / 8 * 2, d = dim == 64 ? 0 : c + 1;
      const int low = dim == 64 ? tile : tile % 8, high = dim == 64 ? tile + 4 : low;
      out[tile][0] *= correction[0];
      out[tile][1] *= correction[1];
      out[tile][2] *= correction[0];
      out[tile][3] *= correction[1];
      mma_16x8x16<T>(out[tile],
                     {pair_of(v[0][c], v[1][c], low), pair_of(v[0][d], v[1][d], high),
                      pair_of(v[2][c], v[3][c], low), pair_of(v[2][d], v[3][d], high)},
                     p);
    }
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int offset = 4; offset < kWarp; offset *= 2) sum[i] += __shfl_xor_sync(kAllLanes, sum[i], offset);
    if (g == 0) {
      of_warps[warp].largest[2 * t + i] = largest[i];
      of_warps[warp].sum[2 * t + i] = sum[i];
    }
  }
#pragma unroll
  for (int tile = 0; tile < kOutTiles; ++tile)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int c = dim == 64 ? 0 : tile / 8 * 2, low = dim == 64 ? tile : tile % 8;
      const int element = e < 2       ? c * 64 + g * 8 + low
                          : dim == 64 ? g * 8 + low + 4
                                      : c * 64 + 64 + g * 8 + low;
      of_warps[warp].out[2 * t + e % 2][element] = out[tile][e];
    }
  __syncthreads();
}

// Merges `count` partial results and calls fn(head, element, value, largest, sum) for each element of the
// heads, value being divided by the sum where `divides`.
template <int dim, class Fn>
__device__ void merge_results(const PartialResult<dim>* parts, int count, int heads, bool divides, Fn&& fn) {
  for (int index = threadIdx.x; index < heads * dim; index += kThreads) {
    const int head = index / dim, element = index % dim;
    float largest = -INFINITY, sum = 0, value = 0;
#pragma unroll 8
    for (int i = 0; i < count; ++i) largest = fmaxf(largest, parts[i].largest[head]);
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      const float factor = exp2f(parts[i].largest[head] - largest);  // 0 for a part without keys
      sum += parts[i].sum[head] * factor;
      value += parts[i].out[head][element] * factor;
    }
    fn(head, element, divides ? value / sum : value, largest, sum);
  }
}

template <class T>
struct Writer {
  const Attention<T>& a;
  int64_t row;
  int head;
  __device__ void operator()(int h, int element, float value, float largest, float sum) const {
    a.out[row * a.out_token + (head + h) * a.out_head + element] = from_float<T>(value);
    if (element == 0) a.store_lse(row, head + h, largest, sum);
  }
};

template <class T>
__device__ int tiles_of(const Attention<T>& a, int64_t seq) {
  return a.query_len(seq) == 1 ? ceil_div(a.seq_lens[seq], kTile) : 0;
}

template <int dim, class T>
__global__ void __launch_bounds__(kThreads, dim == 256 ? 1 : 3) attention_grouped(Attention<T> a) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* of_warps = reinterpret_cast<PartialResult<dim>*>(shared);
  const int head_tiles = a.kv_heads * ceil_div(a.group, kHeads);
  const int64_t seq = blockIdx.x / head_tiles;
  const int head_tile = static_cast<int>(blockIdx.x % head_tiles);
  const int tiles = tiles_of(a, seq);
  if (tiles == 0) return;
  attend_piece<dim>(a, {seq, head_tile, 0, tiles}, of_warps);
  merge_results<dim>(of_warps, kWarps, heads_in_tile(a, head_tile), true,
                     Writer<T>{a, a.query_start_loc[seq], first_head(a, head_tile)});
}

// The line of all tiles: sequence after sequence, head after head. Counted by all threads together.
struct Line {
  int64_t total;   // tiles of all sequences, one head
  int64_t before;  // tiles of the sequences before `seq`, one head
};
template <class T>
__device__ Line measure_line(const Attention<T>& a, int64_t seq) {
  auto add = [](int64_t x, int64_t y) { return x + y; };
  Line mine{0, 0};
  for (int64_t s = threadIdx.x; s < a.num_seqs; s += kThreads) {
    const int tiles = tiles_of(a, s);
    mine.total += tiles;
    if (s < seq) mine.before += tiles;
  }
  mine.total = block_reduce(mine.total, int64_t{0}, add);
  mine.before = block_reduce(mine.before, int64_t{0}, add);
  return mine;
}

// The sequence in which tile `position` of the line lies, and the tiles of the sequences before it.
struct Place {
  int64_t seq, before;
};
template <class T>
__device__ Place find_place(const Attention<T>& a, int head_tiles, int64_t position) {
  __shared__ Place found;
  __shared__ int64_t warp_sums[kWarps];
  int64_t before_chunk = 0;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t chunk = 0; chunk < a.num_seqs; chunk += kThreads) {
    const int64_t seq = chunk + threadIdx.x;
    const int64_t tiles = seq < a.num_seqs ? int64_t{tiles_of(a, seq)} * head_tiles : 0;
    int64_t sum = tiles;  // inclusive over the warp
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int64_t other = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (lane == kWarp - 1) warp_sums[warp] = sum;
    __syncthreads();
    int64_t before = before_chunk + sum - tiles;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += warp_sums[w];
      before_chunk += warp_sums[w];
    }
    if (before <= position && position < before + tiles) found = {seq, before};
    __syncthreads();
    if (position < before_chunk) break;
  }
  return found;
}

// Block b has tiles [b * all / blocks, (b + 1) * all / blocks) of the line. Pieces come in the order of the
// line, and going from one to the next either the block or the head advances, so b + head names a piece's
// place in the scratch without a gap or a clash.
__device__ int64_t cut(int64_t block, int64_t all, int64_t blocks) {
  return block * all / blocks;
}
// Every block that takes part has at least one tile, so the parts of a head lie side by side.
__device__ int64_t used_blocks(int64_t launched, int64_t all) {
  return launched < all ? launched : all;
}

template <int dim, class T>
__global__ void __launch_bounds__(kThreads, dim == 256 ? 1 : 3)
    attention_split(Attention<T> a, PartialResult<dim>* partial) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* of_warps = reinterpret_cast<PartialResult<dim>*>(shared);
  const int head_tiles = a.kv_heads * ceil_div(a.group, kHeads);
  const int64_t all = measure_line(a, 0).total * head_tiles, blocks = used_blocks(gridDim.x, all);
  if (blockIdx.x >= blocks) return;
  int64_t position = cut(blockIdx.x, all, blocks);
  const int64_t end = cut(int64_t{blockIdx.x} + 1, all, blocks);
  Place place = find_place(a, head_tiles, position);
  while (position < end) {
    const int tiles = tiles_of(a, place.seq);
    if (position >= place.before + int64_t{tiles} * head_tiles) {
      place.before += int64_t{tiles} * head_tiles;
      ++place.seq;
      continue;
    }
    const auto head_tile = static_cast<int>((position - place.before) / tiles);
    const auto first = static_cast<int>((position - place.before) % tiles);
    const auto last = static_cast<int>(first + end - position < tiles ? first + end - position : tiles);
    attend_piece<dim>(a, {place.seq, head_tile, first, last}, of_warps);
    const int heads = heads_in_tile(a, head_tile);
    if (last - first == tiles) {
      merge_results<dim>(of_warps, kWarps, heads, true,
                         Writer<T>{a, a.query_start_loc[place.seq], first_head(a, head_tile)});
    } else {
      PartialResult<dim>& to = partial[blockIdx.x + place.seq * head_tiles + head_tile];
      merge_results<dim>(of_warps, kWarps, heads, false,
                         [&](int head, int element, float value, float largest, float sum) {
                           to.out[head][element] = value;
                           if (element == 0) {
                             to.largest[head] = largest;
                             to.sum[head] = sum;
                           }
                         });
    }
    __syncthreads();  // of_warps is free again
    position += last - first;
  }
}

template <int dim, class T>
__global__ void __launch_bounds__(kThreads)
    attention_merge(Attention<T> a, const PartialResult<dim>* partial, int64_t launched) {
  const int head_tiles = a.kv_heads * ceil_div(a.group, kHeads);
  const int64_t seq = blockIdx.x / head_tiles;
  const int head_tile = static_cast<int>(blockIdx.x % head_tiles);
  const int tiles = tiles_of(a, seq);
  if (tiles == 0) return;
  const Line line = measure_line(a, seq);
  const int64_t all = line.total * head_tiles, blocks = used_blocks(launched, all);
  const int64_t first = line.before * head_tiles + int64_t{head_tile} * tiles, last = first + tiles - 1;
  // The blocks that have this head's first and last tile: the largest b with cut(b) <= tile.
  auto block_of = [&](int64_t tile) { return ((tile + 1) * blocks - 1) / all; };
  const int64_t first_block = block_of(first), last_block = block_of(last);
  if (first_block == last_block) return;  // one block had it all and has written the result
  merge_results<dim>(partial + first_block + blockIdx.x, static_cast<int>(last_block - first_block + 1),
                     heads_in_tile(a, head_tile), true,
                     Writer<T>{a, a.query_start_loc[seq], first_head(a, head_tile)});
}

template <int dim, class T>
void launch(const OpContext& ctx, const Attention<T>& a, bool split) {
  constexpr int kShared = kWarps * static_cast<int>(sizeof(PartialResult<dim>));
  const int64_t heads = a.num_seqs * a.kv_heads * ceil_div(a.group, kHeads);
  if (!split) {
    LADDER_CUDA_CHECK(cudaFuncSetAttribute(attention_grouped<dim, T>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    attention_grouped<dim><<<static_cast<unsigned>(heads), kThreads, kShared, stream_of(ctx)>>>(a);
    LADDER_CUDA_CHECK(cudaGetLastError());
    return;
  }
  const int64_t blocks = int64_t{dim == 256 ? 1 : 3} * ctx.cuda->num_multiprocessors();
  ArenaScope scope(*ctx.arena);
  constexpr int64_t kFloats = sizeof(PartialResult<dim>) / sizeof(float);
  auto* partial =
      static_cast<PartialResult<dim>*>(ctx.arena->take({blocks + heads, kFloats}, DType::f32).raw());
  LADDER_CUDA_CHECK(
      cudaFuncSetAttribute(attention_split<dim, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  attention_split<dim><<<static_cast<unsigned>(blocks), kThreads, kShared, stream_of(ctx)>>>(a, partial);
  LADDER_CUDA_CHECK(cudaGetLastError());
  attention_merge<dim><<<static_cast<unsigned>(heads), kThreads, 0, stream_of(ctx)>>>(a, partial, blocks);
  LADDER_CUDA_CHECK(cudaGetLastError());
}

bool takes_decode(const PagedAttentionArgs& args) {
  const int64_t dim = args.q.dim(2);
  return dtype_size(args.q.dtype()) == 2 && (dim == 64 || dim == 128 || dim == 256) &&
         args.cache.v.dim(3) == dim && args.cache.block_size() % 16 == 0 && is_packed(args.q) &&
         is_packed(args.cache.k) && is_packed(args.cache.v);
}

}  // namespace

void attention_decode(const OpContext& ctx, const PagedAttentionArgs& args, bool split) {
  with_cuda_type(args.q.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const auto a = attention_call<T>(args);
      if (a.k_dim == 64)
        launch<64>(ctx, a, split);
      else if (a.k_dim == 128)
        launch<128>(ctx, a, split);
      else
        launch<256>(ctx, a, split);
    }
  });
}

void paged_attention_cuda_grouped(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens > 0) attention_decode(ctx, args, false);
}
bool paged_attention_takes_grouped(const PagedAttentionArgs& args) {
  return args.metadata.max_query_len <= 1 && takes_decode(args);
}

void paged_attention_cuda_split(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  attention_decode(ctx, args, true);
  if (args.metadata.max_query_len > 1) attention_prefill(ctx, args, false);
}
bool paged_attention_takes_split(const PagedAttentionArgs& args) {
  return takes_decode(args) && (args.metadata.max_query_len <= 1 || paged_attention_takes_tensor_core(args));
}

}  // namespace ladder
