// Rows between the blocks of caches and packed bytes, all layers of a message by one kernel.
#include <algorithm>
#include <bit>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step8_advanced/disaggregation/layout/kv_move_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;  // of a thread under way, before it stores
constexpr int64_t kUnitsOfABlock = kLoads * kThreads;

// gather
// Caches [block][token][head][dim] of any pitches, packed bytes [head][token][dim]; a unit is the largest power of two, up to 16
// bytes, that divides all addresses and pitches. A grid's row is a plane, a block some tokens of it with all their heads.
// Faster than rows: one launch for what would be a copy for each layer, head and run of tokens (a message of 32 MiB of
// Llama-3.1-8B in blocks of 16: 8,192 copies of 4 KB). Bytes are read and written once, a warp's in pieces of a row each. The
// order is the cache's, so that what a block reads lies in one piece.

struct MoveShape {
  int num_planes = 0;
  int block_size = 0;
  int first_in_table = 0;  // of the part's first token, counted from the table's first block
  int num_tokens = 0, num_heads = 0;
  int tokens_per_block = 0;
};

struct Place {
  const KvPlane& plane;
  int64_t in_cache, in_packed;  // bytes
};

// Of the row: a head of a token.
__device__ Place place_of(const std::byte* tables, const MoveShape& shape, int token, int head) {
  const KvPlane& plane = reinterpret_cast<const KvPlane*>(tables)[blockIdx.y];
  const int32_t* const block_table =
      reinterpret_cast<const int32_t*>(tables + shape.num_planes * sizeof(KvPlane));
  const int position = shape.first_in_table + token;
  const int64_t block = block_table[position / shape.block_size];
  return {
      plane,
      block * plane.block_pitch + position % shape.block_size * plane.token_pitch + head * plane.head_pitch,
      plane.packed_offset + (int64_t{head} * shape.num_tokens + token) * plane.packed_row_bytes};
}

__device__ bool holds(const KvMoveCondition& condition) {
  for (int i = 0; i < condition.count; ++i)
    if (condition.found[i] != condition.expected[i]) return false;
  return true;
}

template <class Unit, bool packs>
__global__ void __launch_bounds__(kThreads) move_units(const std::byte* __restrict__ tables, MoveShape shape,
                                                       std::byte* packed, KvMoveCondition only_if) {
  if (!holds(only_if)) return;
  const KvPlane& plane = reinterpret_cast<const KvPlane*>(tables)[blockIdx.y];
  const int units = static_cast<int>(plane.row_bytes / static_cast<int64_t>(sizeof(Unit)));
  const int first = static_cast<int>(blockIdx.x) * shape.tokens_per_block;
  const int count = min(shape.tokens_per_block, shape.num_tokens - first) * shape.num_heads * units;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kLoads * kThreads) {
    Unit value[kLoads];
    Unit* to[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const int at = i + n * kThreads;
      if (at >= count) break;
      const int row = at / units;
      const Place place = place_of(tables, shape, first + row / shape.num_heads, row % shape.num_heads);
      Unit* const cache = reinterpret_cast<Unit*>(place.plane.cache + place.in_cache) + at % units;
      Unit* const bytes = reinterpret_cast<Unit*>(packed + place.in_packed) + at % units;
      value[n] = packs ? *cache : *bytes;
      to[n] = packs ? bytes : cache;
    }
#pragma unroll
    for (int n = 0; n < kLoads; ++n)
      if (i + n * kThreads < count) *to[n] = value[n];
  }
}

template <class T, int count>
struct alignas(sizeof(T) * count) Numbers {
  T value[count];
};

// From packed floats into caches of others, `count` of them by a thread.
template <class From, class To, int count>
__global__ void __launch_bounds__(kThreads)
    convert_numbers(const std::byte* __restrict__ tables, MoveShape shape, const std::byte* packed,
                    KvMoveCondition only_if) {
  if (!holds(only_if)) return;
  const KvPlane& plane = reinterpret_cast<const KvPlane*>(tables)[blockIdx.y];
  const int units = static_cast<int>(plane.row_bytes / static_cast<int64_t>(sizeof(To) * count));
  const int first = static_cast<int>(blockIdx.x) * shape.tokens_per_block;
  const int end = min(shape.tokens_per_block, shape.num_tokens - first) * shape.num_heads * units;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    const int row = i / units;
    const Place place = place_of(tables, shape, first + row / shape.num_heads, row % shape.num_heads);
    const auto from = reinterpret_cast<const Numbers<From, count>*>(packed + place.in_packed)[i % units];
    Numbers<To, count> to;
#pragma unroll
    for (int n = 0; n < count; ++n) to.value[n] = from_float<To>(to_float(from.value[n]));
    reinterpret_cast<Numbers<To, count>*>(place.plane.cache + place.in_cache)[i % units] = to;
  }
}

// The largest power of two, at most 16, that divides all of the caches' addresses and of the packed ones.
struct Alignment {
  int64_t cache = 16, packed = 16;
};
Alignment alignment_of(const KvMoveArgs& args) {
  uint64_t cache = 16, packed = 16 | reinterpret_cast<uintptr_t>(args.packed);
  for (const KvPlane& plane : args.planes) {
    cache |=
        reinterpret_cast<uintptr_t>(plane.cache) |
        static_cast<uint64_t>(plane.block_pitch | plane.token_pitch | plane.head_pitch | plane.row_bytes);
    packed |= static_cast<uint64_t>(plane.packed_offset | plane.packed_row_bytes);
  }
  return {int64_t{1} << std::countr_zero(cache), int64_t{1} << std::countr_zero(packed)};
}

struct Launch {
  MoveShape shape;
  dim3 grid;
};
Launch launch_of(const KvMoveArgs& args, int64_t unit) {
  int64_t units = 1;
  for (const KvPlane& plane : args.planes) units = std::max(units, plane.row_bytes / unit);
  Launch launch;
  MoveShape& shape = launch.shape;
  shape.num_planes = static_cast<int>(args.planes.size());
  shape.block_size = static_cast<int>(args.block_size);
  shape.first_in_table = static_cast<int>(args.first_token % args.block_size);
  shape.num_tokens = static_cast<int>(args.num_tokens);
  shape.num_heads = static_cast<int>(args.num_heads);
  shape.tokens_per_block = static_cast<int>(std::max<int64_t>(1, kUnitsOfABlock / (args.num_heads * units)));
  launch.grid = {static_cast<unsigned>(ceil_div(shape.num_tokens, shape.tokens_per_block)),
                 static_cast<unsigned>(shape.num_planes)};
  return launch;
}

template <class Unit>
void move_by(const OpContext& ctx, const KvMoveArgs& args) {
  const auto [shape, grid] = launch_of(args, sizeof(Unit));
  if (args.packs)
    move_units<Unit, true>
        <<<grid, kThreads, 0, stream_of(ctx)>>>(args.tables, shape, args.packed, args.only_if);
  else
    move_units<Unit, false>
        <<<grid, kThreads, 0, stream_of(ctx)>>>(args.tables, shape, args.packed, args.only_if);
}

template <class From, class To, int count>
void convert_by(const OpContext& ctx, const KvMoveArgs& args) {
  const auto [shape, grid] = launch_of(args, sizeof(To) * count);
  convert_numbers<From, To, count>
      <<<grid, kThreads, 0, stream_of(ctx)>>>(args.tables, shape, args.packed, args.only_if);
}

void convert(const OpContext& ctx, const KvMoveArgs& args) {
  const Alignment alignment = alignment_of(args);
  with_cuda_type(args.packed_dtype, [&](auto from) {
    with_cuda_type(args.cache_dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      if constexpr (!std::is_same_v<From, To>) {
        constexpr int kFour = 4;
        const bool by_four = alignment.packed % static_cast<int64_t>(kFour * sizeof(From)) == 0 &&
                             alignment.cache % static_cast<int64_t>(kFour * sizeof(To)) == 0;
        by_four ? convert_by<From, To, kFour>(ctx, args) : convert_by<From, To, 1>(ctx, args);
      }
    });
  });
}

}  // namespace

void kv_move_gather(const OpContext& ctx, const KvMoveArgs& args) {
  if (args.converts()) {
    convert(ctx, args);
  } else {
    const Alignment alignment = alignment_of(args);
    switch (std::min(alignment.cache, alignment.packed)) {
      case 16:
        move_by<uint4>(ctx, args);
        break;
      case 8:
        move_by<uint2>(ctx, args);
        break;
      case 4:
        move_by<uint32_t>(ctx, args);
        break;
      case 2:
        move_by<uint16_t>(ctx, args);
        break;
      default:
        move_by<uint8_t>(ctx, args);
    }
  }
  LADDER_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ladder
