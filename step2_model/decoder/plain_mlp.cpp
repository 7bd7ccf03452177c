#include "step2_model/decoder/plain_mlp.h"

#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/relu.h"
#include "step1_layers/core/error.h"
#include "step2_model/decoder/composites.h"

namespace ladder {

PlainMlp::PlainMlp(const OpContext& ctx, const std::string& name, const DecoderSpec& spec, DType dtype,
                   const ModelMakers& makers)
    : dtype_(dtype),
      activation_(spec.activation),
      fc1_(ctx, name + ".fc1", spec.hidden_size, spec.intermediate_size,
           make_linear_options(makers, ctx, name + ".fc1", spec, dtype, spec.mlp_bias)),
      fc2_(ctx, name + ".fc2", spec.intermediate_size, spec.hidden_size,
           make_linear_options(makers, ctx, name + ".fc2", spec, dtype, spec.mlp_bias)) {}

std::vector<Parameter*> PlainMlp::parameters() {
  std::vector<Parameter*> result = fc1_.parameters();
  for (Parameter* parameter : fc2_.parameters()) result.push_back(parameter);
  return result;
}

void PlainMlp::process_after_load(const OpContext& ctx) {
  fc1_.process_after_load(ctx);
  fc2_.process_after_load(ctx);
}

void PlainMlp::forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const {
  ArenaScope scope(*ctx.arena);
  const Tensor inner = ctx.arena->take({stream.residual.dim(0), fc2_.in_features()}, dtype_);
  norm_linear(ctx, {&stream, norm, &fc1_, inner});
  switch (activation_) {
    case MlpActivation::relu:
      relu(ctx, inner, inner);
      break;
    case MlpActivation::gelu:
      gelu(ctx, inner, inner, GeluKind::erf);
      break;
    case MlpActivation::gelu_tanh:
      gelu(ctx, inner, inner, GeluKind::tanh);
      break;
    case MlpActivation::silu:
      fail("no MLP without a gate has this activation");
  }
  down_residual(ctx, inner, fc2_, stream);
}

}  // namespace ladder
