#pragma once
// Task 2.4: the composites that a decoder layer is made of.
//
//   norm_qkv -> attention_with_store -> o_residual -> norm_gate_up_silu -> down_residual
//
// Four of the five are here (attention_with_store is an operator of step 1), each a ladder like any
// operator's: the lowest rung is the plain sequence of operators, the rung above it one kernel. So fusing
// never rewrites the model, and --kernel norm_qkv=sequence takes it back.
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"
#include "step1_layers/linear/linear.h"
#include "step2_model/decoder/decoder_spec.h"
#include "step2_model/decoder/norm.h"

namespace ladder {

// The residual stream x between two composites: x = residual, or residual + pending where has_pending. What
// the composite before computed may wait in `pending`, because the norm that comes next reads both anyway and
// adds them in the same pass. A composite that has done the addition itself leaves has_pending false. With several
// tensor-parallel ranks it may be this rank's part of a sum: then the norm adds up the ranks' parts, too.
struct ResidualStream {
  Tensor residual;  // [tokens, hidden_size]
  Tensor pending;   // [tokens, hidden_size], meaningful where has_pending
  bool has_pending = false;
  bool pending_is_partial = false;  // meaningful where has_pending
};

// residual += pending, then out = norm(residual). `out` may be stream.pending, whose content is lost.
void add_norm(const OpContext& ctx, ResidualStream& stream, const Norm& norm, const Tensor& out);
// residual += pending, for a stream that no norm follows.
void add_pending(const OpContext& ctx, ResidualStream& stream);

// Composites that norm the stream before their product (unless the norm's weight is undefined: then nothing may be
// pending, and the stream itself is multiplied): norm_qkv, and with an activation norm_gate_up_silu.
struct NormLinearArgs {
  ResidualStream* stream;
  Norm norm;
  const Linear* linear;
  Tensor out;
};
struct NormGateUpArgs : NormLinearArgs {
  MlpActivation activation;
};
// Composites whose product goes to the stream: o_residual, down_residual.
struct LinearResidualArgs {
  Tensor x;
  const Linear* linear;
  ResidualStream* stream;
  bool one_rank;  // false: the product is a part of a sum over ranks, which comes before the residual's
};

std::span<const Variant<NormLinearArgs>> norm_qkv_variants();
std::span<const Variant<LinearResidualArgs>> o_residual_variants();
std::span<const Variant<NormGateUpArgs>> norm_gate_up_silu_variants();
std::span<const Variant<LinearResidualArgs>> down_residual_variants();

// qkv [tokens, this rank's q, k and v widths] = qkv_proj(add_norm(stream)).
void norm_qkv(const OpContext& ctx, ResidualStream& stream, const Norm& norm, const Linear& qkv_proj,
              const Tensor& qkv);

// The plain sequence of norm_qkv, for any linear.
void norm_linear(const OpContext& ctx, const NormLinearArgs& args);

// stream += o_proj(attention [tokens, this rank's heads * head_dim]).
void o_residual(const OpContext& ctx, const Tensor& attention, const Linear& o_proj, ResidualStream& stream);

// out [tokens, this rank's intermediate width] = act(gate) * up of add_norm(stream).
void norm_gate_up_silu(const OpContext& ctx, ResidualStream& stream, const Norm& norm,
                       const Linear& gate_up_proj, MlpActivation activation, const Tensor& out);

// stream += down_proj(activated [tokens, this rank's intermediate width]).
void down_residual(const OpContext& ctx, const Tensor& activated, const Linear& down_proj,
                   ResidualStream& stream);

}  // namespace ladder
