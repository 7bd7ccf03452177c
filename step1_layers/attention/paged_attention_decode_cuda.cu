// Attention of single query rows: every key is read once, so its speed is that of memory.
#include "step1_layers/attention/paged_attention_decode_cuda.cuh"
#include "step1_layers/core/packed.h"

namespace ladder {

namespace {

// grouped (sm_80)
// bf16 or f16, one query row per sequence, head size 64, 128 or 256, pages of 16, 32, 64, ... slots. The
// query heads that share a key/value head are packed into one tensor-core tile: keys are read once for all of
// them, and the arithmetic is a few mma instead of a shuffle reduction per key and head. A block takes one
// sequence and key/value head (eight query heads at most), each of its four warps sixteen keys of every 64.
// Both products run transposed, with keys and values as the A operand, and the free choice of the order in
// which mma sums and of the rows it computes makes every fragment come straight from global memory in 16-byte
// loads, without shared memory; a warp has 8 KB in flight (head size 128).
//
//   scores^T [16 keys, 8 heads] = K [16 keys, dim] * q^T [dim, 8 heads]
//   out^T    [dim, 8 heads]    += V^T [dim, 16 keys] * p^T [16 keys, 8 heads]

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kTileKeys = kWarps * kStepKeys;

// Element e (0 to 7) of packs a and b as a pair.
__device__ uint32_t pair_of(const uint4& a, const uint4& b, int e) {
  const uint32_t words_a[4] = {a.x, a.y, a.z, a.w}, words_b[4] = {b.x, b.y, b.z, b.w};
  return __byte_perm(words_a[e / 2], words_b[e / 2], e % 2 == 0 ? 0x5410 : 0x7632);
}

}  // namespace

// >>> task 1.7.cuda.grouped: decode, the query heads of a group in one tile of the tensor cores
namespace {

template <int dim, class T>
__global__ void __launch_bounds__(kThreads, dim == 256 ? 1 : 3) attention_grouped(Attention<T> a) {
  constexpr int kQChunks = dim / 32, kVChunks = dim / 64, kOutTiles = dim / 16;
  __shared__ WarpResult<dim> results[kWarps];
  allow_next_kernel();
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int head_tiles = head_tiles_of(a), head_tile = static_cast<int>(blockIdx.x % head_tiles);
  const int64_t seq = blockIdx.x / head_tiles;
  const int num_keys = num_decode_keys(a, seq);
  if (num_keys == 0) return;
  const int kv_head = head_tile / ceil_div(a.group, kTileHeads);
  const int head0 = first_head(a, head_tile), heads = heads_in_tile(a, head_tile);
  const int32_t* table = a.block_tables + seq * a.table_stride;
  const int64_t token = a.query_start_loc[seq];

  uint4 q[kQChunks];
  const T* q_row = a.q + token * a.q_token + (head0 + g) * a.q_head;
#pragma unroll
  for (int c = 0; c < kQChunks; ++c)
    q[c] = g < heads ? *reinterpret_cast<const uint4*>(q_row + c * 32 + t * 8) : uint4{0, 0, 0, 0};

  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // of heads 2t and 2t + 1
  float out[kOutTiles][4] = {};
  int key = warp * kStepKeys;
  int block = key < num_keys ? table[key >> a.block_shift] : 0;
  for (; key < num_keys; key += kTileKeys) {
    const int slot = key & (a.block_size - 1);
    const T* k_tile = a.k + block * a.k_block + slot * a.k_slot + kv_head * a.k_head;
    const T* v_tile = a.v + block * a.v_block + slot * a.v_slot + kv_head * a.v_head;
    if (key + kTileKeys < num_keys) block = table[(key + kTileKeys) >> a.block_shift];
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
    weigh_step(s, valid, a.scale, largest, sum, correction);
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

  store_state(largest, sum, results[warp]);
#pragma unroll
  for (int tile = 0; tile < kOutTiles; ++tile)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int c = dim == 64 ? 0 : tile / 8 * 2, low = dim == 64 ? tile : tile % 8;
      const int element = e < 2       ? c * 64 + g * 8 + low
                          : dim == 64 ? g * 8 + low + 4
                                      : c * 64 + 64 + g * 8 + low;
      results[warp].out[2 * t + e % 2][element] = out[tile][e];
    }
  __syncthreads();
  for_each_quad<dim, kWarps>(heads, [&](int head, int element) {
    store_result(a, token, head0 + head, element,
                 merge_warps<kWarps>(
                     [&](int i) -> auto& { return results[i]; }, head, element));
  });
}

}  // namespace

void paged_attention_cuda_grouped(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  with_decode_call(args, [&]<int dim, class T>(const Attention<T>& a) {
    const int64_t blocks = a.num_seqs * a.kv_heads * ceil_div(a.group, kTileHeads);
    launch_kernel(ctx, attention_grouped<dim, T>, static_cast<unsigned>(blocks), kThreads, 0, a);
  });
}

// <<< task 1.7.cuda.grouped

bool paged_attention_takes_decode(const PagedAttentionArgs& args) {
  const int64_t dim = args.q.dim(2);
  return dtype_size(args.q.dtype()) == 2 && (dim == 64 || dim == 128 || dim == 256) &&
         args.cache.v.dim(3) == dim && args.cache.block_size() % kStepKeys == 0 &&
         std::has_single_bit(static_cast<uint64_t>(args.cache.block_size())) && is_packed(args.q) &&
         is_packed(args.cache.k) && is_packed(args.cache.v);
}
bool paged_attention_takes_grouped(const PagedAttentionArgs& args) {
  return args.metadata.max_query_len <= 1 && paged_attention_takes_decode(args);
}

}  // namespace ladder
