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
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

// out, lse = the merge of both with part_out, part_lse. Without keys on either side out is 0 and lse -inf.
// out, part_out: f32 [rows, heads, dim]; lse, part_lse: f32 [rows, heads]; all on the CPU and contiguous.
// Error: shapes that do not fit together, or another dtype.
void merge_by_lse(const Tensor& out, const Tensor& lse, const Tensor& part_out, const Tensor& part_lse);

// Any number of parts at once, each f32, bf16 or f16: summed in f32, and rounded once. In every tensor the values of a
// row's heads lie together; its rows, and its parts, may lie apart.
struct LseMergeArgs {
  Tensor parts;     // [parts, rows, heads, dim]
  Tensor part_lse;  // f32 [parts, rows, heads]
  Tensor out;       // [rows, heads, dim]; another dtype than the parts' or the same
  Tensor lse;       // f32 [rows, heads]; undefined: nobody wants it
  // Undefined, or one more part, the first one: a result so far, f32 [rows, heads, dim] and [rows, heads], contiguous. They
  // may be out and lse themselves.
  Tensor onto = {}, onto_lse = {};
};

std::span<const Variant<LseMergeArgs>> lse_merge_variants();

// Error: shapes, dtypes or devices that do not fit together.
void merge_parts(const OpContext& ctx, const LseMergeArgs& args);

#ifdef LADDER_HAS_CUDA
void lse_merge_cuda(const OpContext& ctx, const LseMergeArgs& args);
#endif

}  // namespace ladder
