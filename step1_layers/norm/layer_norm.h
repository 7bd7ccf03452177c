#pragma once
// Task 1.10: LayerNorm (Ba, Kiros and Hinton, 2016, arXiv 1607.06450), alone and fused with the residual addition, as
// rms_norm.h has it: the norm of OPT and of Phi-3.5-MoE.
//
//   out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias        over the last dimension
//   var(x) = mean((x - mean(x))^2)
//
// The variance is that of the differences, in a second pass over the row: mean(x^2) - mean(x)^2 loses all its
// digits where the mean is large beside the deviation.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder {

struct LayerNormArgs {
  Tensor x;       // [rows, width]
  Tensor weight;  // [width]
  Tensor bias;    // [width]
  double eps = 1e-5;
  Tensor out;  // [rows, width]; may be x itself
};

struct FusedAddLayerNormArgs {
  Tensor x;         // [rows, width]
  Tensor residual;  // [rows, width], updated: residual + x rounded to the dtype
  Tensor weight;    // [width]
  Tensor bias;      // [width]
  double eps = 1e-5;
  Tensor out;  // [rows, width]: norm of the updated residual; may be x itself
};

std::span<const Variant<LayerNormArgs>> layer_norm_variants();
std::span<const Variant<FusedAddLayerNormArgs>> fused_add_layer_norm_variants();

// f32, bf16 or f16, all tensors of one dtype, computed in float and rounded once. Rows may be strided. Error:
// shapes or dtypes that do not fit together.
void layer_norm(const OpContext& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& out);
void fused_add_layer_norm(const OpContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& weight,
                          const Tensor& bias, double eps, const Tensor& out);

}  // namespace ladder
