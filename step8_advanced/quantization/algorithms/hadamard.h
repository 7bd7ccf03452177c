#pragma once
// Task 8.3: rotations that spread outliers over all features, as QuaRot (Ashkboos et al., 2024, arXiv 2404.00456) and QuIP#
// (Tseng et al., 2024, arXiv 2402.04396) use them: y = x Q with Q orthogonal and all of its elements equally large.
//
//   Q = D H / sqrt(n)        D: signs from a seed;  H: a Hadamard matrix: elements 1 and -1, H H^T = n I
//
//   H_1 = [1]     H_2n = [ H_n   H_n ]     Sylvester's, for powers of two
//                        [ H_n  -H_n ]
//   H_12, H_20: Paley's, from the squares modulo 11 and 19; H_12 (x) H_32 = H_384, H_20 (x) H_32 = H_640, ...
//
//   fast transform of a row:
//     for each power of two h below 2^a, in every pair of numbers h apart: (a, b) = (a + b, a - b)
//     then in every 12 (or 20) numbers 2^a apart: times the small matrix
//
// One feature of size f becomes n features of size f / sqrt(n). Rotating x and every weight that takes it, W Q, leaves W x as it
// is, since Q Q^T = I; and Q's own product with the weight that makes x can be done beforehand.
//
// Time: n (a + 12) additions for a row of n numbers instead of n^2; memory none but a row.
#include <cstdint>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder {

class HadamardRotation {
 public:
  // size = 2^a, 12 * 2^a or 20 * 2^a; Error: another. The signs are a function of seed and size.
  HadamardRotation(int64_t size, uint64_t seed);

  int64_t size() const { return static_cast<int64_t>(signs_.size()); }

  // Every row of x [m, size] in its place, f32 or f64, in double inside: x Q and x Q^T, each the other's inverse.
  void rotate(const Tensor& x) const;
  void rotate_back(const Tensor& x) const;

 private:
  void transform(double* row, double* scratch, bool transposed) const;

  int64_t odd_ = 1;         // 1, 12 or 20: of Paley's matrix
  std::vector<int> small_;  // it, [odd, odd]
  std::vector<double> signs_;
};

}  // namespace ladder
