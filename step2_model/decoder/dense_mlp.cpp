#include "step2_model/decoder/dense_mlp.h"

#include "step2_model/decoder/composites.h"

namespace ladder {

DenseMlp::DenseMlp(const OpContext& ctx, const std::string& name, const DecoderSpec& spec, DType dtype,
                   const ModelMakers& makers)
    : dtype_(dtype),
      activation_(spec.activation),
      gate_up_proj_(ctx, name + ".gate_up_proj", spec.hidden_size,
                    {spec.intermediate_size, spec.intermediate_size},
                    make_linear_options(makers, ctx, name + ".gate_up_proj", spec, dtype, spec.mlp_bias)),
      down_proj_(ctx, name + ".down_proj", spec.intermediate_size, spec.hidden_size,
                 make_linear_options(makers, ctx, name + ".down_proj", spec, dtype, spec.mlp_bias)) {}

std::vector<Parameter*> DenseMlp::parameters() {
  std::vector<Parameter*> result = gate_up_proj_.parameters();
  for (Parameter* parameter : down_proj_.parameters()) result.push_back(parameter);
  return result;
}

void DenseMlp::process_after_load(const OpContext& ctx) {
  gate_up_proj_.process_after_load(ctx);
  down_proj_.process_after_load(ctx);
}

void DenseMlp::forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const {
  ArenaScope scope(*ctx.arena);
  const Tensor activated = ctx.arena->take({stream.residual.dim(0), down_proj_.in_features()}, dtype_);
  norm_gate_up_silu(ctx, stream, norm, gate_up_proj_, activation_, activated);
  down_residual(ctx, activated, down_proj_, stream);
}

}  // namespace ladder
