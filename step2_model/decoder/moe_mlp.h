#pragma once
// The MLP of a layer with experts (step1_layers/moe/).
//
//   n = norm(x);   x += sum over the chosen experts of weight * expert(n)  (+ sigmoid(g n) * shared expert(n))
//
// With several tensor-parallel ranks every expert's width is split among them, and so is the shared one's: each rank routes
// all tokens alike, since the router is on all of them, and has a part of every expert's sum.
#include <optional>

#include "step2_model/model_makers.h"

namespace ladder {

class MoeMlp final : public Mlp {
 public:
  // Parameters: "<name>.router.weight" [experts, hidden]; "<name>.experts.gate_up" [experts, 2 * width, hidden], whose parts
  // 2 e and 2 e + 1 are gate and up of expert e; "<name>.experts.down" [experts, hidden, width], whose part e is expert e's;
  // with a shared expert "<name>.shared_expert.gate_up_proj....", "<name>.shared_expert.down_proj....",
  // "<name>.shared_expert_gate.weight" [1, hidden]. Error: the ranks do not divide a width.
  MoeMlp(const OpContext& ctx, const std::string& name, const DecoderSpec& spec, DType dtype,
         const ModelMakers& makers);

  std::vector<Parameter*> parameters() override;
  void process_after_load(const OpContext& ctx) override;
  void forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const override;

 private:
  struct SharedExpert {
    MergedColumnParallelLinear gate_up_proj;
    RowParallelLinear down_proj;
    Parameter gate;
  };
  // out += what the shared expert makes of n.
  void add_shared(const OpContext& ctx, const Tensor& n, const Tensor& out) const;

  DType dtype_;
  RouterRule rule_;
  Parameter router_;
  Parameter gate_up_;
  Parameter down_;
  std::optional<SharedExpert> shared_;
};

}  // namespace ladder
