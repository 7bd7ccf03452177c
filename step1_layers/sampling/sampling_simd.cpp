#include "step1_layers/sampling/sampling_simd.h"

#include "step1_layers/core/simd.h"

namespace ladder::LADDER_ISA {

namespace {

constexpr float kMinusInfinity = -__builtin_inff();

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// The next kLanes values of a row, `filler` past its end.
inline Vec load_row(const float* x, int64_t count, float filler) {
  if (count >= kLanes) return load(x);
  float values[kLanes];
  for (int i = 0; i < kLanes; ++i) values[i] = i < count ? x[i] : filler;
  return load(values);
}

inline void store_row(float* x, Vec value, int64_t count) {
  if (count >= kLanes)
    store(x, value);
  else
    store_partial(x, value, count);
}

bool holds_nan(const float* x, int64_t vocab) {
  for (int64_t i = 0; i < vocab; ++i)
    if (__builtin_isnan(x[i])) return true;
  return false;
}

// >>> task 1.8.simd: Philox and Gumbel noise on registers of tokens
constexpr int kCounters = 16;           // Philox blocks computed side by side
constexpr int kTokens = 4 * kCounters;  // four words, four tokens each
constexpr float kLargestNoise = 23.0f;  // -log(2^-33) = 22.87

// The words of tokens [first, first + kTokens), first a multiple of 4.
void philox_words(uint32_t first, uint64_t seed, uint64_t output_index, uint32_t* words) {
  uint32_t c0[kCounters], c1[kCounters], c2[kCounters], c3[kCounters];
  for (int i = 0; i < kCounters; ++i) {
    c0[i] = first / 4 + static_cast<uint32_t>(i);
    c1[i] = static_cast<uint32_t>(output_index);
    c2[i] = static_cast<uint32_t>(output_index >> 32);
    c3[i] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kCounters; ++i) {
      const uint64_t a = uint64_t{0xD2511F53} * c0[i], b = uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(b);
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(a);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  for (int i = 0; i < kCounters; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

// -log(-log(1 - u)). The inner logarithm keeps its relative accuracy for small u through Kahan's quotient:
// log(1 - u) = log(w) * u / (1 - w) where w is the rounded 1 - u. Where w rounds to 1 the quotient is 0 and
// u itself is the answer to within rounding; -log(1 - u) is never less than u.
inline Vec gumbel(Vec u) {
  const Vec one = broadcast(1.0f);
  const Vec w = one - u;
  const Vec quotient = u / max(one - w, broadcast(1e-30f));
  const Vec exponential = max(u, (zero() - log(w)) * quotient);
  return zero() - log(exponential);
}

// The uniform numbers of tokens [first, first + kTokens) (philox.h).
void uniforms(uint32_t first, uint64_t seed, uint64_t output_index, float* out) {
  uint32_t words[kTokens];
  philox_words(first, seed, output_index, words);
  for (int i = 0; i < kTokens; ++i) {
    const float u = (static_cast<float>(words[i]) + 0.5f) * 0x1p-32f;
    out[i] = u < 1.0f - 0x1p-24f ? u : 1.0f - 0x1p-24f;
  }
}

// Whether any of kTokens tokens with these uniforms and logits of at most `largest` can score above `best`:
// its score is at most largest - log u, since -log(1 - u) >= u. The margin is far above the error of exp and
// log.
bool may_win(const float* uniform, float largest, float best) {
  Vec smallest = load(uniform);
  for (int i = kLanes; i < kTokens; i += kLanes) smallest = min(load(uniform + i), smallest);
  float bound[kLanes];
  store(bound, exp(broadcast(largest - best)) * broadcast(1.001f));
  return -reduce_max(zero() - smallest) < bound[0];
}
// <<< task 1.8.simd

}  // namespace

float SamplingKernels::maximum(const float* x, int64_t vocab) {
  // A row is longer than the caches near a core: it is asked for 2 KiB ahead of the processor's own prefetching.
  constexpr int kLine = 16, kAhead = 512;
  // max(a, b) gives b where a is NaN: the running maxima, which go second, pass over NaNs.
  Vec largest[4];
  for (Vec& value : largest) value = broadcast(kMinusInfinity);
  NanWatch watch;
  int64_t i = 0;
  for (; i + 4 * kLanes <= vocab; i += 4 * kLanes) {
    for (int line = 0; line < 4 * kLanes; line += kLine) __builtin_prefetch(x + i + kAhead + line);
    Vec values[4];
    for (int j = 0; j < 4; ++j) {
      values[j] = load_once(x + i + j * kLanes);
      largest[j] = max(values[j], largest[j]);
    }
    watch.look_at(values[0], values[1]);
    watch.look_at(values[2], values[3]);
  }
  for (; i < vocab; i += kLanes) {
    const Vec values = load_row(x + i, vocab - i, kMinusInfinity);
    largest[0] = max(values, largest[0]);
    watch.look_at(values, values);
  }
  if (watch.found() && holds_nan(x, vocab)) return __builtin_nanf("");
  return reduce_max(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
}

int64_t SamplingKernels::argmax(const float* x, int64_t vocab) {
  constexpr int64_t kChunk = 1024;  // the search for the index is confined to the winning chunk
  float best = kMinusInfinity;
  int64_t best_chunk = 0;
  for (int64_t chunk = 0; chunk < vocab; chunk += kChunk) {
    const float largest = maximum(x + chunk, smaller(kChunk, vocab - chunk));
    if (largest <= best) continue;
    if (__builtin_isnan(largest)) return -1;
    best = largest;
    best_chunk = chunk;
  }
  if (best == kMinusInfinity) return -1;
  for (int64_t i = best_chunk;; ++i)
    if (x[i] == best) return i;
}

double SamplingKernels::sum_exp(const float* x, int64_t vocab, float shift, float* out) {
  constexpr int64_t kChunk = 4096;  // float sums inside a chunk, double across chunks
  double total = 0;
  for (int64_t chunk = 0; chunk < vocab; chunk += kChunk) {
    const int64_t end = smaller(chunk + kChunk, vocab);
    Vec sum = zero();
    for (int64_t i = chunk; i < end; i += kLanes) {
      const Vec term = exp(load_row(x + i, end - i, kMinusInfinity) - broadcast(shift));
      if (out) store_row(out + i, term, end - i);
      sum = sum + term;
    }
    total += static_cast<double>(reduce_add(sum));
  }
  return total;
}

void SamplingKernels::multiply(float* x, int64_t vocab, float factor) {
  for (int64_t i = 0; i < vocab; i += kLanes)
    store_row(x + i, load_row(x + i, vocab - i, 0.0f) * broadcast(factor), vocab - i);
}

void SamplingKernels::divide(float* x, int64_t vocab, float divisor) {
  for (int64_t i = 0; i < vocab; i += kLanes)
    store_row(x + i, load_row(x + i, vocab - i, 0.0f) / broadcast(divisor), vocab - i);
}

void SamplingKernels::subtract(const float* x, int64_t vocab, float first, float second, float* out) {
  for (int64_t i = 0; i < vocab; i += kLanes)
    store_row(out + i, load_row(x + i, vocab - i, 0.0f) - broadcast(first) - broadcast(second), vocab - i);
}

void SamplingKernels::mask_below(float* x, int64_t vocab, float threshold) {
  for (int64_t i = 0; i < vocab; ++i) x[i] = x[i] < threshold ? kMinusInfinity : x[i];
}

int64_t SamplingKernels::gumbel_argmax(const float* x, int64_t vocab, uint64_t seed, uint64_t output_index) {
  float best = kMinusInfinity;
  int64_t best_token = -1;
  for (int64_t first = 0; first < vocab; first += kTokens) {
    const int64_t count = smaller(kTokens, vocab - first);
    // Noise is bounded, so all that a filter has cut, and the tail of a peaked row, need none.
    const float largest = maximum(x + first, count);
    if (largest + kLargestNoise <= best) continue;
    if (__builtin_isnan(largest)) return -1;
    float uniform[kTokens], scores[kTokens];
    uniforms(static_cast<uint32_t>(first), seed, output_index, uniform);
    if (!may_win(uniform, largest, best)) continue;  // nearly always, and two logarithms are saved
    for (int64_t i = 0; i < kTokens; i += kLanes)
      store(scores + i, load_row(x + first + i, count - i, kMinusInfinity) + gumbel(load(uniform + i)));
    for (int64_t i = 0; i < count; ++i)
      if (scores[i] > best) {
        best = scores[i];
        best_token = first + i;
      }
  }
  return best_token;
}

}  // namespace ladder::LADDER_ISA
