#pragma once
// Attention over a part of the keys, and over another part, into attention over both (FlashDecoding, Dao et al., 2023;
// online softmax, Milakov and Gimelshein, arXiv 1805.02867).
//
// A part's output o is its values' mean, weighted by e^score; lse = log of the sum of e^score says how much that weighs:
//
//   lse = log(e^lse_a + e^lse_b)        o = e^(lse_a - lse) o_a + e^(lse_b - lse) o_b
//
// computed around the larger of the two, since e^lse itself does not fit a float. Logarithms are natural. A row that saw no
// keys has lse = -inf, and its o may hold anything, NaN too: it has weight 0, and 0 * NaN would be NaN, so it is not
// multiplied but left out. An lse that is NaN or +inf, of a kernel that divided by a sum of nothing, is taken for -inf.
#include "step1_layers/core/tensor.h"

namespace ladder {

// out, lse = the merge of both with part_out, part_lse. Without keys on either side out is 0 and lse -inf.
// out, part_out: f32 [rows, heads, dim]; lse, part_lse: f32 [rows, heads]; all on the CPU and contiguous.
// Error: shapes that do not fit together, or another dtype.
void merge_by_lse(const Tensor& out, const Tensor& lse, const Tensor& part_out, const Tensor& part_lse);

}  // namespace ladder
