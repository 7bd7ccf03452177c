#pragma once
// The noise of sample.h on a GPU, and the search for the token that it lifts to the top.
#include "step1_layers/sampling/argmax_cuda.cuh"
#include "step1_layers/sampling/row_stream_cuda.cuh"

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

// As a call, where it stands in code that is unrolled and hardly ever runs.
__device__ __noinline__ inline float rare_noise_of(uint32_t word) {
  return noise_of(word);
}

// Tokens of a block that may have the best score, in shared memory.
struct Contenders {
  static constexpr int kSize = 256;
  struct {
    float most;  // the score is not above it
    uint32_t word;
    int32_t id;
  } list[kSize];
  int count;
  uint32_t bound;  // key_of() of a score that some token has
};

// The best logit plus noise among the tokens offered to a block. Exact noise takes two logarithms and a
// branch that few lanes of a warp share, so it is left for the end, and to the few tokens that may win by a
// cheap bound: u <= -log(1 - u) <= u / (1 - u). All lanes of a warp call together.
struct NoisySearch {
  NoiseSource source;
  Contenders& contenders;
  float bound = -INFINITY;  // some token has this score
  Best best = no_best();    // of the tokens for which the list had no room

  __device__ NoisySearch(const NoiseSource& source, Contenders& shared) : source(source), contenders(shared) {
    __syncthreads();
    if (threadIdx.x == 0) shared.count = 0;
    if (threadIdx.x == 0) shared.bound = 0;
    __syncthreads();
  }

  // Exchanges bounds with the other warps.
  __device__ void share_bound() {
    uint32_t key = 0;
    if (threadIdx.x % kWarp == 0) {
      const uint32_t mine = key_of(bound), others = atomicMax(&contenders.bound, mine);
      key = others > mine ? others : mine;
    }
    bound = float_of(__shfl_sync(kAllLanes, key, 0));
  }

  // `groups` groups of four tokens, from first, first + step, ... on. largest[j]: the largest logit of group
  // j; load(j, x) gives all four, -inf for those out of the race; both may be off by a millionth of
  // themselves. logit_of(id) gives the logit itself. One logarithm decides for a group, which hardly ever
  // goes on: whether the smallest of its random words lifts the largest of its logits to the bound.
  template <int groups, class Load, class Logit>
  __device__ void offer(uint32_t first, uint32_t step, const float (&largest)[groups], Load&& load,
                        Logit&& logit_of) {
    float top = largest[0];
#pragma unroll
    for (int j = 1; j < groups; ++j) top = fmaxf(top, largest[j]);
    // Above the error of the fast logarithm and of the logits.
    const float margin = __fmaf_rn(1e-6f, fabsf(top), 1e-3f);
    if (!__any_sync(kAllLanes, top > -INFINITY && top + margin + kLargestNoise >= bound)) return;
    if (bound == -INFINITY) {
      float x[kGroup];
      uint32_t words[kGroup];
      load(0, x);
      source.words(first, words);
      bound = fmaxf(-INFINITY, warp_max(reached(x, words) - margin));  // of infinite logits: not a NaN
      share_bound();
    }
    unsigned may_win = 0;
#pragma unroll
    for (int j = 0; j < groups; ++j) {
      uint32_t words[kGroup];
      source.words(first + j * step, words);
      const uint32_t smallest = min(min(words[0], words[1]), min(words[2], words[3]));
      if (largest[j] + largest_noise_of(smallest) + margin >= bound) may_win |= 1u << j;
    }
    if (!__any_sync(kAllLanes, may_win != 0)) return;
    float reach = -INFINITY;
    for (; may_win != 0; may_win &= may_win - 1) {
      const int j = __ffs(static_cast<int>(may_win)) - 1;
      float x[kGroup];
      uint32_t words[kGroup];
      load(j, x);
      source.words(first + j * step, words);
      reach = fmaxf(reach, reached(x, words) - margin);
#pragma unroll 1  // rare: small code is worth more
      for (int i = 0; i < kGroup; ++i) {
        const float logit = i < 2 ? (i == 0 ? x[0] : x[1]) : (i == 2 ? x[2] : x[3]);
        const uint32_t word = i < 2 ? (i == 0 ? words[0] : words[1]) : (i == 2 ? words[2] : words[3]);
        const float most = logit + largest_noise_of(word) + margin;
        if (logit > -INFINITY && most >= bound)
          add(most, word, static_cast<int32_t>(first + j * step + i), logit_of);
      }
    }
    __syncwarp();
    bound = fmaxf(bound, warp_max(reach));
  }

  // The best token of the block, in every thread.
  template <class Logit>
  __device__ Best finish(Logit&& logit_of) {
    share_bound();
    __syncthreads();
    const float reach = float_of(contenders.bound);
    const int count = min(contenders.count, Contenders::kSize);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const auto& one = contenders.list[i];
      if (one.most >= reach) best = better(best, {logit_of(one.id) + noise_of(one.word), one.id});
    }
    return block_best(best);
  }

 private:
  template <class Logit>
  __device__ void add(float most, uint32_t word, int32_t id, Logit&& logit_of) {
    const int slot = atomicAdd(&contenders.count, 1);
    if (slot < Contenders::kSize)
      contenders.list[slot] = {most, word, id};
    else
      best = better(best, {logit_of(id) + rare_noise_of(word), id});
  }

  // Not below the noise, but for the error of the fast logarithm.
  __device__ static float largest_noise_of(uint32_t word) {
    return -__logf(uniform_of(word));
  }

  // A score that is below the best one of the group, but for the margin.
  __device__ static float reached(const float (&x)[kGroup], const uint32_t (&words)[kGroup]) {
    float score = -INFINITY;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float u = uniform_of(words[i]);
      score = fmaxf(score, x[i] - __logf(__fdividef(u, 1.0f - u)));
    }
    return score;
  }
};

}  // namespace ladder
