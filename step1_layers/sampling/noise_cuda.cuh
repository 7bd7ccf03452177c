#pragma once
// The noise of sample.h on a GPU, and the search for the token that it lifts to the top.
#include "step1_layers/sampling/argmax_cuda.cuh"
#include "step1_layers/sampling/row_stream_cuda.cuh"
#include "step1_layers/sampling/temperature.h"

namespace ladder {

// -log(2^-33) = 22.87 is the largest noise there is.
inline constexpr float kLargestNoise = 23.0f;

// Of which request and place in its output the noise is (philox.h).
struct NoiseSource {
  uint64_t seed, output_index;

  // Both words of a product by one instruction; from a 64-bit product the compiler makes two.
  __device__ static void multiply(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
    asm("{ .reg .u64 product; mul.wide.u32 product, %2, %3; mov.b64 {%1, %0}, product; }"
        : "=r"(high), "=r"(low)
        : "r"(a), "r"(b));
  }

  // The words of tokens first, ..., first + 3; first is a multiple of four.
  __device__ void words(uint32_t first, uint32_t (&c)[kGroup]) const {
    c[0] = first / kGroup;
    c[1] = static_cast<uint32_t>(output_index);
    c[2] = static_cast<uint32_t>(output_index >> 32);
    c[3] = 0;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      uint32_t high0, low0, high2, low2;
      multiply(0xD2511F53u, c[0], high0, low0);
      multiply(0xCD9E8D57u, c[2], high2, low2);
      c[0] = high2 ^ c[1] ^ k0;
      c[1] = low2;
      c[2] = high0 ^ c[3] ^ k1;
      c[3] = low0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }
};

// An unsigned number that orders as the float does; the sum makes 0 of -0.
__device__ inline uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float float_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ inline float uniform_of(uint32_t word) {
  return fminf(__fmul_rn(__fadd_rn(__uint2float_rn(word), 0.5f), 0x1p-32f), 1.0f - 0x1p-24f);
}
__device__ inline float noise_of(uint32_t word) {
  return -logf(-log1pf(-uniform_of(word)));
}

// Groups of four tokens of a block that may hold the best score, in shared memory.
struct Contenders {
  static constexpr int kSize = 256;
  struct {
    float max_score;  // no score of the group is above it
    uint32_t first;
  } list[kSize];
  int count;
  uint32_t bound;  // key_of() of a score that some token has; of NaN where a logit is NaN
};

// The best logit plus noise among the tokens offered to a block. Exact noise takes two logarithms and a
// branch that few lanes of a warp share, so it is left for the end, and to the few groups that may win by a
// cheap bound: u <= -log(1 - u) <= u / (1 - u). All lanes of a warp call together.
struct NoisySearch {
  NoiseSource source;
  Contenders& contenders;

  __device__ NoisySearch(const NoiseSource& source, Contenders& shared) : source(source), contenders(shared) {
    __syncthreads();
    if (threadIdx.x == 0) shared.count = 0;
    if (threadIdx.x == 0) shared.bound = key_of(-INFINITY);
    __syncthreads();
  }

  // The smallest random word of each of `groups` groups, from first, first + step, ... on: it makes the
  // largest noise.
  template <int groups>
  __device__ void find_smallest(uint32_t first, uint32_t step, uint32_t (&smallest)[groups]) const {
#pragma unroll
    for (int j = 0; j < groups; ++j) {
      uint32_t words[kGroup];
      source.words(first + j * step, words);
      smallest[j] = smallest_of(words);
    }
  }

  // Whether a token with one of these logits can win at all.
  __device__ bool can_win(const float (&x)[kGroup]) const {
    const float largest = largest_of(x);
    return largest > -INFINITY && largest + margin_of(largest) + kLargestNoise >= bound();
  }

  // A first bound from a group of every thread. The whole block calls, before the first offer.
  __device__ void start(uint32_t first, const float (&x)[kGroup]) {
    uint32_t words[kGroup];
    source.words(first, words);
    raise_bound(reached(x, words, margin_of(largest_of(x))));
    __syncthreads();
  }

  // Groups as in find_smallest(). x[j] has the logits of group j, -inf for tokens out of the race; they may
  // be off by a millionth of themselves. A group hardly ever goes on: whether the smallest of its random
  // words lifts the largest of its logits to the bound is decided without a logarithm,
  //   logit - log u >= bound    where    word <= 2^32 e^(logit - bound).
  template <int groups>
  __device__ void offer(uint32_t first, uint32_t step, const float (&x)[groups][kGroup],
                        const uint32_t (&smallest)[groups]) {
    float largest[groups], top = -INFINITY;
#pragma unroll
    for (int j = 0; j < groups; ++j) {
      largest[j] = max_or_nan(x[j]);
      top = max_or_nan(top, largest[j]);
    }
    const bool is_invalid = isnan(top);  // then nothing below may win: all comparisons are with NaN
    constexpr float kLog2e = 1.44269504f;
    const float margin = margin_of(top), offset = __fmaf_rn(margin - bound(), kLog2e, 32.0f);
    unsigned may_win = 0;
#pragma unroll
    for (int j = 0; j < groups; ++j) {
      const float max_word = power_of_two(__fmaf_rn(largest[j], kLog2e, offset));
      if (__uint2float_rn(smallest[j]) <= max_word) may_win |= 1u << j;
    }
    if (!__any_sync(kAllLanes, may_win != 0 || is_invalid)) return;
    if (is_invalid) atomicMax(&contenders.bound, key_of(NAN));  // no score is above it
    float score = -INFINITY;
#pragma unroll 1  // rare: small code is worth more
    for (int j = 0; j < groups; ++j) {
      if ((may_win >> j & 1) == 0) continue;
      float of_group[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        of_group[i] = x[0][i];
#pragma unroll
        for (int other = 1; other < groups; ++other)
          if (j == other) of_group[i] = x[other][i];
      }
      uint32_t words[kGroup];
      source.words(first + j * step, words);
      score = fmaxf(score, reached(of_group, words, margin));
      const int slot = atomicAdd(&contenders.count, 1);
      const float max_score = largest_of(of_group) + largest_noise_of(smallest_of(words)) + margin;
      if (slot < Contenders::kSize) contenders.list[slot] = {max_score, first + j * step};
    }
    __syncwarp();
    raise_bound(score);
  }

  // The best token of the block in every thread, when all of tokens [begin, end) have been offered;
  // invalid_best() where one of them was NaN.
  // logit_of(id) gives the logit itself, also of tokens past the end that share a group with some before it.
  template <class Logit>
  __device__ Best finish(int32_t begin, int32_t end, Logit&& logit_of) {
    __syncthreads();
    const float reach = bound();
    if (isnan(reach)) return invalid_best();                    // the same in every thread
    const bool listed = contenders.count <= Contenders::kSize;  // thousands of equals are not
    const int tokens = listed ? contenders.count * kGroup : end - begin;
    Best best = no_best();
#pragma unroll 1
    for (int i = threadIdx.x; i < tokens; i += blockDim.x) {
      int32_t id = begin + i;
      if (listed) {
        const auto& group = contenders.list[i / kGroup];
        if (group.max_score < reach) continue;
        id = static_cast<int32_t>(group.first) + i % kGroup;
      }
      const float logit = logit_of(id);
      if (!(logit > -INFINITY)) continue;
      uint32_t words[kGroup];
      source.words(static_cast<uint32_t>(id) / kGroup * kGroup, words);
      const uint32_t left = id % 2 == 0 ? words[0] : words[1], right = id % 2 == 0 ? words[2] : words[3];
      best = better(best, {logit + noise_of(id % kGroup < 2 ? left : right), id});
    }
    return block_best(best);
  }

 private:
  // Some token of the block has this score.
  __device__ float bound() const {
    return float_of(*static_cast<const volatile uint32_t*>(&contenders.bound));
  }
  __device__ void raise_bound(float score) {
    score = warp_max(score);
    if (threadIdx.x % kWarp == 0) atomicMax(&contenders.bound, key_of(score));
  }

  // Above the error of the fast logarithm, of the fast exponential and of the logits.
  __device__ static float margin_of(float logit) {
    return __fmaf_rn(1e-6f, fabsf(logit), 1e-3f);
  }
  __device__ static float largest_of(const float (&x)[kGroup]) {
    return fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
  }
  __device__ static uint32_t smallest_of(const uint32_t (&words)[kGroup]) {
    return min(min(words[0], words[1]), min(words[2], words[3]));
  }

  // Not below the noise, but for the margin.
  __device__ static float largest_noise_of(uint32_t word) {
    return -__logf(uniform_of(word));
  }

  // A score that is not above the best one of the group. The margin belongs to the noise: infinite logits
  // less an infinite margin were no number.
  __device__ static float reached(const float (&x)[kGroup], const uint32_t (&words)[kGroup], float margin) {
    float score = -INFINITY;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float u = uniform_of(words[i]);
      score = fmaxf(score, x[i] - (__logf(__fdividef(u, 1.0f - u)) + margin));
    }
    return score;
  }

  __device__ static float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
};

}  // namespace ladder
