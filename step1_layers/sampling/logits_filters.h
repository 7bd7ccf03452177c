#pragma once
// Task 1.8: temperature, and the filters that cut a distribution's tail. All work in place on the logits; a
// token that is cut gets -inf. The sampling pipeline applies them in the order in which they stand here, each
// to the distribution that the ones before it left.
//
//   temperature  logit / temperature
//   min-p        keeps tokens with p >= min_p * (largest p)   (Nguyen et al., 2024, arXiv 2407.01082)
//   top-k        keeps tokens with logit >= the k-th largest: all that equal the k-th stay
//   top-p        keeps the fewest tokens whose probabilities sum to at least top_p, in order of logit,
//                equals by id; at least one                   (Holtzman et al., 2019, arXiv 1904.09751)
//
// Every row has its own value. A row whose value is "off" is not touched. Beside a logit of +inf, which
// quotients may become, min-p and top-k cut what is finite, and top-p nothing. A row that holds a NaN still
// holds it afterwards; its other values are unspecified, as no token is drawn from it.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"
#include "step1_layers/sampling/temperature.h"

namespace ladder {

struct LogitsFilterArgs {
  Tensor logits;  // f32 [rows, vocab], updated in place
  Tensor value;   // [rows]: f32, for top-k i32
};

std::span<const Variant<LogitsFilterArgs>> apply_temperature_variants();
std::span<const Variant<LogitsFilterArgs>> mask_min_p_variants();
std::span<const Variant<LogitsFilterArgs>> mask_top_k_variants();
std::span<const Variant<LogitsFilterArgs>> mask_top_p_variants();

// Scratch comes from ctx.arena. Error: shapes or dtypes that do not fit together.
// Off: a temperature below kMinTemperature (the row is greedy) or of 1; min_p <= 0; top_k (i32) <= 0 or
// >= vocab; top_p >= 1.
void apply_temperature(const OpContext& ctx, const Tensor& logits, const Tensor& temperature);
void mask_min_p(const OpContext& ctx, const Tensor& logits, const Tensor& min_p);
void mask_top_k(const OpContext& ctx, const Tensor& logits, const Tensor& top_k);
void mask_top_p(const OpContext& ctx, const Tensor& logits, const Tensor& top_p);

}  // namespace ladder
