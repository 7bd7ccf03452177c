// Attention of many query rows (prompts and chunks of prompts): bound by arithmetic.
#include "step1_layers/attention/paged_attention_cuda.cuh"
#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_core.cuh"

namespace ladder {

namespace {

// tensor_core (sm_80)
// bf16 or f16, head size 64 or 128, any block size, rows in whole 16-byte packs. After FlashAttention-2 (Dao,
// 2023, arXiv 2307.08691): a block computes 128 query rows of one head and goes through the keys in tiles of
// 64, which all its rows share, where the naive rung reads every key again for every row. Scores, softmax and
// the weighted sum stay in the registers of the warp that owns the rows (32 of them, so that every fragment
// of K and V that comes from shared memory is used twice); the scores' accumulators are, element for element,
// the A operand of the second product. Keys and values come through the block table by asynchronous copies,
// the next tile under way while this one is computed. Tiles start at multiples of 64 and go upwards, and a
// masked tile changes nothing, so a row's result depends on its position alone: batch invariant.
constexpr int kWarps = 4, kThreads = kWarps * kWarp, kRows = 128, kKeys = 64;
constexpr int kRowTiles = kRows / kWarps / 16, kKeyTiles = kKeys / 8;

// A row of `dim` elements is cut into parts of 64 elements, 128 bytes, each a swizzled tile of its own.
template <int rows>
__device__ uint32_t place(int row, int chunk) {
  return static_cast<uint32_t>(chunk / 8 * rows * 128) + swizzled(row, chunk % 8);
}

// One instruction; results below the smallest normal number become 0.
__device__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int dim, class T>
__global__ void __launch_bounds__(kThreads, 2)
    attention_tensor_core(Attention<T> a, int row_blocks, bool with_single) {
  constexpr int kChunks = dim / 8, kTileBytes = kKeys * dim * 2, kDimTiles = dim / 8;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t q_tile = shared_address(shared), kv_tiles = q_tile + kRows * dim * 2;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;

  // The last rows of a prompt see the most keys: their blocks start first. Heads that share keys are
  // neighbours, so that what one reads is in L2 for the others.
  const int head = static_cast<int>(blockIdx.x % a.heads), kv_head = head / a.group;
  const int64_t seq = blockIdx.x / a.heads % a.num_seqs;
  const int64_t row_block = row_blocks - 1 - blockIdx.x / a.heads / a.num_seqs;
  const int first_row = static_cast<int>(row_block * kRows);
  const int query_len = a.query_len(seq), num_keys = a.seq_lens[seq];
  if (first_row >= query_len || (query_len == 1 && !with_single)) return;
  const int first_position = num_keys - query_len + first_row;  // of the block's first row
  const int rows = query_len - first_row < kRows ? query_len - first_row : kRows;
  const int keys = first_position + rows, tiles = ceil_div(keys, kKeys);  // that any of its rows sees
  const int64_t first_token = a.query_start_loc[seq] + first_row;
  const int32_t* table = a.block_tables + seq * a.table_stride;

  const T* q = a.q + first_token * a.q_token + head * a.q_head;
#pragma unroll
  for (int step = 0; step < kRows * kChunks / kThreads; ++step) {
    const int index = step * kThreads + threadIdx.x, row = index / kChunks, chunk = index % kChunks;
    copy_async(q_tile + place<kRows>(row, chunk), row < rows ? q + row * a.q_token + chunk * 8 : q,
               row < rows);
  }
  auto fetch = [&](int tile) {
    if (tile < tiles) {
      const uint32_t k_to = kv_tiles + tile % 2 * 2 * kTileBytes, v_to = k_to + kTileBytes;
      const T *k = a.k + kv_head * a.k_head, *v = a.v + kv_head * a.v_head;
#pragma unroll
      for (int step = 0; step < kKeys * kChunks / kThreads; ++step) {
        const int index = step * kThreads + threadIdx.x, row = index / kChunks, chunk = index % kChunks;
        const int key = tile * kKeys + row;
        const bool valid = key < keys;
        const int page = a.block_shift >= 0 ? key >> a.block_shift : key / a.block_size;
        const int64_t block = valid ? table[page] : 0;
        const int slot = valid ? key - page * a.block_size : 0;
        copy_async(k_to + place<kKeys>(row, chunk), k + block * a.k_block + slot * a.k_slot + chunk * 8,
                   valid);
        copy_async(v_to + place<kKeys>(row, chunk), v + block * a.v_block + slot * a.v_slot + chunk * 8,
                   valid);
      }
    }
    commit_copies();
  };

  float out[kRowTiles][kDimTiles][4] = {};
  float largest[kRowTiles][2], sum[kRowTiles][2] = {};  // of rows g and g + 8 of each tile of 16
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) largest[i][0] = largest[i][1] = -INFINITY;

  fetch(0);
  for (int tile = 0; tile < tiles; ++tile) {
    fetch(tile + 1);
    wait_copies<1>();
    __syncthreads();
    const uint32_t k_tile = kv_tiles + tile % 2 * 2 * kTileBytes, v_tile = k_tile + kTileBytes;

    float scores[kRowTiles][kKeyTiles][4] = {};
#pragma unroll
    for (int step = 0; step < dim / 16; ++step) {
      uint32_t queries[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        load_matrices(queries[i],
                      q_tile + place<kRows>((warp * kRowTiles + i) * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < kKeyTiles / 2; ++j) {
        uint32_t k[4];
        load_matrices(k, k_tile + place<kKeys>(j * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          mma_16x8x16<T>(scores[i][2 * j], queries[i], {k[0], k[1]});
          mma_16x8x16<T>(scores[i][2 * j + 1], queries[i], {k[2], k[3]});
        }
      }
    }

    if ((tile + 1) * kKeys > first_position + 1) {  // not every row sees every key of the tile
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int position = first_position + (warp * kRowTiles + i) * 16 + e / 2 * 8 + g;
            if (tile * kKeys + j * 8 + 2 * t + e % 2 > position) scores[i][j][e] = -INFINITY;
          }
    }
    uint32_t weights[kRowTiles][kKeyTiles][2];  // rows g and g + 8, two keys each
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      float correction[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float tile_largest = -INFINITY;
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j)
          tile_largest = fmaxf(tile_largest, fmaxf(scores[i][j][2 * half], scores[i][j][2 * half + 1]));
        // Every row sees key 0, so after the first tile its largest score is finite.
        const float new_largest = fmaxf(largest[i][half], warp_max<4>(tile_largest) * a.scale);
        correction[half] = exp2_fast(largest[i][half] - new_largest);
        largest[i][half] = new_largest;
        float tile_sum = 0;
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
          const float p0 = exp2_fast(fmaf(scores[i][j][2 * half], a.scale, -new_largest));
          const float p1 = exp2_fast(fmaf(scores[i][j][2 * half + 1], a.scale, -new_largest));
          tile_sum += p0 + p1;
          weights[i][j][half] = pack_pair<T>(p0, p1);
        }
        sum[i][half] = sum[i][half] * correction[half] + tile_sum;
      }
      // The largest score seldom changes after the first tiles, and a factor of one changes nothing.
      if (__any_sync(kAllLanes, correction[0] != 1.0f || correction[1] != 1.0f)) {
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d)
#pragma unroll
          for (int e = 0; e < 4; ++e) out[i][d][e] *= correction[e / 2];
      }
    }

#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
#pragma unroll
      for (int d = 0; d < kDimTiles / 2; ++d) {
        uint32_t v[4];
        load_matrices<true>(v, v_tile + place<kKeys>(step * 16 + lane % 16, d * 2 + lane / 16));
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          const uint32_t p[4] = {weights[i][2 * step][0], weights[i][2 * step][1],
                                 weights[i][2 * step + 1][0], weights[i][2 * step + 1][1]};
          mma_16x8x16<T>(out[i][2 * d], p, {v[0], v[1]});
          mma_16x8x16<T>(out[i][2 * d + 1], p, {v[2], v[3]});
        }
      }
    __syncthreads();  // the tile's place may be refilled
  }

#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = warp_sum<4>(sum[i][half]);
      const int row = (warp * kRowTiles + i) * 16 + half * 8 + g;
      if (row >= rows) continue;
      T* to = a.out + (first_token + row) * a.out_token + head * a.out_head + 2 * t;
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d)
        *reinterpret_cast<uint32_t*>(to + d * 8) =
            pack_pair<T>(out[i][d][2 * half] / total, out[i][d][2 * half + 1] / total);
      if (t == 0) a.store_lse(first_token + row, head, largest[i][half], total);
    }
}

template <int dim, class T>
void launch(const OpContext& ctx, const Attention<T>& a, bool with_single) {
  constexpr int kShared = (kRows + 4 * kKeys) * dim * 2;
  auto kernel = attention_tensor_core<dim, T>;
  LADDER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const int64_t row_blocks = ceil_div<int64_t>(a.max_query_len, kRows);
  kernel<<<static_cast<unsigned>(row_blocks * a.num_seqs * a.heads), kThreads, kShared, stream_of(ctx)>>>(
      a, static_cast<int>(row_blocks), with_single);
  LADDER_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void attention_prefill(const OpContext& ctx, const PagedAttentionArgs& args, bool with_single) {
  with_cuda_type(args.q.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const auto a = attention_call<T>(args);
      if (a.k_dim == 64)
        launch<64>(ctx, a, with_single);
      else
        launch<128>(ctx, a, with_single);
    }
  });
}

void paged_attention_cuda_tensor_core(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens > 0) attention_prefill(ctx, args, true);
}

bool paged_attention_takes_tensor_core(const PagedAttentionArgs& args) {
  const int64_t dim = args.q.dim(2);
  return dtype_size(args.q.dtype()) == 2 && (dim == 64 || dim == 128) && args.cache.v.dim(3) == dim &&
         is_packed(args.q) && is_packed(args.cache.k) && is_packed(args.cache.v) && is_packed(args.out);
}

}  // namespace ladder
