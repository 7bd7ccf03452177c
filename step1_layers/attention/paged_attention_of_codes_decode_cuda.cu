// Attention of single query rows over codes: the codes themselves are the operands of the tensor cores.
#include <algorithm>
#include <cfloat>

#include <cuda_fp8.h>

#include "step1_layers/attention/paged_attention_of_codes_cuda.cuh"
#include "step1_layers/attention/paged_attention_prefill_cuda.cuh"
#include "step1_layers/attention/paged_attention_split_decode_cuda.cuh"
#include "step1_layers/core/packed.h"

namespace ladder {

namespace {

// split (sm_80)
// bf16 or f16, heads of 64, 128 or 256, pages of a power of two of slots, at least 16. The keys are shared out as in
// paged_attention's rung of this name, and a warp has a queue of steps of 16 keys as there, with codes and scales in it.
//
// A number is lowest + scale * code, and lowest and scale are the same for a whole head of a token. So the products are of codes,
// and both factors are applied to what there is one of per key:
//
//   score_j = scale_j (q . code_j) + lowest_j (sum of q)             of keys
//   out     = sum_j (p_j scale_j) code_j + sum_j p_j lowest_j        of values
//
// Both products are in f16, whatever the model's type: every code is one of its numbers (an integer of four or eight bits is a
// subnormal: bits that are only moved to their place), queries are first scaled by a power of two, and weights, p_j scale_j, by
// the largest scale so far.
//
// Budget, heads of 128 in 8 bits: a key and its value are 272 bytes, 18.3 of which come in a clock and multiprocessor at 4.25
// TB/s: 17 numbers. A step of 16 keys takes 237 clocks. Conversions are 64 instructions of a warp (E4M3, 2 numbers each) or 112
// (integers, at 2 a clock 56 clocks), the mma 16 (32 clocks), the rest some 150 of the 948 that can be issued. In 4 bits a step
// takes 126 clocks, its conversions 88 instructions. Each code is read from shared memory once, in 16 bytes a lane: a lane's
// share of the 16 dims of an mma is any four of them where q has them in the same order, and where outputs are written out of
// order.
template <KvCacheDType kept_as, int dim>
struct CodesShape {
  static constexpr bool kIsFloat = kept_as == KvCacheDType::fp8, kIsNibble = kept_as == KvCacheDType::int4,
                        kIsByte = kept_as == KvCacheDType::int8;
  static constexpr int kBlocks = dim == 256 ? 1 : 2;           // of a multiprocessor
  static constexpr int kRowBytes = kIsNibble ? dim / 2 : dim;  // of a key or value
  static constexpr int kWordDims = kIsNibble ? 8 : 4;          // codes in a word
  static constexpr int kChunks = kRowBytes / 16;               // of 16 bytes, in a row
  static constexpr int kCopyRows = kWarp / kChunks;            // copied at a time
  static constexpr int kTileBytes = kStepKeys * kRowBytes, kScaleBytes = kStepKeys * 8;
  static constexpr int kStageBytes =
      2 * (kTileBytes + kScaleBytes);  // keys, values, scales of keys, of values
  static constexpr int kRoom = (208 << 10) / kBlocks / kSplitWarps;  // of a warp, in bytes
  static constexpr int kStages = kRoom / kStageBytes < 8 ? kRoom / kStageBytes : 8;
  // As many bytes as the gap of the rung for numbers.
  static constexpr int kGap = (kGapTiles * 4 * kStepKeys * dim + kStageBytes / 2) / kStageBytes;
  // What a code is times as an operand: a power of two, of odd codes in nibbles another one.
  static constexpr float kUnit = kIsFloat ? 1.0f : 0x1p24f, kOddUnit = kIsNibble ? kUnit / 16 : kUnit;
  // An int8 code is an operand without sign.
  static constexpr float kZero = kIsByte ? 128.0f : 0.0f;

  // Where the row's bytes from `offset` on are: with these exchanges the loads of keys (four lanes in a row, eight rows) and
  // of values (eight lanes in a row, every second of eight rows) find different banks.
  __device__ static int key_at(int row, int offset) {
    return (row * kRowBytes + offset) ^ (kRowBytes >= 128 ? (row & 1) << 6 : 0);
  }
  __device__ static int value_at(int row, int offset) {
    return (row * kRowBytes + offset) ^ ((row >> 1 & 3) << 5);
  }
  // Of the words of a row's codes that lane t of four has: where word w begins.
  __device__ static int key_offset(int t, int w) {
    return kRowBytes >= 64 ? (t + w / 4 * 4) * 16 + w % 4 * 4 : t * 8 + w * 4;
  }
  // Of those that lane g of eight has.
  __device__ static int value_offset(int g, int w) {
    return kRowBytes == 256 ? w / 4 * 128 + g * 16 + w % 4 * 4 : g * (kRowBytes / 8) + w * 4;
  }
};

template <KvCacheDType kept_as, int dim>
struct alignas(16) CodesShared {
  using Shape = CodesShape<kept_as, dim>;
  static constexpr int kDim = dim;
  unsigned char queue[kSplitWarps][Shape::kStages][Shape::kStageBytes];

  __device__ WarpResult<dim>& result(int warp) { return reinterpret_cast<WarpResult<dim>&>(queue[warp]); }
  static_assert(sizeof(WarpResult<dim>) <= sizeof(queue[0]));
};

__device__ void copy_scale_async(uint32_t shared_address, const float2* from, bool valid) {
  LADDER_SM80_ASM("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address), "l"(from),
                  "r"(valid ? 8 : 0)
                  : "memory");
}

// `count` adjacent words of shared memory.
template <int count>
__device__ void load_words(uint32_t* to, const unsigned char* from) {
  if constexpr (count == 4) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
  } else if constexpr (count == 2) {
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    to[0] = words.x, to[1] = words.y;
  } else {
    to[0] = *reinterpret_cast<const uint32_t*>(from);
  }
}

// The largest of numbers that are not negative: their bits are ordered as they are.
__device__ float largest_of_lanes(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return warp_max(x);
#else
  return __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(x)));
#endif
}

// Operands of mma: two codes in the lower or the upper half of `codes`.
template <KvCacheDType kept_as>
__device__ void operands_of_bytes(uint32_t codes, uint32_t& low, uint32_t& high) {
  if constexpr (kept_as == KvCacheDType::fp8) {
    const auto convert = [](uint32_t two) {
      const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3);
      return uint32_t{pair.x} | uint32_t{pair.y} << 16;
    };
    low = convert(codes & 0xffff);
    high = convert(codes >> 16);
  } else {
    codes ^= 0x80808080u;
    low = __byte_perm(codes, 0, 0x4140);
    high = __byte_perm(codes, 0, 0x4342);
  }
}

// One warp's queue of steps of 16 keys; the warp's steps are kSplitTileKeys apart, since the warps of a block take turns.
template <KvCacheDType kept_as, int dim>
struct CodesQueue {
  using Shape = CodesShape<kept_as, dim>;

  int first, steps;  // the warp's first key, and how many steps it has
  unsigned char* queue;
  const int32_t* table;
  const uint8_t *k_head, *v_head;  // where this lane copies from, in slot 0 of block 0
  const float2* scales_head;       // of keys or of values
  int blocks = 0;                  // lane i: the block of step i of 32

  template <class T>
  __device__ CodesQueue(const AttentionOfCodes<T>& a, const Piece& piece, CodesShared<kept_as, dim>& shared) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int kv_head = piece.head_tile / ceil_div(a.group, kTileHeads);
    first = piece.first + warp * kStepKeys;
    steps = first < piece.end ? ceil_div(piece.end - first, kSplitTileKeys) : 0;
    table = a.block_tables + piece.seq * a.table_stride;
    queue = shared.queue[warp][0];
    const int copy_row = lane / Shape::kChunks, chunk = lane % Shape::kChunks;
    k_head = a.k_codes + kv_head * a.k_head + copy_row * a.k_slot + chunk * 16;
    v_head = a.v_codes + kv_head * a.v_head + copy_row * a.v_slot + chunk * 16;
    scales_head =
        (lane < kStepKeys ? a.k_scales : a.v_scales) + int64_t{lane % kStepKeys} * a.kv_heads + kv_head;
  }

  __device__ unsigned char* keys(int step) const {
    return queue + step % Shape::kStages * Shape::kStageBytes;
  }
  // How many of a step's sixteen keys are keys of the piece, or more.
  __device__ int valid(const Piece& piece, int step) const {
    return piece.end - (first + step * kSplitTileKeys);
  }

  // Starts the copies of a step; nothing past the last one. Zeros past the last key: its codes may be NaN.
  template <class T>
  __device__ void copy(const AttentionOfCodes<T>& a, const Piece& piece, int step, Keys which) {
    const int lane = threadIdx.x % kWarp, copy_row = lane / Shape::kChunks, chunk = lane % Shape::kChunks;
    if (step < steps) {
      if (step % kWarp == 0 && which != Keys::own) {
        const int key = first + (step + lane) * kSplitTileKeys;
        blocks = key < piece.end ? table[key >> a.block_shift] : 0;
      }
      const int key = first + step * kSplitTileKeys, valid = piece.end - key;
      const int64_t block = __shfl_sync(kAllLanes, blocks, step), slot = key & (a.block_size - 1);
      const uint8_t *k = k_head + block * a.k_block + slot * a.k_slot,
                    *v = v_head + block * a.v_block + slot * a.v_slot;
      const uint32_t to = shared_address(keys(step));
      const auto is_wanted = [&](int row) {
        return which == Keys::all || (key + row == piece.num_keys - 1) == (which == Keys::own);
      };
#pragma unroll
      for (int i = 0; i < kStepKeys / Shape::kCopyRows; ++i) {
        const int row = i * Shape::kCopyRows + copy_row;
        if (!is_wanted(row)) continue;
        copy_of_line_async(to + Shape::key_at(row, chunk * 16), k + i * Shape::kCopyRows * a.k_slot,
                           row < valid);
        copy_of_line_async(to + Shape::kTileBytes + Shape::value_at(row, chunk * 16),
                           v + i * Shape::kCopyRows * a.v_slot, row < valid);
      }
      const int row = lane % kStepKeys;
      if (is_wanted(row))
        copy_scale_async(to + 2 * Shape::kTileBytes + lane * 8,
                         scales_head + (block * a.block_size + slot) * a.kv_heads, row < valid);
    }
    commit_copies();
  }

  // The row's own key, where it is among the steps that were copied without it.
  template <class T>
  __device__ void copy_own(const AttentionOfCodes<T>& a, const Piece& piece) {
    const int own = piece.num_keys - 1 - first;
    if (piece.end == piece.num_keys && own >= 0 && own % kSplitTileKeys < kStepKeys &&
        own / kSplitTileKeys < Shape::kStages)
      copy(a, piece, own / kSplitTileKeys, Keys::own);
  }
};

// The queries of eight heads as the B operands of q^T, in f16, and what makes scores of their products with codes.
template <KvCacheDType kept_as, int dim>
struct CodesQueries {
  using Shape = CodesShape<kept_as, dim>;
  static constexpr int kWords = Shape::kRowBytes / 16;  // of a key, that a lane has

  uint32_t q[dim / 8];   // of head g
  float factor[2] = {};  // of heads 2t and 2t + 1: score = scale_j (product factor - offset),
  float offset[2] = {};  // in nibbles scale_j product factor + lowest_j offset

  // `row`: of head g, nullptr where there is none.
  template <class T>
  __device__ void load(const T* row, float scale) {
    const int lane = threadIdx.x % kWarp, t = lane % 4;
    uint32_t pairs[dim / 8];
    float largest = 0;
    const auto numbers = [&](int pair) {
      if constexpr (std::is_same_v<T, __half>)
        return __half22float2(*reinterpret_cast<const __half2*>(&pairs[pair]));
      else
        return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pairs[pair]));
    };
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int d = Shape::key_offset(t, w) * (Shape::kWordDims / 4);
#pragma unroll
      for (int j = 0; j < Shape::kWordDims / 2; ++j) {
        const int pair = w * (Shape::kWordDims / 2) + j;
        pairs[pair] = row == nullptr ? 0 : *reinterpret_cast<const uint32_t*>(row + d + 2 * j);
        const float2 x = numbers(pair);
        largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
      }
    }
    largest = warp_max<4>(largest);
    // The power of two below the largest, and its inverse: normal numbers both.
    const uint32_t exponent = min(__float_as_uint(largest) >> 23, 253u);
    const float power = __uint_as_float(exponent << 23), inverse = __uint_as_float((254 - exponent) << 23);
    float sum = 0;
    const auto half_of = [&](float x) {
      const float rounded = __half2float(__float2half_rn(x * inverse));
      sum += rounded;
      return rounded;
    };
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      float x[Shape::kWordDims];
#pragma unroll
      for (int j = 0; j < Shape::kWordDims / 2; ++j) {
        const float2 two = numbers(w * (Shape::kWordDims / 2) + j);
        x[2 * j] = half_of(two.x);
        x[2 * j + 1] = half_of(two.y);
      }
      uint32_t* to = q + w * (Shape::kWordDims / 2);
      if constexpr (Shape::kIsNibble) {  // codes j and j + 4 share a register; odd ones come times 16
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float unit = j % 2 == 0 ? 1.0f : 1.0f / 16;
          to[j] = pack_pair<__half>(x[j] * unit, x[j + 4] * unit);
        }
      } else {
        to[0] = pack_pair<__half>(x[0], x[1]);
        to[1] = pack_pair<__half>(x[2], x[3]);
      }
    }
    sum = warp_sum<4>(sum) * power * scale;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int from = (2 * t + i) * 4;
      factor[i] = __shfl_sync(kAllLanes, power * scale * Shape::kUnit, from);
      offset[i] = __shfl_sync(kAllLanes, Shape::kIsByte ? sum * Shape::kZero : sum, from);
    }
  }
};

// One warp's softmax over its keys so far, of eight heads: lane 4 g + t has heads 2t and 2t + 1, and of the output a pair of
// neighbouring dims in each tile: out[i][e] and out[i][2 + e] of head 2t + e.
template <KvCacheDType kept_as, int dim>
struct CodesState {
  using Shape = CodesShape<kept_as, dim>;
  static constexpr int kTiles = dim / 16;
  static constexpr float kWeight = 0x1p15f;  // times which weights are in f16, which has few numbers near 0

  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  float rest[2] = {0, 0};     // what is to be added to every dim: this lane's keys' part of it
  float top_scale = FLT_MIN;  // the largest of the values so far, of which `out` has the part 1 / kWeight
  float out[kTiles][4] = {};

  __device__ void attend_step(const unsigned char* step, const CodesQueries<kept_as, dim>& queries,
                              int valid) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const unsigned char* values = step + Shape::kTileBytes;
    const auto* k_scales = reinterpret_cast<const float2*>(values + Shape::kTileBytes);
    const float2* v_scales = k_scales + kStepKeys;

    float sums[2][4] = {};  // so that an mma need not wait for the one before it
    constexpr int kLoad = Shape::kRowBytes >= 64 ? 4 : 2;
#pragma unroll
    for (int first = 0; first < Shape::kRowBytes / 16; first += kLoad) {
      uint32_t low[kLoad], high[kLoad];  // keys g and g + 8
      load_words<kLoad>(low, step + Shape::key_at(g, Shape::key_offset(t, first)));
      load_words<kLoad>(high, step + Shape::key_at(g + 8, Shape::key_offset(t, first)));
#pragma unroll
      for (int i = 0; i < kLoad; ++i) {
        const uint32_t* q = queries.q + (first + i) * (Shape::kWordDims / 2);
        if constexpr (Shape::kIsNibble) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t x = low[i] >> half * 8, y = high[i] >> half * 8;
            mma_16x8x16<__half>(sums[half],
                                {x & 0x000f000fu, y & 0x000f000fu, x & 0x00f000f0u, y & 0x00f000f0u},
                                {q[2 * half], q[2 * half + 1]});
          }
        } else {
          uint32_t a[4];
          operands_of_bytes<kept_as>(low[i], a[0], a[2]);
          operands_of_bytes<kept_as>(high[i], a[1], a[3]);
          mma_16x8x16<__half>(sums[i % 2], a, {q[0], q[1]});
        }
      }
    }

    const float2 k_scale[2] = {k_scales[g], k_scales[g + 8]}, v_scale[2] = {v_scales[g], v_scales[g + 8]};
    float s[4];
    bool grows = false;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float product = sums[0][e] + sums[1][e];
      const float2 of = k_scale[e / 2];
      float score = product * queries.factor[e % 2];
      if constexpr (Shape::kIsByte) score -= queries.offset[e % 2];
      score *= of.x;
      if constexpr (Shape::kIsNibble) score = fmaf(of.y, queries.offset[e % 2], score);
      s[e] = g + e / 2 * 8 < valid ? score : -INFINITY;
      grows = grows || s[e] > largest[e % 2];
    }
    const float step_scale = largest_of_lanes(fmaxf(v_scale[0].x, v_scale[1].x));
    grows = __any_sync(kAllLanes, grows);
    if (grows || step_scale > top_scale) {
      float correction[2] = {1, 1};
      if (grows) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float step_largest = fmaxf(s[i], s[2 + i]);
#pragma unroll
          for (int offset = 4; offset < kWarp; offset *= 2)
            step_largest = fmaxf(step_largest, __shfl_xor_sync(kAllLanes, step_largest, offset));
          const float new_largest = fmaxf(largest[i], step_largest);
          correction[i] = exp2_fast(largest[i] - new_largest);
          largest[i] = new_largest;
          sum[i] *= correction[i];
          rest[i] *= correction[i];
        }
      }
      if (step_scale > top_scale) {
        correction[0] *= top_scale / step_scale;
        correction[1] *= top_scale / step_scale;
        top_scale = step_scale;
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[i][e] *= correction[e % 2];
    }

    const float inverse = __frcp_rn(top_scale);
    float weights[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float p = exp2_fast(s[e] - largest[e % 2]);
      sum[e % 2] += p;
      weights[e] = p * (v_scale[e / 2].x * inverse) * kWeight;
      if constexpr (Shape::kIsNibble) rest[e % 2] = fmaf(p, v_scale[e / 2].y, rest[e % 2]);
    }
    const uint32_t rounded[2] = {pack_pair<__half>(weights[0], weights[1]),
                                 pack_pair<__half>(weights[2], weights[3])};
    if constexpr (Shape::kIsByte) {  // of the weights that the products have
      const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&rounded[0])),
                   y = __half22float2(*reinterpret_cast<const __half2*>(&rounded[1]));
      const float unit = -Shape::kZero / kWeight * top_scale;
      rest[0] = fmaf(x.x + y.x, unit, rest[0]);
      rest[1] = fmaf(x.y + y.y, unit, rest[1]);
    }
    const uint32_t p[2] = {transpose_8x8(rounded[0]), transpose_8x8(rounded[1])};

    constexpr int kLaneWords = Shape::kRowBytes / 32, kLoadWords = kLaneWords < 4 ? kLaneWords : 4;
#pragma unroll
    for (int first = 0; first < kLaneWords; first += kLoadWords) {
      uint32_t words[4][kLoadWords];  // of keys 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_words<kLoadWords>(
            words[i], values + Shape::value_at(2 * t + i % 2 + i / 2 * 8, Shape::value_offset(g, first)));
#pragma unroll
      for (int i = 0; i < kLoadWords; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Of the first two keys, then of the last two: in bytes, codes 2 half and 2 half + 1 of either key,
          // in nibbles four codes of the one, then of the other.
          const uint32_t order =
              Shape::kIsNibble ? (half == 0 ? 0x5410 : 0x7632) : (half == 0 ? 0x5140 : 0x7362);
          const uint32_t x = __byte_perm(words[0][i], words[1][i], order),
                         y = __byte_perm(words[2][i], words[3][i], order);
          if constexpr (Shape::kIsNibble) {
            float(*to)[4] = out + (first + i) * 4 + half * 2;
            mma_16x8x16<__half>(to[0], {x & 0x000f000fu, x & 0x00f000f0u, y & 0x000f000fu, y & 0x00f000f0u},
                                p);
            const uint32_t u = x >> 8, v = y >> 8;
            mma_16x8x16<__half>(to[1], {u & 0x000f000fu, u & 0x00f000f0u, v & 0x000f000fu, v & 0x00f000f0u},
                                p);
          } else {
            uint32_t a[4];
            operands_of_bytes<kept_as>(x, a[0], a[1]);
            operands_of_bytes<kept_as>(y, a[2], a[3]);
            mma_16x8x16<__half>(out[(first + i) * 2 + half], a, p);
          }
        }
    }
  }

  __device__ void store(WarpResult<dim>& result) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    store_state(largest, sum, result);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int offset = 4; offset < kWarp; offset *= 2)
        rest[i] += __shfl_xor_sync(kAllLanes, rest[i], offset);
    const float unit = top_scale * (Shape::kUnit / kWeight),
                odd_unit = top_scale * (Shape::kOddUnit / kWeight);
    constexpr int kWordTiles = Shape::kWordDims / 2;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int d = Shape::value_offset(g, i / kWordTiles) * (Shape::kWordDims / 4) + i % kWordTiles * 2;
#pragma unroll
      for (int e = 0; e < 2; ++e)
        *reinterpret_cast<float2*>(&result.out[2 * t + e][d]) = {fmaf(out[i][e], unit, rest[e]),
                                                                 fmaf(out[i][2 + e], odd_unit, rest[e])};
    }
  }
};

// As attend_piece of numbers (paged_attention_decode_cuda.cuh).
template <KvCacheDType kept_as, int dim, class T, class OnLastCopy>
__device__ void attend_piece(const AttentionOfCodes<T>& a, const Piece& piece, PreviousKernel<>& previous,
                             CodesShared<kept_as, dim>& shared, OnLastCopy&& on_last_copy) {
  constexpr int kStages = CodesShape<kept_as, dim>::kStages;
  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4;
  CodesQueue<kept_as, dim> queue(a, piece, shared);
#pragma unroll 1
  for (int step = 0; step < kStages; ++step)
    queue.copy(a, piece, step, previous.has_ended ? Keys::all : Keys::earlier);
  if (!previous.has_ended) {
    previous.wait();
    previous.has_ended = true;
    queue.copy_own(a, piece);
  }

  CodesQueries<kept_as, dim> queries;
  const T* q_row =
      a.q + a.query_start_loc[piece.seq] * a.q_token + (first_head(a, piece.head_tile) + g) * a.q_head;
  queries.load(g < heads_in_tile(a, piece.head_tile) ? q_row : nullptr, a.scale);

  CodesState<kept_as, dim> state;
  for (int step = 0; step < queue.steps; ++step) {
    if (step + 1 == queue.steps)
      wait_copies<0>();  // the row's own key too
    else
      wait_copies<kStages - 1>();
    __syncwarp();
    state.attend_step(queue.keys(step), queries, queue.valid(piece, step));
    __syncwarp();  // all lanes have read the step
    queue.copy(a, piece, step + kStages, Keys::all);
    if (step + kStages == queue.steps) on_last_copy();
  }
  if (queue.steps < kStages) on_last_copy();
  state.store(shared.result(warp));
  __syncthreads();
}

// As attention_split.
template <KvCacheDType kept_as, int dim, class T>
__global__ void __launch_bounds__(kSplitThreads, CodesShape<kept_as, dim>::kBlocks + 1)
    attention_of_codes_split(AttentionOfCodes<T> a, PartialResult<dim>* sent, unsigned* ticket) {
  constexpr int kGap = CodesShape<kept_as, dim>::kGap;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<CodesShared<kept_as, dim>*>(memory);
  allow_next_kernel();
  PreviousKernel<> previous{.has_ended = a.max_query_len > 1};
  if (previous.has_ended) wait_for_previous_kernel();

  const int head_tiles = head_tiles_of(a);
  const auto head_tile = static_cast<int>(blockIdx.x % head_tiles);
  const auto part = static_cast<int>(blockIdx.x / head_tiles);
  const int heads = heads_in_tile(a, head_tile), head0 = first_head(a, head_tile);
  auto parts = static_cast<int>(gridDim.x / head_tiles);
  const Line line = find_place<kGap>(a, part, parts);
  if (!cuts_pay<kGap>(line, static_cast<int>(gridDim.x / head_tiles)))
    return attend_whole(a, line.used, previous, shared, ticket);
  if (part >= parts) {
    if (!previous.has_ended) wait_for_previous_kernel();
    return;
  }
  auto result_of = [&](int warp) -> auto& {
    return shared.result(warp);
  };
  auto sent_by = [&](int p) -> PartialResult<dim>& { return sent[int64_t{p} * head_tiles + head_tile]; };
  const int begin = cut(part, line.total, parts);
  int64_t seq = line.seq;
  int before = line.before;
  for (int end = cut(part + 1, line.total, parts);;) {
    const int num_keys = num_decode_keys(a, seq), tiles = ceil_div(num_keys, kSplitTileKeys);
    const int first_tile = before + kGap;  // of the sequence, in the line
    const int first = max(begin - first_tile, 0), last = min(end - first_tile, tiles);
    if (first < last) {
      attend_piece(a,
                   {seq, head_tile, num_keys, first * kSplitTileKeys, min(last * kSplitTileKeys, num_keys)},
                   previous, shared, [] {});
      const int64_t row = a.query_start_loc[seq];
      const int first_part = first == 0 ? part : part_of(first_tile, line.total, parts);
      for_each_quad<dim, kSplitWarps>(heads, [&](int head, int element) {
        PartialQuad merged = merge_warps<kSplitWarps>(result_of, head, element);
        if (last < tiles) {
          PartialResult<dim>& to = sent_by(part);
          send(reinterpret_cast<float4*>(&to.out[head][element]), merged.value);
          if (element == 0) send(&to.state[head], {merged.largest, merged.sum});
        } else {
          merge_sent<dim>(merged, first_part, part, head, element, sent_by);
          store_result(a, row, head0 + head, element, merged);
        }
      });
      __syncthreads();  // the queue is free again, and all have looked at the states
      if (last == tiles)
        for (int i = threadIdx.x; i < (part - first_part) * kTileHeads; i += kSplitThreads)
          sent_by(first_part + i / kTileHeads).state[i % kTileHeads] = {0, 0};
    }
    if (before <= begin) break;
    end = before;
    do --seq;
    while (tiles_of<kGap>(a, seq) == 0);
    before -= tiles_of<kGap>(a, seq);
  }
  if (!previous.has_ended) wait_for_previous_kernel();
}

template <KvCacheDType kept_as, int dim, class T>
void launch(const OpContext& ctx, const PagedAttentionArgs& args) {
  using Shape = CodesShape<kept_as, dim>;
  const auto a = attention_of_codes_call<T>(args);
  if (!may_have_single_rows(a)) return;
  constexpr size_t kShared = sizeof(CodesShared<kept_as, dim>);
  auto kernel = attention_of_codes_split<kept_as, dim, T>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<int64_t>(kShared));
  constexpr auto kRoom = (CudaContext::kNumCounters - 1) * static_cast<int64_t>(sizeof(int)) /
                         static_cast<int64_t>(sizeof(PartialResult<dim>));
  const int64_t head_tiles = a.kv_heads * ceil_div(a.group, kTileHeads);
  const int64_t blocks = std::min<int64_t>(Shape::kBlocks * ctx.cuda->num_multiprocessors(), kRoom);
  const int64_t parts = std::max<int64_t>(blocks / head_tiles, 1);  // one sends nothing
  launch_kernel(ctx, kernel, static_cast<unsigned>(parts * head_tiles), kSplitThreads, kShared, a,
                reinterpret_cast<PartialResult<dim>*>(ctx.cuda->counters()),
                reinterpret_cast<unsigned*>(ctx.cuda->counters()) + CudaContext::kNumCounters - 1);
}

// fn<what the codes are, head size>(), for what the rung takes.
template <class Fn>
auto with_codes_shape(const PagedAttentionArgs& args, Fn&& fn) {
  const auto with_dim = [&]<KvCacheDType kept_as>() {
    switch (args.q.dim(2)) {
      case 64:
        return fn.template operator()<kept_as, 64>();
      case 128:
        return fn.template operator()<kept_as, 128>();
      default:
        return fn.template operator()<kept_as, 256>();
    }
  };
  switch (args.cache.kept_as) {
    case KvCacheDType::fp8:
      return with_dim.template operator()<KvCacheDType::fp8>();
    case KvCacheDType::int8:
      return with_dim.template operator()<KvCacheDType::int8>();
    default:
      return with_dim.template operator()<KvCacheDType::int4>();
  }
}

}  // namespace

void paged_attention_of_codes_cuda_split(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  with_codes_shape(args, [&]<KvCacheDType kept_as, int dim>() {
    if (args.q.dtype() == DType::f16)
      launch<kept_as, dim, __half>(ctx, args);
    else
      launch<kept_as, dim, __nv_bfloat16>(ctx, args);
  });
  if (args.metadata.max_query_len > 1) attention_of_codes_prefill(ctx, args, false);
}

bool paged_attention_of_codes_takes_split(const PagedAttentionArgs& args) {
  return paged_attention_of_codes_takes_tensor_core(args) && args.cache.block_size() % kStepKeys == 0 &&
         std::has_single_bit(static_cast<uint64_t>(args.cache.block_size())) &&
         fits_shared_memory(with_codes_shape(args, [&]<KvCacheDType kept_as, int dim>() {
           return static_cast<int64_t>(sizeof(CodesShared<kept_as, dim>));
         }));
}

}  // namespace ladder
