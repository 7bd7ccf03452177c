#include "step2_model/decoder/composites.h"

#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/norm/rms_norm.h"

namespace ladder {

// >>> task 2.4: the pieces of a decoder layer as plain sequences of operators
void add_norm(const OpContext& ctx, ResidualStream& stream, const Tensor& norm_weight, double eps,
              const Tensor& out) {
  if (stream.has_pending) {
    fused_add_rms_norm(ctx, stream.pending, stream.residual, norm_weight, eps, out);
    stream.has_pending = false;
  } else {
    rms_norm(ctx, stream.residual, norm_weight, eps, out);
  }
}

void norm_qkv(const OpContext& ctx, ResidualStream& stream, const Tensor& norm_weight, double eps,
              const Linear& qkv_proj, const Tensor& qkv) {
  ArenaScope scope(*ctx.arena);
  const Tensor normed = ctx.arena->take(stream.residual.shape(), stream.residual.dtype());
  add_norm(ctx, stream, norm_weight, eps, normed);
  qkv_proj.forward(ctx, normed, qkv);
}

void o_residual(const OpContext& ctx, const Tensor& attention, const Linear& o_proj, ResidualStream& stream) {
  o_proj.forward(ctx, attention, stream.pending);
  stream.has_pending = true;
}

void norm_gate_up_silu(const OpContext& ctx, ResidualStream& stream, const Tensor& norm_weight, double eps,
                       const Linear& gate_up_proj, MlpActivation activation, const Tensor& out) {
  ArenaScope scope(*ctx.arena);
  const Tensor normed = ctx.arena->take(stream.residual.shape(), stream.residual.dtype());
  add_norm(ctx, stream, norm_weight, eps, normed);
  const Tensor gate_up = ctx.arena->take({normed.dim(0), gate_up_proj.out_features()}, normed.dtype());
  gate_up_proj.forward(ctx, normed, gate_up);
  switch (activation) {
    case MlpActivation::silu:
      return silu_and_mul(ctx, gate_up, out);
    case MlpActivation::gelu:
      return gelu_and_mul(ctx, gate_up, out, GeluKind::erf);
    case MlpActivation::gelu_tanh:
      return gelu_and_mul(ctx, gate_up, out, GeluKind::tanh);
  }
}

void down_residual(const OpContext& ctx, const Tensor& activated, const Linear& down_proj,
                   ResidualStream& stream) {
  down_proj.forward(ctx, activated, stream.pending);
  stream.has_pending = true;
}
// <<< task 2.4

}  // namespace ladder
