#pragma once
// Products of many rows on wgmma, whatever stores the weight (sm_90a): out^T = weight * x^T, tile by tile. The weight's rows are
// wgmma's rows, so a weight of which two of four are kept can be multiplied (only operand A may be sparse), and few tokens
// make small tiles of many rows of the weight.
//
//               tokens ->
//   weight     +--------+--------+--
//   rows       |  tile  |        |           a tile: `rows` rows of the weight by `tokens` rows of x, its sums in registers;
//              +--------+--------+--         a stage: the tile's part of both, 128 bytes of every row of x deep
//              |        |        |
//
// One block runs on a multiprocessor and works at item after item. One thread asks the copy engine for stages, as far ahead as there
// is room; warpgroups multiply, each its own of the tile's rows, and write their outputs while the next item's stages come.
#include "step1_layers/core/gather_octet.cuh"
#include "step1_layers/core/packs.cuh"
#include "step1_layers/core/wgmma.cuh"
#include "step1_layers/linear/fused_epilogue.cuh"

namespace ladder::tile_products {

inline constexpr int kDepthBytes = 128;  // of a row of x in a stage: swizzled (tensor_core.cuh)
inline constexpr int kMostShared = 227 << 10;

template <int consumers, int row_groups, int tokens>
struct TileShape {
  static constexpr int kConsumers = consumers;   // warpgroups that multiply; one more copies
  static constexpr int kRowGroups = row_groups;  // of 64 rows, that a warpgroup has
  static constexpr int kThreads = (1 + consumers) * kWarpgroup;
  static constexpr int kRows = consumers * row_groups * 64, kTokens = tokens;
  static constexpr int kTokenBytes = tokens * kDepthBytes;
  static constexpr int kSums = tokens / 2;  // of a thread and a group of 64 rows
  // Of the small tiles of few tokens more must be in flight, and some of it is asked for behind x, which would wait for all.
  static constexpr int kMostStages = tokens >= 64 ? 8 : consumers * row_groups == 1 ? 14 : 10;
  static constexpr int kEarlyStages = tokens >= 64 ? kMostStages : 10;
  // Few sums leave registers for the blocks of other kernels: of the one before, and of the next one, which is let in early.
  static constexpr bool kTakesRegisters = tokens >= 64;
};

// The items of a product, in an order in which those that run together read little: eight tiles of tokens before the next rows.
struct Items {
  int row_tiles, token_tiles;

  __host__ __device__ int count() const { return row_tiles * token_tiles; }
  __device__ void find(int item, int& row_tile, int& token_tile) const {
    constexpr int kGroup = 8;
    const int group = item / (kGroup * row_tiles), first = group * kGroup;
    const int width = min(kGroup, token_tiles - first), in_group = item - first * row_tiles;
    row_tile = in_group / width;
    token_tile = first + in_group % width;
  }
};

// Where a warpgroup is in the ring of stages. A stage's barrier `full` ends a phase when its copies have arrived, `empty` when
// it has been multiplied.
template <int stage_bytes, int stages>
struct Ring {
  static constexpr int kStages = stages;
  uint32_t first, full, empty;  // addresses in shared memory; of barriers the first
  int stage = 0;
  uint32_t parity = 0;

  __device__ uint32_t at() const { return first + stage * stage_bytes; }
  __device__ uint32_t filled() const { return full + stage * 8; }
  __device__ uint32_t emptied() const { return empty + stage * 8; }
  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Tokens of a tile that may have `most`: as even as eights go, where there are several.
inline int tokens_of_tile(int64_t m, int most) {
  const int64_t tiles = ceil_div<int64_t>(m, most);
  return static_cast<int>(ceil_div<int64_t>(ceil_div(m, tiles), 8) * 8);
}

// What a kernel knows of x and out.
struct Tokens {
  CUtensorMap x;  // [m, k]: boxes of 128 bytes by the tokens of a tile
  Items items;
  int box;  // tokens that a tile has, in whole eights: rows of x that are beyond it cost more to bring than those that are there
  int parts;      // stages of an item: 128 bytes of a row of x each
  int split = 1;  // neighbouring blocks that share out an item's stages
  int m, n;
  void* out;  // [m, n]
  int64_t out_stride;
  bool float_out, in_packs;  // in_packs: out in 16 bits, rows in whole packs
  bool adds = false;         // to what is in out

  // This block's stages of an item.
  __device__ int begin_part() const { return parts * (static_cast<int>(blockIdx.x) % split) / split; }
  __device__ int end_part() const { return parts * (static_cast<int>(blockIdx.x) % split + 1) / split; }
};

// Adjacent bytes, a multiple of 16, from a multiple of 16 to one.
__device__ inline void copy_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
#ifdef LADDER_WGMMA
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

// The stage that is multiplied while the copies of the next ones are in flight: the first kTokenBytes are x's, then come the
// weight's. Where a tile has fewer tokens what lies in their place is multiplied, and stored nowhere. A Weight has
//   kBytes of a stage at most; bytes() of one; Tokens tokens; copy(row tile, part, to, barrier), by one thread
//   Operand: what a thread must have in registers of 64 rows and a stage; load(stage's weight, which 64 rows)
//   Sum; multiply(d, operand, stage's weight, which 64 rows, stage's x, whether to add to d)
//   kAddsInFloat: each stage's sums are added up outside of the tensor cores
struct NoOperand {};
template <int count>
__device__ void keep_in_place(NoOperand (&)[count]) {}
template <int count>
__device__ void keep_in_place(int32_t (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
using ladder::keep_in_place;

template <class Weight, class Shape>
struct Stages {
  // Tiles of x stand at multiples of 1024, else their swizzle would be another.
  static constexpr int kBytes = ceil_div(Shape::kTokenBytes + Weight::kBytes, 1024) * 1024;
  static constexpr int kCount =
      (kMostShared - 2048) / kBytes < Shape::kMostStages ? (kMostShared - 2048) / kBytes : Shape::kMostStages;
  static constexpr int kSharedBytes = kCount * kBytes + 1024;
  using Ring = tile_products::Ring<kBytes, kCount>;
};

// Calls use(row tile, token tile) for the items of this block.
template <class Use>
__device__ void for_each_item(const Tokens& tokens, Use&& use) {
  const int blocks = static_cast<int>(gridDim.x) / tokens.split;
  for (int item = static_cast<int>(blockIdx.x) / tokens.split; item < tokens.items.count(); item += blocks) {
    int row_tile, token_tile;
    tokens.items.find(item, row_tile, token_tile);
    use(row_tile, token_tile);
  }
}

// One thread. The weight's part of the first stages is asked for before the previous kernel has ended: only x comes from it.
template <class Shape, class Weight, class Ring>
__device__ void copy_items(Ring ring, const Weight& weight) {
  const Tokens& tokens = weight.tokens;
  auto ask_for_rows = [&](const Ring& at, int row_tile, int part) {
    arrive_and_expect(at.filled(), tokens.box * kDepthBytes + weight.bytes());
    weight.copy(row_tile, part, at.at() + Shape::kTokenBytes, at.filled());
  };
  const int begin = tokens.begin_part(), end = tokens.end_part();
  int early = -1;  // parts that have been asked for so
  for_each_item(tokens, [&](int row_tile, int token_tile) {
    if (early < 0) {
      Ring ahead = ring;
      for (early = 0; early < min(min(end - begin, Ring::kStages), Shape::kEarlyStages); ++early) {
        ask_for_rows(ahead, row_tile, begin + early);
        ahead.advance();
      }
      wait_for_previous_kernel();
    }
    for (int part = begin; part < end; ++part) {
      if (early > 0) {
        --early;
      } else {
        wait_phase(ring.emptied(), ring.parity ^ 1);
        ask_for_rows(ring, row_tile, part);
      }
      copy_box(ring.at(), tokens.x, ring.filled(), part * (kDepthBytes / 2), token_tile * tokens.box, 0, 0,
               0);
      ring.advance();
    }
  });
}

// What a warpgroup knows of its place.
template <class Shape, class Weight, class Ring>
struct Multiplier {
  using Sum = typename Weight::Sum;
  using Operands = typename Weight::Operand[Shape::kRowGroups];

  Ring ring;
  int first_group;      // of 64 rows
  uint32_t before = 0;  // the barrier of the stage that is being multiplied

  __device__ explicit Multiplier(const Ring& of_block)
      : ring(of_block), first_group((static_cast<int>(threadIdx.x) / kWarpgroup - 1) * Shape::kRowGroups) {}

  // Begins to multiply the next stage.
  __device__ void start(Sum (&d)[Shape::kRowGroups][Shape::kSums], Operands& operands, bool add) {
    wait_phase(ring.filled(), ring.parity);
    const uint32_t x = ring.at(), rows = ring.at() + Shape::kTokenBytes;
#pragma unroll
    for (int group = 0; group < Shape::kRowGroups; ++group)
      operands[group] = Weight::load(rows, first_group + group);
    keep_in_place(operands);
    keep(d);
    wgmma_fence();
#pragma unroll
    for (int group = 0; group < Shape::kRowGroups; ++group)
      Weight::multiply(d[group], operands[group], rows, first_group + group, x, add);
    wgmma_commit();
  }
  __device__ void advance() {
    before = ring.emptied();
    ring.advance();
  }
  __device__ static void keep(Sum (&d)[Shape::kRowGroups][Shape::kSums]) {
#pragma unroll
    for (int group = 0; group < Shape::kRowGroups; ++group) keep_in_place(d[group]);
  }
  // The stage may be overwritten.
  __device__ static void release(uint32_t emptied) {
    __syncwarp();
    if (static_cast<int>(threadIdx.x) % kWarp == 0) arrive(emptied);
  }
};

// The warpgroups that multiply: use(row tile, token tile, d) gets what this thread has of a tile.
template <class Shape, class Weight, class Ring, class Use>
__device__ void multiply_items(const Ring& ring, const Weight& weight, Use&& use) {
  using M = Multiplier<Shape, Weight, Ring>;
  M multiplier(ring);
  const int parts = weight.tokens.end_part() - weight.tokens.begin_part();
  typename M::Sum d[Shape::kRowGroups][Shape::kSums];
  typename M::Operands operands[2];
  for_each_item(weight.tokens, [&](int row_tile, int token_tile) {
    if constexpr (Weight::kAddsInFloat) {
      // A stage is multiplied while the sums of the one before it are added.
      typename M::Sum next[Shape::kRowGroups][Shape::kSums];
      float sums[Shape::kRowGroups][Shape::kSums] = {};
      const auto start = [&](auto& of_part) {
        multiplier.start(of_part, operands[0], false);
        multiplier.advance();
        return multiplier.before;
      };
      const auto add = [&](auto& of_part, uint32_t emptied) {
        M::keep(of_part);
        M::release(emptied);
#pragma unroll
        for (int group = 0; group < Shape::kRowGroups; ++group)
#pragma unroll
          for (int i = 0; i < Shape::kSums; ++i) sums[group][i] += of_part[group][i];
      };
      uint32_t of_d = start(d), of_next = 0;
      int part = 1;
      for (; part + 1 < parts; part += 2) {
        of_next = start(next);
        wgmma_wait<1>();
        add(d, of_d);
        of_d = start(d);
        wgmma_wait<1>();
        add(next, of_next);
      }
      if (part < parts) {
        of_next = start(next);
        wgmma_wait<1>();
        add(d, of_d);
        wgmma_wait<0>();
        add(next, of_next);
      } else {
        wgmma_wait<0>();
        add(d, of_d);
      }
      use(row_tile, token_tile, sums);
    } else {
      auto start = [&](typename M::Operands& of_part, int part) {
        multiplier.start(d, of_part, part > 0);
        if (part > 0) {
          wgmma_wait<1>();
          M::release(multiplier.before);
        }
        multiplier.advance();
      };
      // Waited for at each end of the loop: behind a common one the compiler would not see that d is complete.
      auto was_last = [&](int part) {
        if (part + 1 < parts) return false;
        wgmma_wait<0>();
        return true;
      };
      for (int part = 0;;) {
        start(operands[0], part);
        keep_in_place(operands[1]);
        if (was_last(part++)) break;
        start(operands[1], part);
        keep_in_place(operands[0]);
        if (was_last(part++)) break;
      }
      M::keep(d);
      keep_in_place(operands[0]);
      keep_in_place(operands[1]);
      M::release(multiplier.before);
      use(row_tile, token_tile, d);
    }
  });
}

// The lanes of a warp have rows of an 8 x 8 matrix, two neighbours of a row each; afterwards of its transpose.
__device__ inline uint32_t transposed_pair(uint32_t pair) {
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pair));
  return pair;
}

// Writes a warp's outputs of 16 rows of the weight, from `row` on and before `end_row`, and a tile's tokens, from `token` on. y lies as
// wgmma has sums. end_row is n or a multiple of 8.
template <class T, int count>
__device__ void store_transposed(const Tokens& to, int row, int end_row, int token, const float (&y)[count]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int end = min(to.m, token + to.box);
  if (to.in_packs) {
#pragma unroll
    for (int octet = 0; octet < count / 4; octet += 2) {
      uint32_t pairs[4];  // of tokens 8 octet + g and 8 octet + 8 + g: rows 2 t, 2 t + 1, and 8 rows below
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] = transposed_pair(pack_pair<T>(y[4 * octet + 2 * i], y[4 * octet + 2 * i + 1]));
      const uint4 words = gather_octet(pairs[0], pairs[1], pairs[2], pairs[3]);
      const int of_token = token + 8 * (octet + t / 2) + g, first = row + t % 2 * 8;
      if (of_token >= end || first >= end_row) continue;
      T* out = static_cast<T*>(to.out) + of_token * to.out_stride + first;
      Pack<T> pack = reinterpret_cast<const Pack<T>&>(words);
      if (to.adds) {
        const Pack<T> before = load_pack(out);
#pragma unroll
        for (int i = 0; i < Pack<T>::kSize; ++i)
          pack.value[i] = sum_with_residual(before.value[i], to_float(pack.value[i]));
      }
      *reinterpret_cast<Pack<T>*>(out) = pack;
    }
    return;
  }
#pragma unroll
  for (int octet = 0; octet < count / 4; ++octet)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int of_token = token + 8 * octet + 2 * t + i % 2, j = row + g + i / 2 * 8;
      if (of_token >= end || j >= end_row) continue;
      const int64_t at = of_token * to.out_stride + j;
      if (to.float_out) {
        static_cast<float*>(to.out)[at] = y[4 * octet + i];
      } else {
        T* out = static_cast<T*>(to.out) + at;
        *out = to.adds ? sum_with_residual(*out, y[4 * octet + i]) : from_float<T>(y[4 * octet + i]);
      }
    }
}

// The kernel's body: use as multiply_items.
template <class Shape, class Weight, class Use>
__device__ void multiply_tiles(const Weight& weight, Use&& use) {
  using S = Stages<Weight, Shape>;
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[2 * S::kCount];
  typename S::Ring ring;
  ring.first = (shared_address(shared) + 1023) & ~1023u;
  ring.full = shared_address(barriers);
  ring.empty = ring.full + S::kCount * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kCount; ++i) {
      init_barrier(ring.full + i * 8, 1);
      init_barrier(ring.empty + i * 8, Shape::kConsumers * kWarpgroup / kWarp);  // warps multiply
    }
    fence_for_wgmma();
  }
  __syncthreads();
  allow_next_kernel();
  if (threadIdx.x < kWarpgroup) {
    if constexpr (Shape::kTakesRegisters) give_registers<24>();
    if (threadIdx.x == 0) copy_items<Shape>(ring, weight);
  } else {
    if constexpr (Shape::kTakesRegisters) take_registers<240>();
    wait_for_previous_kernel();
    multiply_items<Shape>(ring, weight, use);
  }
}

}  // namespace ladder::tile_products
