#pragma once
// Task 8.3: factors of a symmetric positive definite matrix, in double, in blocks of columns so that almost all of the
// work is products of blocks that lie in the cache.
//
//   for each column j:                                       A = L L^T, plainly
//     L[j][j] = sqrt(A[j][j] - sum over p < j of L[j][p]^2)  the pivot: not above 0, and A is not positive definite
//     for each row i > j:
//       L[i][j] = (A[i][j] - sum over p < j of L[i][p] L[j][p]) / L[j][j]
//
// Time: n^3 / 3 operations each for a factor and for its inverse; memory: none but a block of columns. All matrices are
// f64 [n, n], contiguous, on the CPU; results have the same bits for any number of threads.
#include <cstdint>
#include <optional>

#include "step1_layers/core/tensor.h"

namespace ladder {

// L with A = L L^T in A's place, zero above the diagonal. A's lower triangle is read. Where A is not positive definite:
// the number of the first pivot that is not above 0 (or NaN), and A's memory holds nothing of use.
[[nodiscard]] std::optional<int64_t> factor_cholesky(const Tensor& a);

// The inverse of a lower triangular matrix in its place.
void invert_lower(const Tensor& lower);

// U, upper triangular with positive diagonal and A^-1 = U^T U, in A's place: what GPTQ calls the upper Cholesky factor of
// A^-1. A's upper triangle is read; the result as factor_cholesky's.
//
// A^-1 itself is never made: with A's rows and columns in reverse order, A' = L' L'^T, and U is L'^-1 in reverse order.
// That takes two thirds of n^3 operations, where two factors and two inverses would take twice as many, and does not
// invert A, whose condition is the square of L's.
[[nodiscard]] std::optional<int64_t> factor_inverse(const Tensor& a);

}  // namespace ladder
