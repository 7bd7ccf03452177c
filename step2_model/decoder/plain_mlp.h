#pragma once
// The MLP of a layer without gate and without experts: fc2(activation(fc1(n))), OPT's.
#include "step2_model/model_makers.h"

namespace ladder {

class PlainMlp final : public Mlp {
 public:
  // Parameters are "<name>.fc1...." and "<name>.fc2....".
  PlainMlp(const OpContext& ctx, const std::string& name, const DecoderSpec& spec, DType dtype,
           const ModelMakers& makers);

  std::vector<Parameter*> parameters() override;
  void process_after_load(const OpContext& ctx) override;
  void forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const override;

 private:
  DType dtype_;
  MlpActivation activation_;
  ColumnParallelLinear fc1_;
  RowParallelLinear fc2_;
};

}  // namespace ladder
