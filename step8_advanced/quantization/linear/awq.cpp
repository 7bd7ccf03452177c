// AWQ's files ("gemm"): eight output features in a 32-bit word, in an order of their own.
#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/linear/formats.h"
#include "step8_advanced/quantization/linear/integer_codes.h"
#include "step8_advanced/quantization/linear/part_values.h"
#include "step8_advanced/quantization/linear/stored_method.h"
#include "step8_advanced/quantization/linear/stored_scales.h"
#include "step8_advanced/quantization/numbers/packing.h"

namespace ladder {
namespace {

class AwqMethod final : public StoredMethod {
 public:
  explicit AwqMethod(const StoredLinear& stored) : StoredMethod(stored) {
    LADDER_CHECK(!weights().is_float && weights().num_bits == 4,
                 "awq weights of {} bits: expected integers of 4", weights().num_bits);
    LADDER_CHECK(
        (weights().strategy == ScaleStrategy::group || weights().strategy == ScaleStrategy::channel) &&
            weights().actorder != ActivationOrder::group,
        "awq weights: expected the strategy group or channel, without actorder group");
  }

 private:
  std::vector<LinearParameterSpec> weight_tensors(const LinearShape& shape) const override {
    const LinearDimension groups = scale_dimensions(weights(), shape)[1];
    for (const FeatureRange& part : shape.out)
      LADDER_CHECK(part.full % 8 == 0, "{} output features do not fill AWQ's words of 8", part.full);
    return {{"qweight", DType::i32, {LinearDimension::along_in(), LinearDimension::along_out(8)}},
            {"qzeros", DType::i32, {groups, LinearDimension::along_out(8)}},
            {"scales", DType::f32, {groups, LinearDimension::along_out()}}};
  }

  QuantizedWeight unpack(const LinearShape& shape, const StoredTensors& tensors) const override {
    IntegerCodes integers;
    integers.codes = unpacked(shape, tensors, "qweight");
    integers.zeros = unpacked(shape, tensors, "qzeros");
    integers.scales = transposed(tensors["scales"]);
    check_scales(integers.scales, "scales", ScaleSign::any);
    return integer_weight(integers, weights(), shape);
  }

  static Tensor unpacked(const LinearShape& shape, const StoredTensors& tensors, std::string_view name) {
    return joined_parts(shape, [&](size_t part) {
      const FeatureRange& rows = shape.out[part];
      const FeatureRange behind = LinearDimension::along_out(8).features_behind(rows);
      const Tensor words = tensors.part(name, shape, part);
      return unpack_awq(words, behind.size, words.dim(0), name)
          .narrow(0, rows.begin - behind.begin, rows.size);
    });
  }
};

}  // namespace

std::shared_ptr<const LinearMethod> awq_linear_method(const StoredLinear& stored) {
  return std::make_shared<const AwqMethod>(stored);
}

}  // namespace ladder
