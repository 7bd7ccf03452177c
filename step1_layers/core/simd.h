#pragma once
// One register of floats, under one name for every instruction set, so that a fast kernel is written once and
// compiled per set (cpu_features.h says how). Only x_simd.cpp files include this. `Vec` holds kLanes floats;
// loads from bf16 and f16 widen, stores round to nearest even. exp() is within 2 units in the last place.
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "step1_layers/core/dtype.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder::LADDER_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
struct Vec {
  __m512 v;
};
inline Vec zero() {
  return {_mm512_setzero_ps()};
}
inline Vec broadcast(float x) {
  return {_mm512_set1_ps(x)};
}
inline Vec load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline Vec load_once(const float* p) {  // where it is used twice compilers load twice
  Vec a = load(p);
  asm("" : "+v"(a.v));
  return a;
}
inline Vec load(const bf16* p) {
  __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
inline Vec load(const f16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store(float* p, Vec a) {
  _mm512_storeu_ps(p, a.v);
}
inline void store(bf16* p, Vec a) {
  __m512i bits = _mm512_castps_si512(a.v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, _mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(rounded));
}
inline void store(f16* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec operator+(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}  // a * b + c
inline Vec max(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}
// Whether a value that was looked at may be NaN.
class NanWatch {
 public:
  void look_at(Vec a, Vec b) {
    seen_ = static_cast<__mmask16>(seen_ | _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q));
  }
  bool found() const { return seen_ != 0; }

 private:
  __mmask16 seen_ = 0;
};
inline float reduce_add(Vec a) {
  return _mm512_reduce_add_ps(a.v);
}
inline float reduce_max(Vec a) {
  return _mm512_reduce_max_ps(a.v);
}
inline Vec round_to_int(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec scale_by_power_of_two(Vec a, Vec n) {
  return {_mm512_scalef_ps(a.v, n.v)};
}
inline Vec split_exponent(Vec a, Vec& exponent) {
  __m512i bits = _mm512_sub_epi32(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x3f3504f3));
  exponent = {_mm512_cvtepi32_ps(_mm512_srai_epi32(bits, 23))};
  bits = _mm512_and_epi32(bits, _mm512_set1_epi32(0x7fffff));
  return {_mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f3504f3)))};
}
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
struct Vec {
  __m256 v;
};
inline Vec zero() {
  return {_mm256_setzero_ps()};
}
inline Vec broadcast(float x) {
  return {_mm256_set1_ps(x)};
}
inline Vec load(const float* p) {
  return {_mm256_loadu_ps(p)};
}
inline Vec load_once(const float* p) {  // as above
  Vec a = load(p);
  asm("" : "+v"(a.v));
  return a;
}
inline Vec load(const bf16* p) {
  __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
}
inline Vec load(const f16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.v);
}
inline void store(bf16* p, Vec a) {
  __m256i bits = _mm256_castps_si256(a.v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  rounded = _mm256_blendv_epi8(rounded, quiet, nan);
  __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
inline void store(f16* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.v, b.v)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.v, b.v)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
inline Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.v, b.v)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.v, b.v)};
}
class NanWatch {  // as above
 public:
  void look_at(Vec a, Vec b) { seen_ = _mm256_or_ps(seen_, _mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q)); }
  bool found() const { return _mm256_movemask_ps(seen_) != 0; }

 private:
  __m256 seen_ = _mm256_setzero_ps();
};
inline float reduce_add(Vec a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float reduce_max(Vec a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
inline Vec round_to_int(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec scale_by_power_of_two(Vec a, Vec n) {
  __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23);
  return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(exponent))};
}
inline Vec split_exponent(Vec a, Vec& exponent) {
  __m256i bits = _mm256_sub_epi32(_mm256_castps_si256(a.v), _mm256_set1_epi32(0x3f3504f3));
  exponent = {_mm256_cvtepi32_ps(_mm256_srai_epi32(bits, 23))};
  bits = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff));
  return {_mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f3504f3)))};
}
#else
inline constexpr int kLanes = 8;
struct Vec {
  float v[kLanes];
};
// Plain loops over eight floats: every compiler turns them into whatever registers its target has.
#define LADDER_LANES for (int i = 0; i < kLanes; ++i)
inline Vec broadcast(float x) {
  Vec r;
  LADDER_LANES r.v[i] = x;
  return r;
}
inline Vec zero() {
  return broadcast(0.0f);
}
template <class T>
inline Vec load(const T* p) {
  Vec r;
  LADDER_LANES r.v[i] = static_cast<float>(p[i]);
  return r;
}
inline Vec load_once(const float* p) {
  return load(p);
}
template <class T>
inline void store(T* p, Vec a) {
  LADDER_LANES p[i] = T(a.v[i]);
}
inline Vec operator+(Vec a, Vec b) {
  LADDER_LANES a.v[i] += b.v[i];
  return a;
}
inline Vec operator-(Vec a, Vec b) {
  LADDER_LANES a.v[i] -= b.v[i];
  return a;
}
inline Vec operator*(Vec a, Vec b) {
  LADDER_LANES a.v[i] *= b.v[i];
  return a;
}
inline Vec operator/(Vec a, Vec b) {
  LADDER_LANES a.v[i] /= b.v[i];
  return a;
}
inline Vec fma(Vec a, Vec b, Vec c) {
  LADDER_LANES c.v[i] += a.v[i] * b.v[i];
  return c;
}
inline Vec max(Vec a, Vec b) {
  LADDER_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
inline Vec min(Vec a, Vec b) {
  LADDER_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
// A sum: NaN if a value is, or, which is rare, where +inf meets -inf; found() is only a suspicion then.
class NanWatch {
 public:
  void look_at(Vec a, Vec b) { LADDER_LANES sum_[i] += a.v[i] + b.v[i]; }
  bool found() const {
    float sum = 0.0f;
    LADDER_LANES sum += sum_[i];
    return sum != sum;
  }

 private:
  float sum_[kLanes] = {};
};
inline float reduce_add(Vec a) {
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
  return a.v[0];
}
inline float reduce_max(Vec a) {
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
  return a.v[0];
}
inline Vec round_to_int(Vec a) {
  LADDER_LANES a.v[i] = __builtin_rintf(a.v[i]);
  return a;
}
inline Vec scale_by_power_of_two(Vec a, Vec n) {
  LADDER_LANES {
    uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23;
    float factor;
    __builtin_memcpy(&factor, &bits, sizeof factor);
    a.v[i] *= factor;
  }
  return a;
}
inline Vec split_exponent(Vec a, Vec& exponent) {
  LADDER_LANES {
    int32_t bits;
    __builtin_memcpy(&bits, &a.v[i], sizeof bits);
    bits -= 0x3f3504f3;
    exponent.v[i] = static_cast<float>(bits >> 23);
    bits = (bits & 0x7fffff) + 0x3f3504f3;
    __builtin_memcpy(&a.v[i], &bits, sizeof bits);
  }
  return a;
}
#undef LADDER_LANES
#endif

// The first count < kLanes values at p, zeros after them; and the first count lanes stored. For a row's end.
template <class T>
inline Vec load_partial(const T* p, int64_t count) {
  T values[kLanes];
  __builtin_memset(values, 0, sizeof values);
  __builtin_memcpy(values, p, static_cast<size_t>(count) * sizeof(T));
  return load(values);
}
template <class T>
inline void store_partial(T* p, Vec a, int64_t count) {
  T values[kLanes];
  store(values, a);
  __builtin_memcpy(p, values, static_cast<size_t>(count) * sizeof(T));
}

// exp by range reduction: x = n ln 2 + r with |r| <= ln 2 / 2, e^x = 2^n e^r, e^r by a degree-6 polynomial
// (Cephes expf's coefficients). Below -87 the result is flushed to zero, so that a masked score of -inf
// weighs exactly nothing.
inline Vec exp(Vec x) {
  const Vec low = broadcast(-87.0f);
  const Vec clamped = min(broadcast(88.0f), max(low, x));  // in this order a NaN stays a NaN
  const Vec n = round_to_int(clamped * broadcast(1.44269504088896341f));
  Vec r = fma(n, broadcast(-0.693359375f), clamped);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r) + broadcast(1.0f);
  Vec result = scale_by_power_of_two(p, n);
#if defined(__AVX512F__)
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, low.v, _CMP_NLE_UQ), result.v)};
#elif defined(__AVX2__)
  return {_mm256_and_ps(result.v, _mm256_cmp_ps(x.v, low.v, _CMP_NLE_UQ))};
#else
  for (int i = 0; i < kLanes; ++i)
    if (x.v[i] <= low.v[i]) result.v[i] = 0.0f;
  return result;
#endif
}

// The natural logarithm of positive normal numbers: x = 2^e m with m in [sqrt 1/2, sqrt 2), log m by a
// polynomial in m - 1 (Cephes logf's coefficients). Within 2 units in the last place.
inline Vec log(Vec x) {
  Vec e;
  const Vec f = split_exponent(x, e) - broadcast(1.0f);
  const Vec square = f * f;
  Vec p = broadcast(7.0376836292e-2f);
  p = fma(p, f, broadcast(-1.1514610310e-1f));
  p = fma(p, f, broadcast(1.1676998740e-1f));
  p = fma(p, f, broadcast(-1.2420140846e-1f));
  p = fma(p, f, broadcast(1.4249322787e-1f));
  p = fma(p, f, broadcast(-1.6668057665e-1f));
  p = fma(p, f, broadcast(2.0000714765e-1f));
  p = fma(p, f, broadcast(-2.4999993993e-1f));
  p = fma(p, f, broadcast(3.3333331174e-1f));
  p = p * f * square;
  p = fma(e, broadcast(-2.12194440e-4f), p);
  p = fma(square, broadcast(-0.5f), p);
  return fma(e, broadcast(0.693359375f), f + p);
}

}  // namespace ladder::LADDER_ISA
