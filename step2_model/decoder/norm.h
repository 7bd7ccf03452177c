#pragma once
// Task 2.4: the norm of a decoder as data: RMSNorm, or LayerNorm, which has a bias.
#include <optional>
#include <string>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/parameter.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// What a norm multiplies with and adds.
struct Norm {
  Tensor weight;  // [width]
  Tensor bias;    // [width]: LayerNorm; undefined: RMSNorm
  double eps = 1e-6;
};

// A parameter that every rank holds whole: a vector or a matrix.
Parameter replicated_parameter(const OpContext& ctx, const std::string& name, const Shape& shape,
                               DType dtype);

// A norm's parameters, "<name>.weight" and, of a LayerNorm, "<name>.bias", of hidden_size elements each.
class NormParameters {
 public:
  NormParameters(const OpContext& ctx, const std::string& name, const DecoderSpec& spec, DType dtype);

  std::vector<Parameter*> parameters();  // valid until the object moves
  Norm norm() const;

 private:
  Parameter weight_;
  std::optional<Parameter> bias_;
  double eps_;
};

}  // namespace ladder
