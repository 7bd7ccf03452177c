#pragma once
// Task 1.8: draws one token per row from softmax(logits), by the Gumbel-max trick (Gumbel, 1954; Maddison et
// al., 2014, arXiv 1411.0030): add independent Gumbel noise to every logit and take the largest. That is one
// pass over the row, without a sum of probabilities and without a search.
//
//   id = argmax_i logits[i] - log(-log(1 - u_i)),   u_i = sampling_uniform(seed, output_index, i) (philox.h)
//
// -log(1 - u) is an exponential variate; written so, and not as -log(u), the small values that decide between
// unlikely tokens are resolved finely. u is the same number on every device and in every kernel; the
// logarithms may differ in their last place, which matters only where two tokens' scores lie within 1e-6 of
// each other.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"
#include "step1_layers/sampling/temperature.h"

namespace ladder {

struct SampleArgs {
  Tensor logits;        // f32 [rows, vocab]: divided by the temperature, cut tokens at -inf
  Tensor temperature;   // f32 [rows]: a row below kMinTemperature is greedy, it gets no noise
  Tensor seeds;         // i64 [rows]: the 64 bits of the request's seed
  Tensor output_index;  // i64 [rows]: how many tokens the request has sampled before this one
  Tensor ids;           // i32 [rows]
};

std::span<const Variant<SampleArgs>> sample_variants();

// Ties go to the lowest id, also among logits of +inf. A row that holds a NaN, and one of nothing but -inf,
// gives kInvalidToken (invalid_token.h). Error: shapes or dtypes that do not fit together.
void sample(const OpContext& ctx, const SampleArgs& args);

}  // namespace ladder
