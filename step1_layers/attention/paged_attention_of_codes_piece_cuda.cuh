#pragma once
// What the decode kernel over codes computes of a piece of a sequence's keys: queries as operands, a warp's softmax over its keys so
// far, whose products are of codes by tensor cores (paged_attention_of_codes_decode_cuda.cu says why they may be).
#include <cfloat>

#include <cuda_fp8.h>

#include "step1_layers/attention/paged_attention_of_codes_queue_cuda.cuh"
#include "step1_layers/attention/paged_attention_prefill_cuda.cuh"

namespace ladder {

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
__device__ inline float largest_of_lanes(float x) {
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

}  // namespace ladder
