#include "step2_model/decoder/norm.h"

#include "step1_layers/linear/load_shard.h"

namespace ladder {

Parameter replicated_parameter(const OpContext& ctx, const std::string& name, const Shape& shape,
                               DType dtype) {
  Parameter parameter;
  parameter.name = name;
  parameter.tensor = Tensor::empty(shape, dtype, ctx.device);
  parameter.load_part = [name, shape, tensor = parameter.tensor](const Tensor& checkpoint, int) {
    ShardWindow window{.full = shape};
    for (int i = 0; i < shape.ndim(); ++i) window.size[static_cast<size_t>(i)] = shape[i];
    load_shard(name, checkpoint, window, tensor);
  };
  return parameter;
}

NormParameters::NormParameters(const OpContext& ctx, const std::string& name, const DecoderSpec& spec,
                               DType dtype)
    : weight_(replicated_parameter(ctx, name + ".weight", {spec.hidden_size}, dtype)), eps_(spec.norm_eps) {
  if (spec.norm == NormKind::layer_norm)
    bias_ = replicated_parameter(ctx, name + ".bias", {spec.hidden_size}, dtype);
}

std::vector<Parameter*> NormParameters::parameters() {
  std::vector<Parameter*> result = {&weight_};
  if (bias_) result.push_back(&*bias_);
  return result;
}

Norm NormParameters::norm() const {
  return {weight_.tensor, bias_ ? bias_->tensor : Tensor(), eps_};
}

}  // namespace ladder
