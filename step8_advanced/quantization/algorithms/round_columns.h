#pragma once
// Task 8.3: rounding a matrix column by column, where the columns still to come make up for each rounding: the loop of GPTQ
// (Frantar et al., 2022, arXiv 2210.17323) and of SparseGPT (Frantar and Alistarh, 2023, arXiv 2301.00774).
//
//   U = the upper Cholesky factor of H^-1            H^-1 = U^T U
//   for each column i, in order:
//     q = round(w[:, i])
//     e = (w[:, i] - q) / U[i][i]
//     w[:, i] = q
//     w[:, j] -= e * U[i][j]    for every column j > i
//
// Why U: with columns 0..i fixed, the best change of the others for an error in column i is given by the inverse of H's
// part for columns i and later. Row i of U is that inverse's first row, divided by the root of its first element, for
// every i at once.
//
// Rows of w never meet, so they are split among threads. Columns go in blocks: inside a block each column updates the
// block's others at once, and when a block is done, all columns behind it are updated in one matrix product
//
//   w[:, end..] -= E * U[begin..end, end..]                      E [n, block]
//
// so that the whole matrix is read and written once per block and not once per column.
#include <cstdint>
#include <functional>

#include "step1_layers/core/tensor.h"

namespace ladder {

// The value that w[column] of one row becomes. `w` is the whole row. All columns before are rounded; `column` and those of its
// group (below), if it is the group's first, have all updates of the columns before. Called for each row in the order of
// the columns, for different rows at the same time.
using RoundWeight = std::function<float(int64_t row, int64_t column, const float* w)>;

// Where the block that begins at `begin` ends, at most k: block_size columns, so cut that no group begins inside a block and
// ends behind it: a block is some whole groups (at least one), or lies in one group. Who takes a group's scale from its columns
// at the group's first one would otherwise see columns that lack the block's own updates.
int64_t end_of_block(int64_t begin, int64_t k, int64_t block_size, int64_t group_size);

// Rounds weight [n, k] (f32, contiguous) in its place. u [k, k] f32, upper triangular; group_size >= 1 divides k. The
// values do not depend on the number of threads, and on block_size by rounding of the updates only.
void round_columns(const Tensor& weight, const Tensor& u, int64_t block_size, int64_t group_size,
                   const RoundWeight& round);

}  // namespace ladder
