#include "step8_advanced/quantization/linear/experts_method.h"

#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/moe/coded_experts.h"
#include "step8_advanced/quantization/kernels/quantized_experts.h"
#include "step8_advanced/quantization/linear/stored_method.h"

namespace ladder {
namespace {

class ExpertsMethod final : public LinearMethod, public CodedExperts {
 public:
  ExpertsMethod(std::shared_ptr<const StoredMethod> stored, int64_t parts_per_expert)
      : stored_(std::move(stored)), parts_per_expert_(parts_per_expert) {}

  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const override {
    return stored_->parameters(shape);
  }

  void process_after_load(const OpContext& ctx, const LinearShape& shape,
                          std::vector<Tensor>& tensors) const override {
    const LoadedLinear loaded = stored_->load(shape, tensors);
    weight_ = on_device(ctx.device, loaded.weight, parts_are_whole_tiles(shape));
    if (loaded.input_scales.defined()) input_scales_ = of_experts(loaded.input_scales).to(ctx.device);
    tensors = {weight_.codes, weight_.scales, weight_.zeros, weight_.records.bytes, weight_.columns};
  }

  void apply(const OpContext&, const LinearShape&, const std::vector<Tensor>&, const Tensor&,
             const Tensor&) const override {
    fail("experts in codes are run together");
  }

  void run_experts(const OpContext& ctx, const MoeExpertsArgs& args,
                   const CodedExperts& down) const override {
    const auto* other = dynamic_cast<const ExpertsMethod*>(&down);
    LADDER_CHECK(other != nullptr, "experts: gate and up are in codes, down is of another kind");
    const int64_t experts = other->weight_.n / args.x.dim(1);
    quantized_experts(ctx, {.x = args.x,
                            .expert_ids = args.expert_ids,
                            .weights = args.weights,
                            .experts = experts,
                            .gate_up = matrices(),
                            .down = other->matrices(),
                            .out = args.out});
  }

 private:
  ExpertMatrices matrices() const { return {&weight_, stored_->activations(), input_scales_}; }

  // Of each expert, of f32 [parts].
  Tensor of_experts(const Tensor& scales) const {
    const Tensor result = Tensor::empty({scales.numel() / parts_per_expert_}, DType::f32);
    for (int64_t part = 0; part < scales.numel(); ++part) {
      float& of_expert = result.data<float>()[part / parts_per_expert_];
      if (part % parts_per_expert_ == 0) of_expert = scales.data<float>()[part];
      LADDER_CHECK(
          of_expert == scales.data<float>()[part],
          "input_scale of part {} is {}, that of the part before {}: expected the same of gate and up", part,
          scales.data<float>()[part], of_expert);
    }
    return result;
  }

  std::shared_ptr<const StoredMethod> stored_;
  int64_t parts_per_expert_;
  // Of the one linear, after loading.
  mutable QuantizedWeight weight_;
  mutable Tensor input_scales_;
};

}  // namespace

std::shared_ptr<const LinearMethod> experts_linear_method(std::shared_ptr<const LinearMethod> stored,
                                                          int64_t parts_per_expert) {
  auto method = std::dynamic_pointer_cast<const StoredMethod>(std::move(stored));
  LADDER_CHECK(method, "experts that are not quantized and keep two of four run on the CPU only");
  return std::make_shared<const ExpertsMethod>(std::move(method), parts_per_expert);
}

}  // namespace ladder
