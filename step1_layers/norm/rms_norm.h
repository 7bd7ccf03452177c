#pragma once
// Task 1.3: RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467), alone and fused with the residual addition.
//
//   out = x / sqrt(mean(x^2) + eps) * weight              over the last dimension
//
// The fused form also keeps the residual stream of the decoder: residual += x, then out = norm(residual). It
// saves one round trip of the residual through memory, which is all that either operation costs.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct RmsNormArgs {
  Tensor x;       // [rows, width] or [tokens, heads, width]: the last form norms query and key heads in place
  Tensor weight;  // [width]
  double eps = 1e-6;
  Tensor out;  // shape of x; may be x itself
};

struct FusedAddRmsNormArgs {
  Tensor x;         // [rows, width]
  Tensor residual;  // [rows, width], updated: residual + x rounded to the dtype
  Tensor weight;    // [width]
  double eps = 1e-6;
  Tensor out;  // [rows, width]: norm of the updated residual; may be x itself
};

std::span<const Variant<RmsNormArgs>> rms_norm_variants();
std::span<const Variant<FusedAddRmsNormArgs>> fused_add_rms_norm_variants();

// f32, bf16 or f16, all tensors of one dtype, computed in float and rounded once. All dimensions but the last
// may be strided (a view of the q heads inside the qkv rows). Error: shapes or dtypes that do not fit
// together.
void rms_norm(const OpContext& ctx, const Tensor& x, const Tensor& weight, double eps, const Tensor& out);
void fused_add_rms_norm(const OpContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& weight,
                        double eps, const Tensor& out);

}  // namespace ladder
