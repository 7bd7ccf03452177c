#pragma once
// The fast rungs of the sampling operators, one copy per instruction set. All take one row of `vocab` logits.
#include <cstdint>

#include "step1_layers/core/cpu_features.h"

namespace ladder {

LADDER_DECLARE_FOR_EACH_ISA(struct SamplingKernels {
  // The largest value; NaN if there is one.
  static float maximum(const float* x, int64_t vocab);
  // The first index of the largest value; -1 if there is a NaN, or nothing but -inf.
  static int64_t argmax(const float* x, int64_t vocab);
  // The sum of e^(x - shift); out, if given, receives the terms.
  static double sum_exp(const float* x, int64_t vocab, float shift, float* out);
  static void multiply(float* x, int64_t vocab, float factor);
  static void divide(float* x, int64_t vocab, float divisor);
  // out = (x - first) - second
  static void subtract(const float* x, int64_t vocab, float first, float second, float* out);
  // -inf where x < threshold
  static void mask_below(float* x, int64_t vocab, float threshold);
  // The first index of the largest x[i] + Gumbel noise of token i (sample.h); -1 as for argmax.
  static int64_t gumbel_argmax(const float* x, int64_t vocab, uint64_t seed, uint64_t output_index);
};)

}  // namespace ladder
