// Attention of many query rows over codes: numbers again, a tile at a time.
#include <cuda_fp8.h>

#include "step1_layers/attention/paged_attention_of_codes_cuda.cuh"
#include "step1_layers/attention/paged_attention_prefill_tiles_cuda.cuh"
#include "step1_layers/core/packed.h"

namespace ladder {

namespace {

// tensor_core (sm_80)
// As the rung of paged_attention of this name: bf16 or f16, head size 64, 128 or 256, any block size. A tile of 64 keys serves
// 128 query rows, so its codes are worth becoming numbers of the model's type once, in shared memory; the products do not know.
// Codes come by asynchronous copies while the tile before is computed. A thread turns into numbers what it has copied itself, so
// where codes wait has no layout: each thread has pieces of 16 bytes of its own. Tiles and sums are those of the other rung:
// batch invariant where keys are not cut into parts.
template <int dim, class T>
struct CodeTiles {
  using S = TileShape<dim>;
  static constexpr int kRowThreads =
      S::kThreads / kTileKeys;                          // that share a key's row of codes, and its value's
  static constexpr int kPieceBytes = S::kThreads * 16;  // one piece of every thread
  static constexpr int kMaxPieces = dim / 16 / kRowThreads;  // of a thread, of keys; as many are of values
  static_assert(2 * kMaxPieces * kPieceBytes + kPieceBytes <= 2 * S::kTileBytes);

  struct Call : AttentionOfCodes<T> {
    KvCacheDType kept_as;
  };

  const Call& a;
  const PrefillLine& line;
  const PrefillItem& item;
  const uint32_t kv_tiles;
  const int32_t* table;
  uint32_t waiting;  // this thread's first piece of the keys; those of the values follow, then both scales
  int row, part;     // of the tile; of the row's threads
  int pieces;        // of 16 bytes, that this thread has of a row
  int block;

  __device__ CodeTiles(const Call& a, const PrefillLine& line, const PrefillItem& item, uint32_t kv_tiles)
      : a(a),
        line(line),
        item(item),
        kv_tiles(kv_tiles),
        table(a.block_tables + item.seq * a.table_stride),
        waiting(kv_tiles + 2 * S::kTileBytes + threadIdx.x * 16),
        row(static_cast<int>(threadIdx.x) / kRowThreads),
        part(static_cast<int>(threadIdx.x) % kRowThreads),
        pieces(has_nibbles() ? kMaxPieces / 2 : kMaxPieces) {}

  __device__ bool has_nibbles() const { return a.kept_as == KvCacheDType::int4; }
  __device__ uint32_t key_piece(int i) const { return waiting + i * kPieceBytes; }
  __device__ uint32_t value_piece(int i) const { return waiting + (kMaxPieces + i) * kPieceBytes; }
  __device__ uint32_t scales() const { return waiting + 2 * kMaxPieces * kPieceBytes; }

  __device__ int find_block(int tile) const {
    const int key = tile * kTileKeys + row;
    return tile < item.end && key < item.keys ? table[line.block_size(key)] : 0;
  }
  // Zeros past the last key: its codes may be NaN.
  __device__ void fetch(int tile) const {
    if (tile < item.end) {
      const int key = tile * kTileKeys + row;
      const bool valid = key < item.keys;
      const int64_t slot = valid ? key - line.block_size(key) * a.block_size : 0;
      const uint8_t* k = a.k_codes + block * a.k_block + slot * a.k_slot + item.kv_head * a.k_head;
      const uint8_t* v = a.v_codes + block * a.v_block + slot * a.v_slot + item.kv_head * a.v_head;
      for (int i = 0; i < pieces; ++i) {
        const int at = (i * kRowThreads + part) * 16;
        copy_async(key_piece(i), k + at, valid);
        copy_async(value_piece(i), v + at, valid);
      }
      const int64_t scale = (block * int64_t{a.block_size} + slot) * a.kv_heads + item.kv_head;
      copy_eight(scales(), a.k_scales + scale, valid);
      copy_eight(scales() + 8, a.v_scales + scale, valid);
    }
    commit_copies();
  }
  __device__ static void copy_eight(uint32_t to, const float2* from, bool valid) {
    LADDER_SM80_ASM("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0)
                    : "memory");
  }

  // Two numbers of the model's type, of the codes' numbers.
  __device__ static uint32_t numbers(float low, float high, float scale, float lowest) {
    return pack_pair<T>(fmaf(low, scale, lowest), fmaf(high, scale, lowest));
  }
  // Eight numbers, of eight bytes of codes or the lower of them in nibbles.
  __device__ uint4 eight_numbers(uint32_t low, uint32_t high, float scale, float lowest) const {
    constexpr uint32_t kMagic = 0x4b000000;  // 2^23, whose last bits are a small integer added to it
    uint4 result;
    uint32_t* to = &result.x;
    if (has_nibbles()) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        to[i] = numbers(__uint_as_float((low >> 8 * i & 15) | kMagic) - 0x1p23f,
                        __uint_as_float((low >> (8 * i + 4) & 15) | kMagic) - 0x1p23f, scale, lowest);
    } else if (a.kept_as == KvCacheDType::fp8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t two = (i < 2 ? low : high) >> i % 2 * 16 & 0xffff;
        const float2 x = __half22float2(
            __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3)));
        to[i] = numbers(x.x, x.y, scale, lowest);
      }
    } else {
      constexpr float kZero = 0x1p23f + 128;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t word = (i < 2 ? low : high) ^ 0x80808080u;
        to[i] = numbers(__uint_as_float(__byte_perm(word, kMagic, i % 2 == 0 ? 0x7440 : 0x7442)) - kZero,
                        __uint_as_float(__byte_perm(word, kMagic, i % 2 == 0 ? 0x7441 : 0x7443)) - kZero,
                        scale, lowest);
      }
    }
    return result;
  }
  // A piece's numbers to their place in a tile of the other rung's layout.
  __device__ void unpack(uint32_t piece, int i, float2 scale, uint32_t tile) const {
    const uint4 codes = load_shared(piece);
    const int at = i * kRowThreads + part;  // of 16 bytes of codes, in the row
    const auto store = [&](int chunk, const uint4& x) {
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(tile + place<kTileKeys>(row, chunk)),
                   "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                   : "memory");
    };
    if (has_nibbles()) {
      store(4 * at, eight_numbers(codes.x, 0, scale.x, scale.y));
      store(4 * at + 1, eight_numbers(codes.y, 0, scale.x, scale.y));
      store(4 * at + 2, eight_numbers(codes.z, 0, scale.x, scale.y));
      store(4 * at + 3, eight_numbers(codes.w, 0, scale.x, scale.y));
    } else {
      store(2 * at, eight_numbers(codes.x, codes.y, scale.x, scale.y));
      store(2 * at + 1, eight_numbers(codes.z, codes.w, scale.x, scale.y));
    }
  }

  __device__ void start() {
    block = find_block(item.begin);
    fetch(item.begin);
    block = find_block(item.begin + 1);
  }
  __device__ uint32_t take(int tile) {
    wait_copies<0>();
    const uint4 both = load_shared(scales());
    const float2 k_scale{__uint_as_float(both.x), __uint_as_float(both.y)},
        v_scale{__uint_as_float(both.z), __uint_as_float(both.w)};
    __syncthreads();  // all are done with the tile before
    for (int i = 0; i < pieces; ++i) {
      unpack(key_piece(i), i, k_scale, kv_tiles);
      unpack(value_piece(i), i, v_scale, kv_tiles + S::kTileBytes);
    }
    __syncthreads();  // the tile is there
    fetch(tile + 1);
    block = find_block(tile + 2);
    return 0;
  }
};

template <int dim, class T>
void launch(const OpContext& ctx, const PagedAttentionArgs& args, bool with_single) {
  using Tiles = CodeTiles<dim, T>;
  const typename Tiles::Call a{attention_of_codes_call<T>(args), args.cache.kept_as};
  launch_tensor_core<dim, Tiles>(ctx, a, args.metadata.max_seq_len, with_single);
}

}  // namespace

void attention_of_codes_prefill(const OpContext& ctx, const PagedAttentionArgs& args, bool with_single) {
  with_cuda_type(args.q.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      if (args.q.dim(2) == 64)
        launch<64, T>(ctx, args, with_single);
      else if (args.q.dim(2) == 128)
        launch<128, T>(ctx, args, with_single);
      else
        launch<256, T>(ctx, args, with_single);
    }
  });
}

void paged_attention_of_codes_cuda_tensor_core(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens > 0) attention_of_codes_prefill(ctx, args, true);
}

bool paged_attention_of_codes_takes_tensor_core(const PagedAttentionArgs& args) {
  const int64_t dim = args.q.dim(2);
  return dtype_size(args.q.dtype()) == 2 &&
         (dim == 64 || dim == 128 || (dim == 256 && fits_shared_memory(TileShape<256>::kShared + 1024))) &&
         args.out.dim(2) == dim && is_packed(args.q) && is_packed(args.out) && is_packed(args.cache.k) &&
         is_packed(args.cache.v);
}

}  // namespace ladder
