#pragma once
// Attention of some of a prompt's queries to some of its keys, with what it weighs (lse_merge.h): the piece of work that the
// methods of context parallelism are made of.
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

// The last query sees all keys, and the one before it one key less, as on the diagonal of a causal mask.
// q, out: [rows, heads, dim], rows <= keys; k, v: [keys, kv_heads, dim]; lse: f32 [rows, heads], or undefined. All but lse
// are of one dtype (f32, bf16, f16), on the context's device and contiguous; rows >= 1. Takes scratch from ctx.arena.
void causal_attention_of_last(const OpContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                              double scale, const Tensor& out, const Tensor& lse = {});

// Every query sees every key. Shapes as above, with any number of rows and keys, none of them 0.
void unmasked_attention(const OpContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                        const Tensor& out, const Tensor& lse);

#ifdef LADDER_HAS_CUDA
// numbers: i32 [4] on the GPU = {0, rows, keys, 0}.
void describe_one_sequence_cuda(const OpContext& ctx, int64_t rows, int64_t keys, const Tensor& numbers);
#endif

}  // namespace ladder
