// A byte per weight, the matrix as it is: compressed-tensors' int-quantized, float-quantized and naive-quantized, and fp8.
#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/linear/formats.h"
#include "step8_advanced/quantization/linear/stored_method.h"
#include "step8_advanced/quantization/linear/stored_scales.h"
#include "step8_advanced/quantization/linear/two_of_four.h"

namespace ladder {
namespace {

class PlainMethod final : public StoredMethod {
 public:
  explicit PlainMethod(const StoredLinear& stored) : StoredMethod(stored) {
    LADDER_CHECK(!weights().is_float || (weights().num_bits == 8 && weights().symmetric),
                 "weights stored a byte each as floats of {} bits: expected 8, without zero points",
                 weights().num_bits);
    LADDER_CHECK(weights().actorder != ActivationOrder::group,
                 "weights stored a byte each: expected no actorder group, which needs a weight_g_idx");
    // The code of 0 is the zero point then, and not what the mask leaves out.
    LADDER_CHECK(!stored.two_of_four || weights().symmetric,
                 "weights of which two of four are kept: expected no zero points");
  }

 private:
  const char* scale_name() const { return stored().scale_is_inverse ? "weight_scale_inv" : "weight_scale"; }

  std::vector<LinearParameterSpec> weight_tensors(const LinearShape& shape) const override {
    const std::vector<LinearDimension> scales = scale_dimensions(weights(), shape);
    const DType codes = weights().is_float ? DType::f8_e4m3 : DType::i8;
    std::vector<LinearParameterSpec> specs = {
        {"weight", codes, {LinearDimension::along_out(), LinearDimension::along_in()}}};
    if (stored().two_of_four) specs = two_of_four_tensors(codes, shape);
    specs.push_back({scale_name(), DType::f32, scales});
    if (!weights().symmetric) specs.push_back({"weight_zero_point", DType::i8, scales});
    return specs;
  }

  QuantizedWeight unpack(const LinearShape& shape, const StoredTensors& tensors) const override {
    const std::vector<LinearDimension> dims = scale_dimensions(weights(), shape);
    const ColumnGroups groups = column_groups(weights(), shape);
    const Tensor codes = stored().two_of_four ? expanded_two_of_four(shape, tensors) : tensors["weight"];
    check_scales(tensors[scale_name()], scale_name(),
                 weights().is_float ? ScaleSign::positive : ScaleSign::any);
    QuantizedWeight weight{.type = WeightCodes::int8,
                           .n = shape.out_features(),
                           .k = shape.in_features(),
                           .codes = codes,
                           .scales = expanded_to_rows(tensors[scale_name()], dims, shape),
                           .group_size = groups.size,
                           .group_offset = groups.offset};
    if (weights().is_float) {
      check_e4m3(codes, "weight");
      weight.type = WeightCodes::fp8_e4m3;
      weight.codes = as_bytes(codes);
    } else {
      check_range(codes, "weight");
    }
    if (!weights().symmetric) {
      check_range(tensors["weight_zero_point"], "weight_zero_point");
      weight.zeros = expanded_to_rows(tensors["weight_zero_point"], dims, shape);
    }
    return weight;
  }

  void check_range(const Tensor& codes, std::string_view what) const {
    for (int64_t i = 0; i < codes.numel(); ++i) {
      const int code = codes.data<int8_t>()[i];
      LADDER_CHECK(code >= weights().min_code() && code <= weights().max_code(),
                   "{} is {} in row {}, expected {} to {}", what, code, i / codes.dim(-1),
                   weights().min_code(), weights().max_code());
    }
  }
};

}  // namespace

std::shared_ptr<const LinearMethod> plain_linear_method(const StoredLinear& stored) {
  return std::make_shared<const PlainMethod>(stored);
}

}  // namespace ladder
