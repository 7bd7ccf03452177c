// The plain method: one dense matrix, as the checkpoint stores it.
#include "step1_layers/linear/linear_method.h"

#include "step1_layers/core/error.h"
#include "step1_layers/linear/matmul.h"

namespace ladder {

namespace {

class UnquantizedLinearMethod final : public LinearMethod {
 public:
  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const override {
    std::vector<LinearParameterSpec> specs;
    specs.push_back({.name = "weight",
                     .dtype = shape.dtype,
                     .shape = {shape.out_features, shape.in_features},
                     .out_dim = 0,
                     .in_dim = 1});
    if (shape.bias)
      specs.push_back({.name = "bias", .dtype = shape.dtype, .shape = {shape.out_features}, .out_dim = 0});
    return specs;
  }

  void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& parameters,
             const Tensor& x, const Tensor& out) const override {
    matmul(ctx, x, parameters[0], shape.bias ? parameters[1] : Tensor(), out);
  }

  DenseLinear dense(const LinearShape& shape, const std::vector<Tensor>& parameters) const override {
    return {parameters[0], shape.bias ? parameters[1] : Tensor()};
  }
};

}  // namespace

std::shared_ptr<const LinearMethod> unquantized_linear_method() {
  static const auto method = std::make_shared<const UnquantizedLinearMethod>();
  return method;
}

}  // namespace ladder
