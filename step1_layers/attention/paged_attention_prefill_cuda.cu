// Attention of many query rows (prompts and chunks of prompts): bound by arithmetic.

#include "step1_layers/attention/paged_attention_prefill_tiles_cuda.cuh"
#include "step1_layers/core/packed.h"

namespace ladder {

namespace {

// tensor_core (sm_80)
// bf16 or f16, head size 64, 128 or 256, any block size, rows in whole 16-byte packs. After FlashAttention-2
// (Dao, 2023, arXiv 2307.08691): a block computes 128 packed query rows of one key/value head and goes
// through the keys in tiles of 64, which all its rows share, where the rung below reads every key again for a
// few rows. Scores, softmax and the weighted sum stay in the registers of the warp that owns the rows (32 of
// them where they fit, so that every fragment of K and V that comes from shared memory is used twice); the
// scores' accumulators are, element for element, the A operand of the second product. Keys and values come
// through the block table by asynchronous copies, the next tile in flight while this one is computed, its
// block ids read a tile earlier still. Tiles start at multiples of 64 and go upwards, and a masked tile
// changes nothing, so where keys are not cut into parts a row's result depends on its position alone: batch
// invariant.
template <int dim, class T>
struct NumberTiles {
  using S = TileShape<dim>;
  static constexpr int kKeys = kTileKeys, kChunks = S::kChunks, kStage = 2 * S::kTileBytes;

  const Attention<T>& a;
  const PrefillLine& line;
  const PrefillItem& item;
  const uint32_t kv_tiles;
  // Each lane finds where one of the rows stands that its warp copies; the others get it by a shuffle. In
  // units of 16 bytes, which fit 32 bits.
  const int32_t* table;
  int my_row, copy_row, chunk;
  const T *k_chunk, *v_chunk;
  int block;

  __device__ NumberTiles(const Attention<T>& a, const PrefillLine& line, const PrefillItem& item,
                         uint32_t kv_tiles)
      : a(a), line(line), item(item), kv_tiles(kv_tiles), table(a.block_tables + item.seq * a.table_stride) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    my_row = lane / S::kWarpRows * S::kCopyRows + warp * S::kWarpRows + lane % S::kWarpRows;
    chunk = threadIdx.x % kChunks;
    copy_row = threadIdx.x / kChunks;
    k_chunk = a.k + item.kv_head * a.k_head + chunk * 8;
    v_chunk = a.v + item.kv_head * a.v_head + chunk * 8;
  }
  __device__ int find_block(int tile) const {
    const int key = tile * kKeys + my_row;
    return tile < item.end && key < item.keys ? table[line.block_size(key)] : 0;
  }
  __device__ void fetch(int tile) const {
    const int lane = threadIdx.x % kWarp;
    if (tile < item.end) {
      const uint32_t to = kv_tiles + tile % 2 * kStage + place<kKeys>(copy_row, chunk);
      const int left = item.keys - tile * kKeys - copy_row;  // keys from the thread's first on
      const int key = tile * kKeys + my_row, slot = key - line.block_size(key) * a.block_size;
      const uint32_t k_at = static_cast<uint32_t>(block) * static_cast<uint32_t>(a.k_block / 8) +
                            static_cast<uint32_t>(slot) * static_cast<uint32_t>(a.k_slot / 8);
      const uint32_t v_at = static_cast<uint32_t>(block) * static_cast<uint32_t>(a.v_block / 8) +
                            static_cast<uint32_t>(slot) * static_cast<uint32_t>(a.v_slot / 8);
#pragma unroll
      for (int step = 0; step < kKeys / S::kCopyRows; ++step) {
        const int from = step * S::kWarpRows + lane / kChunks;
        const bool valid = step * S::kCopyRows < left;
        const uint32_t k_from = __shfl_sync(kAllLanes, k_at, from),
                       v_from = __shfl_sync(kAllLanes, v_at, from);
        copy_async(to + step * S::kCopyRows * 128, k_chunk + uint64_t{valid ? k_from : 0} * 8, valid);
        copy_async(to + S::kTileBytes + step * S::kCopyRows * 128, v_chunk + uint64_t{valid ? v_from : 0} * 8,
                   valid);
      }
    }
    commit_copies();
  }

  __device__ void start() {
    block = find_block(item.begin);
    fetch(item.begin);
    block = find_block(item.begin + 1);
  }
  __device__ uint32_t take(int tile) {
    wait_copies<0>();
    __syncthreads();  // the tile is there, and all are done with the one before
    fetch(tile + 1);
    block = find_block(tile + 2);
    return static_cast<uint32_t>(tile % 2 * kStage);
  }
};

}  // namespace

void attention_prefill_tensor_core(const OpContext& ctx, const PagedAttentionArgs& args, bool with_single) {
  with_cuda_type(args.q.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const auto a = attention_call<T>(args);
      const int64_t max_seq_len = args.metadata.max_seq_len;
      if (a.k_dim == 64)
        launch_tensor_core<64, NumberTiles<64, T>>(ctx, a, max_seq_len, with_single);
      else if (a.k_dim == 128)
        launch_tensor_core<128, NumberTiles<128, T>>(ctx, a, max_seq_len, with_single);
      else
        launch_tensor_core<256, NumberTiles<256, T>>(ctx, a, max_seq_len, with_single);
    }
  });
}

bool fits_shared_memory(int64_t bytes) {
  static const int limit = [] {
    int device = 0, value = 0;
    LADDER_CUDA_CHECK(cudaGetDevice(&device));
    LADDER_CUDA_CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return value;
  }();
  return bytes <= limit;
}

void attention_prefill(const OpContext& ctx, const PagedAttentionArgs& args, bool with_single) {
  if (ctx.device_arch >= 90 && paged_attention_takes_wgmma(args))
    attention_prefill_wgmma(ctx, args, with_single);
  else
    attention_prefill_tensor_core(ctx, args, with_single);
}

void paged_attention_cuda_tensor_core(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens > 0) attention_prefill_tensor_core(ctx, args, true);
}

bool paged_attention_takes_tensor_core(const PagedAttentionArgs& args) {
  const int64_t dim = args.q.dim(2);
  // Caches are addressed in units of 16 bytes, in 32 bits.
  auto fits = [](const Tensor& cache) { return cache.dim(0) * cache.stride(0) / 8 < int64_t{1} << 32; };
  return dtype_size(args.q.dtype()) == 2 &&
         (dim == 64 || dim == 128 || (dim == 256 && fits_shared_memory(TileShape<256>::kShared + 1024))) &&
         args.cache.v.dim(3) == dim && is_packed(args.q) && is_packed(args.cache.k) &&
         is_packed(args.cache.v) && is_packed(args.out) && fits(args.cache.k) && fits(args.cache.v);
}

}  // namespace ladder
