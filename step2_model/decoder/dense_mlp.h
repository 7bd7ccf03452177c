#pragma once
// Task 2.4: the MLP of a layer without experts: down(act(gate(n)) * up(n)), gate and up in one matrix.
#include "step2_model/model_makers.h"

namespace ladder {

class DenseMlp final : public Mlp {
 public:
  // Parameters are "<name>.gate_up_proj...." and "<name>.down_proj....".
  DenseMlp(const OpContext& ctx, const std::string& name, const DecoderSpec& spec, DType dtype,
           const ModelMakers& makers);

  std::vector<Parameter*> parameters() override;
  void process_after_load(const OpContext& ctx) override;
  void forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const override;

 private:
  DType dtype_;
  MlpActivation activation_;
  MergedColumnParallelLinear gate_up_proj_;
  RowParallelLinear down_proj_;
};

}  // namespace ladder
