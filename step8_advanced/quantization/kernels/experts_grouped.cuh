#pragma once
// The experts of many tokens each, in codes. A file per type of codes launches it, as they compile slowly.
//
// grouped (sm_90a): what `stream` takes, hidden size and width in whole 64s. A block multiplies a tile of 64 or 128 tokens of one expert
// with 256 rows of its matrix. The roles of dense grouped experts are turned round: the weight is the operand that wgmma takes from
// registers, since that is where codes become numbers, and tokens are the one in shared memory.
//
//   for each 64 columns:
//     weights of a warp's two tiles of 16 rows: half a record each -> numbers * scale, rounded to x's dtype -> operand a, 4 steps of 16
//     tokens: shared memory -> operand b
//     sums += a * b
//
// - A record's lane has the operands of its mma already, but of columns in an order of its own: of 32 columns lane t has eight
//   neighbours. So tokens are stored in that order before (permute_columns): word i of pack t goes to word t of pack i.
// - Tensor cores multiply one part while the next one's codes become numbers: 64 x 256 weights are some 500 clocks of instructions, and
//   1,024 of wgmma with 128 tokens.
// - Scales belong to weights here, not to sums: each weight is rounded to x's dtype once more, as where it is written out.
// - Codes come by the threads' own copies, in the stage with the tokens, so that 256 rows of W4 are a quarter of the bytes that a block of
//   dense rows copies.
#include <algorithm>

#include "step1_layers/core/wgmma.cuh"
#include "step1_layers/moe/experts_cuda.cuh"
#include "step1_layers/moe/tile_plan_cuda.h"
#include "step8_advanced/quantization/kernels/experts_grouped_cuda.h"
#include "step8_advanced/quantization/kernels/rows_stream.cuh"
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder::records {

inline constexpr int kGroupedThreads = 2 * kWarpgroup, kGroupedWarps = kGroupedThreads / kWarp;
inline constexpr int kPartColumns = 64;  // half a record
inline constexpr int kTilesOfWarp = 2;   // gate and up, or two neighbours
inline constexpr int kRowsOfBlock = kGroupedWarps * kTilesOfWarp * kTileRows;
inline constexpr int kGroupedStages = 4;

// D (64 x 64) = A (64 x 16) * B (16 x 64), plus D where `add`: as wgmma_64x128x16 (wgmma.cuh), which has twice the columns.
template <class T>
__device__ void wgmma_64x64x16(float (&d)[32], const uint32_t* a, uint64_t b, bool add) {
#ifdef LADDER_WGMMA
#define LADDER_WGMMA_CALL(type)                                                                             \
  asm volatile(                                                                                             \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." type      \
      "." type                                                                                              \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "   \
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}" \
      : LADDER_WGMMA_16(d, 0), LADDER_WGMMA_16(d, 16)                                                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
  if constexpr (std::is_same_v<T, __half>)
    LADDER_WGMMA_CALL("f16");
  else
    LADDER_WGMMA_CALL("bf16");
#undef LADDER_WGMMA_CALL
#endif
}
template <class T>
__device__ void multiply_tokens(float (&d)[32], const uint32_t* a, uint64_t b, bool add) {
  wgmma_64x64x16<T>(d, a, b, add);
}
template <class T>
__device__ void multiply_tokens(float (&d)[64], const uint32_t* a, uint64_t b, bool add) {
  wgmma_64x128x16<false, T>(d, a, b, add);
}

// Two numbers in a word.
template <class T>
struct Pair {
  uint32_t word;

  __device__ explicit Pair(uint32_t both) : word(both) {}
  __device__ float low() const {
    if constexpr (std::is_same_v<T, __half>)
      return __low2float(*reinterpret_cast<const __half2*>(&word));
    else
      return __uint_as_float(word << 16);
  }
  __device__ float high() const {
    if constexpr (std::is_same_v<T, __half>)
      return __high2float(*reinterpret_cast<const __half2*>(&word));
    else
      return __uint_as_float(word & 0xffff0000);
  }
};

// The scales of rows g and g + 8, and their zero points where there are any: a RowPair, in room for the larger one.
template <int room>
__device__ void copy_pair(uint32_t to, const unsigned char* from, bool zeros) {
  if (zeros)
    copy_small_async<room>(to, from);
  else
    copy_small_async<room / 2>(to, from);
}

// Four packs of neighbours, 32 columns: word i of pack t changes places with word t of pack i.
__device__ inline void permute_packs(uint4 (&packs)[4]) {
  const uint4 a = packs[0], b = packs[1], c = packs[2], e = packs[3];
  packs[0] = {a.x, b.x, c.x, e.x};
  packs[1] = {a.y, b.y, c.y, e.y};
  packs[2] = {a.z, b.z, c.z, e.z};
  packs[3] = {a.w, b.w, c.w, e.w};
}

// What a kernel is made for.
template <class Number, WeightCodes codes_type, int tokens_of_tile>
struct GroupedKind {
  using T = Number;
  using C = Codes<T, codes_type>;
  static constexpr WeightCodes type = codes_type;
  static constexpr int tokens = tokens_of_tile;
  static constexpr int vectors = C::kVectors;
  static constexpr int groups = type == WeightCodes::int4 ? 2 : 1;       // of a part, at most
  static constexpr int pair_bytes = type == WeightCodes::int4 ? 8 : 16;  // room for scales and zero points

  static constexpr int token_bytes = tokens * kPartColumns * 2;
  static constexpr int codes_bytes = kTilesOfWarp * vectors * kGroupedThreads * 16;
  static constexpr int scales_bytes = kTilesOfWarp * groups * kGroupedThreads * pair_bytes;
  static constexpr int stage_bytes = token_bytes + codes_bytes + scales_bytes;
  static constexpr int staged_stride =
      kRowsOfBlock + 8;  // of results, so that a warp's stores are spread over the banks
  static constexpr int shared_bytes = std::max(kGroupedStages * stage_bytes, tokens* staged_stride * 2) +
                                      1024;  // tiles stand at multiples of 1024
};

template <class T>
struct GroupedProduct {
  const T* x;        // [.., k], columns permuted
  int pairs_of_row;  // pair p takes row p / pairs_of_row
  const unsigned char* records;
  int record_bytes, codes_bytes, pair_bytes, groups;  // of a record
  bool zeros;
  float unit;
  int k, blocks_of_k;
  int units, tiles;  // of an expert
  bool paired;
  const float* weights;  // of pairs
  TilePlan plan;
  T* out;  // [pairs, columns]: activated, or with the pairs' weights
  int out_columns;
  bool out_permuted;
};

// A lane's operands of a part: 4 steps of 16 columns, of one tile.
template <class K>
__device__ void weights_of_part(uint32_t codes_at, uint32_t scales_at, int groups, bool zeros, float unit,
                                uint32_t (&a)[4][4]) {
  using T = typename K::T;
  using C = typename K::C;
  uint32_t words[4 * K::vectors];
#pragma unroll
  for (int v = 0; v < K::vectors; ++v) {
    const uint4 vector = load_shared(codes_at + v * kGroupedThreads * 16);
    words[4 * v] = vector.x, words[4 * v + 1] = vector.y;
    words[4 * v + 2] = vector.z, words[4 * v + 3] = vector.w;
  }
  float scale[2], rest[2];  // number * scale + rest
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j == 0 || (K::groups == 2 && j == 2)) {
      const uint32_t from = scales_at + (groups > 2 ? j / 2 : 0) * kGroupedThreads * K::pair_bytes;
      float zero[2] = {C::kZero, C::kZero};
      if (zeros) {
        const RowPair<K::type, true> pair(from);
        scale[0] = pair.scale[0], scale[1] = pair.scale[1];
        zero[0] = pair.zero[0], zero[1] = pair.zero[1];
      } else {
        const RowPair<K::type, false> pair(from);
        scale[0] = pair.scale[0], scale[1] = pair.scale[1];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        scale[half] *= unit;
        rest[half] = C::kHasZero ? -(C::kOffset + zero[half]) * scale[half] : 0;
      }
    }
    uint32_t planes[C::kPlanes][4];
#pragma unroll
    for (int plane = 0; plane < C::kPlanes; ++plane) C::numbers(words, j, plane, planes[plane]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float low = Pair<T>(planes[0][i]).low(), high = Pair<T>(planes[0][i]).high();
      if constexpr (C::kPlanes == 2) {
        low = fmaf(16, Pair<T>(planes[1][i]).low(), low);
        high = fmaf(16, Pair<T>(planes[1][i]).high(), high);
      }
      a[j][i] = pack_pair<T>(fmaf(low, scale[i % 2], rest[i % 2]), fmaf(high, scale[i % 2], rest[i % 2]));
    }
  }
}

template <class K>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    experts_grouped_kernel(const __grid_constant__ GroupedProduct<typename K::T> p) {
  using T = typename K::T;
  extern __shared__ unsigned char shared[];
  allow_next_kernel();
  wait_for_previous_kernel();
  const Tile tile = p.plan.tiles[blockIdx.x];
  if (tile.rows == 0) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;

  // Tokens: 16 bytes of 32 rows at once.
  constexpr int kRowsAtOnce = kGroupedThreads / 8, kTokenSteps = K::tokens / kRowsAtOnce;
  const int chunk = thread % 8, first_row = thread / 8;
  const T* tokens[kTokenSteps];
#pragma unroll
  for (int i = 0; i < kTokenSteps; ++i) {
    const int row = first_row + i * kRowsAtOnce;
    tokens[i] = row < tile.rows
                    ? p.x + int64_t{p.plan.pairs[tile.first + row] / p.pairs_of_row} * p.k + chunk * 8
                    : nullptr;
  }
  // The warp's two tiles of the expert: gate and up of a unit, or neighbours.
  const int first_unit = static_cast<int>(blockIdx.y) * (p.paired ? 1 : kTilesOfWarp) * kGroupedWarps;
  const unsigned char* records[kTilesOfWarp];
#pragma unroll
  for (int i = 0; i < kTilesOfWarp; ++i) {
    const int unit = p.paired ? first_unit + warp : first_unit + warp * kTilesOfWarp + i;
    records[i] = unit < p.units
                     ? p.records + (int64_t{tile.expert} * p.tiles + unit + (p.paired ? i * p.units : 0)) *
                                       p.blocks_of_k * p.record_bytes
                     : nullptr;
  }
  const int parts = p.k / kPartColumns, groups_of_part = max(p.groups / 2, 1);
  const auto fetch = [&](int part) {
    if (part < parts) {
      const uint32_t to = stages + part % kGroupedStages * K::stage_bytes;
#pragma unroll
      for (int i = 0; i < kTokenSteps; ++i)
        copy_async(to + swizzled(first_row + i * kRowsAtOnce, chunk),
                   tokens[i] != nullptr ? tokens[i] + part * kPartColumns : nullptr, tokens[i] != nullptr);
      const uint32_t codes = to + K::token_bytes + thread * 16,
                     scales = to + K::token_bytes + K::codes_bytes + thread * K::pair_bytes;
      const int half = part % 2;
#pragma unroll
      for (int i = 0; i < kTilesOfWarp; ++i) {
        if (records[i] == nullptr) continue;
        const unsigned char* record = records[i] + int64_t{part / 2} * p.record_bytes;
#pragma unroll
        for (int v = 0; v < K::vectors; ++v)
          copy_of_line_async(codes + (i * K::vectors + v) * kGroupedThreads * 16,
                             record + ((half * K::vectors + v) * kWarp + lane) * 16, true);
#pragma unroll
        for (int group = 0; group < K::groups; ++group) {
          if (group >= groups_of_part) continue;
          const unsigned char* pair =
              record + p.codes_bytes + ((half * p.groups / 2 + group) * 8 + lane / 4) * p.pair_bytes;
          const uint32_t at = scales + (i * K::groups + group) * kGroupedThreads * K::pair_bytes;
          copy_pair<K::pair_bytes>(at, pair, p.zeros);
        }
      }
    }
    commit_copies();
  };

  float d[kTilesOfWarp][K::tokens / 2] = {};
  uint32_t a[2][kTilesOfWarp][4][4];
  const auto unpack = [&](int part, uint32_t(&to)[kTilesOfWarp][4][4]) {
    const uint32_t at = stages + part % kGroupedStages * K::stage_bytes + K::token_bytes;
#pragma unroll
    for (int i = 0; i < kTilesOfWarp; ++i)
      weights_of_part<K>(
          at + thread * 16 + i * K::vectors * kGroupedThreads * 16,
          at + K::codes_bytes + thread * K::pair_bytes + i * K::groups * kGroupedThreads * K::pair_bytes,
          p.groups, p.zeros, p.unit, to[i]);
  };
  const auto step = [&](int part, uint32_t(&now)[kTilesOfWarp][4][4], uint32_t(&next)[kTilesOfWarp][4][4]) {
    const uint64_t b = wgmma_tile(stages + part % kGroupedStages * K::stage_bytes);
#pragma unroll
    for (int i = 0; i < kTilesOfWarp; ++i) keep_in_place(now[i]);
    keep_in_place(d);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < kTilesOfWarp; ++i)
        multiply_tokens<T>(d[i], now[i][j], b + j * 2, part > 0 || j > 0);
    wgmma_commit();
    wait_copies<kGroupedStages - 3>();
    fence_for_wgmma();
    __syncthreads();  // the next part is there for all, and all are done with the one before this
    fetch(part + kGroupedStages - 1);
    if (part + 1 < parts) unpack(part + 1, next);
    wgmma_wait<0>();
    keep_in_place(d);
#pragma unroll
    for (int i = 0; i < kTilesOfWarp; ++i) keep_in_place(now[i]);
  };

  for (int part = 0; part < kGroupedStages - 1; ++part) fetch(part);
  wait_copies<kGroupedStages - 2>();
  fence_for_wgmma();
  __syncthreads();
  unpack(0, a[0]);
  for (int part = 0; part < parts; part += 2) {
    step(part, a[0], a[1]);
    if (part + 1 < parts) step(part + 1, a[1], a[0]);
  }

  // Results go through shared memory, so that rows of out are written in whole packs.
  wait_copies<0>();
  __syncthreads();
  T* staged = reinterpret_cast<T*>(shared + (stages - shared_address(shared)));
  const int g = lane / 4, t = lane % 4;
  const int columns = p.paired ? kRowsOfBlock / 2 : kRowsOfBlock;
#pragma unroll
  for (int octet = 0; octet < K::tokens / 8; ++octet)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = octet * 8 + 2 * t + i % 2, row = g + i / 2 * 8;
      T* to = staged + token * K::staged_stride;
      const float first = d[0][4 * octet + i], second = d[1][4 * octet + i];
      if (p.paired) {
        to[warp * kTileRows + row] = from_float<T>(silu_and_mul<T>(first, second));
      } else {
        const float weight = token < tile.rows ? p.weights[p.plan.pairs[tile.first + token]] : 0;
        to[warp * 2 * kTileRows + row] = from_float<T>(weight * first);
        to[warp * 2 * kTileRows + kTileRows + row] = from_float<T>(weight * second);
      }
    }
  __syncthreads();
  // A thread has 32 columns of a token.
  const int runs = columns / 32, first_column = first_unit * kTileRows;
  for (int i = thread; i < tile.rows * runs; i += kGroupedThreads) {
    const int token = i / runs, column = i % runs * 32;
    if (first_column + column >= p.out_columns) continue;
    const uint4* from = reinterpret_cast<const uint4*>(staged + token * K::staged_stride + column);
    uint4 packs[4] = {from[0], from[1], from[2], from[3]};
    if (p.out_permuted) permute_packs(packs);
    uint4* to = reinterpret_cast<uint4*>(p.out + int64_t{p.plan.pairs[tile.first + token]} * p.out_columns +
                                         first_column + column);
#pragma unroll
    for (int pack = 0; pack < 4; ++pack) to[pack] = packs[pack];
  }
}

// One of the two products, of a weight of this type.
template <WeightCodes type>
void launch_experts_grouped(const OpContext& ctx, const ExpertsGroupedArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const QuantizedWeight& weight = *args.weight;
      const RecordLayout layout = record_layout(weight);
      GroupedProduct<T> p{};
      p.x = cuda_data<T>(args.x);
      p.pairs_of_row = args.pairs_of_row;
      p.records = cuda_data<unsigned char>(weight.records.bytes);
      p.record_bytes = static_cast<int>(layout.bytes());
      p.codes_bytes = static_cast<int>(layout.codes_bytes());
      p.pair_bytes = static_cast<int>(layout.pair_bytes());
      p.groups = layout.groups;
      p.zeros = layout.zeros;
      p.unit = weight.records.unit;
      if (type == WeightCodes::fp8_e4m3 && std::is_same_v<T, __half>) p.unit *= 256;
      p.k = static_cast<int>(weight.k);
      p.blocks_of_k = static_cast<int>(weight.records.bytes.dim(1));
      p.paired = args.paired;
      p.tiles = static_cast<int>(weight.n / args.experts) / kTileRows;
      p.units = args.paired ? p.tiles / 2 : p.tiles;
      p.weights = cuda_data<float>(args.weights);
      p.plan = args.plan;
      p.out = cuda_data<T>(args.out);
      p.out_columns = static_cast<int>(args.out.dim(1));
      p.out_permuted = args.out_permuted;
      const int units_of_block = kGroupedWarps * (args.paired ? 1 : kTilesOfWarp);
      const dim3 grid(static_cast<unsigned>(p.plan.max_tiles),
                      static_cast<unsigned>(ceil_div(p.units, units_of_block)));
      const auto launch = [&](auto kind) {
        using K = decltype(kind);
        auto kernel = experts_grouped_kernel<K>;
        ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), K::shared_bytes);
        launch_kernel(ctx, kernel, grid, kGroupedThreads, K::shared_bytes, p);
      };
      if (args.tokens_of_tile == 64)
        launch(GroupedKind<T, type, 64>{});
      else
        launch(GroupedKind<T, type, 128>{});
    }
  });
}

}  // namespace ladder::records
