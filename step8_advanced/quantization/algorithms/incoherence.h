#pragma once
// Task 8.3.incoherence, experimental: a weight without numbers that stand out, as QuIP# rounds them (Tseng et al., 2024, arXiv
// 2402.04396; the idea is QuIP's, Chee et al., 2023, arXiv 2307.13304).
//
//   mu = max |W_ij| sqrt(n k) / |W|      of W [n, k], |W| being the root of the sum of its squares
//
// is 1 where all numbers are equally large and sqrt(n k) where one number is all there is. A grid has to reach the largest number and
// its steps are as fine as its codes are many, so a large mu is steps that are coarse for nearly everybody.
//
//   W~ = Q_n^T W Q_k            Q = D H / sqrt(size), random signs and a Hadamard matrix (hadamard.h), of either side its own signs
//   W  = Q_n W~ Q_k^T           nothing is lost: |W~| = |W|, and an error of W~ is as large as what it becomes in W
//
// Whatever W is, with probability 1 - delta over the signs W~ has mu <= 2 ln(4 n k / delta) (QuIP#'s lemma 3.1): each of its numbers is a
// sum over all of W's with random signs, and sums of that kind are close to normal.
//
// Rotations (QuaRot) turn inputs and the weight's columns, because *inputs* have outliers; here both sides of the weight are turned, so
// that an output with large weights is spread too. The price is a transform of x and one of y around each product:
//
//   y = W x = Q_n (W~ (Q_k^T x))
#include <cstdint>
#include <string>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step8_advanced/quantization/quantized_weight.h"
#include "step8_advanced/quantization/scheme.h"

namespace ladder {

// mu of a weight [n, k] f32; 0 of a weight of zeros.
double incoherence_of(const Tensor& weight);
// What mu of a processed weight [n, k] stays below, but for a share of delta of all seeds.
double incoherence_bound(int64_t n, int64_t k, double delta);

// W~ of W and W of W~, f32 [n, k], for the same seed. Error: a size without a Hadamard matrix (hadamard.h).
Tensor make_incoherent(const Tensor& weight, uint64_t seed);
Tensor undo_incoherence(const Tensor& weight, uint64_t seed);

// W~ of W rounded to nearest (quantize_weight.h), whose codes are what a file would keep.
QuantizedWeight quantize_incoherent(const Tensor& weight, const QuantizationArgs& args,
                                    const std::string& name, uint64_t seed);
// out [m, n] = x [m, k] W^T, with `rounded` [n, k] being W~, which stays as it is: x is turned before the product and out after it. f32.
void multiply_incoherent(const OpContext& ctx, const Tensor& rounded, const Tensor& x, uint64_t seed,
                         const Tensor& out);

}  // namespace ladder
