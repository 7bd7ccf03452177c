// compressed-tensors' pack-quantized: the bits of a row's codes close together in 32-bit words.
#include <numeric>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/linear/formats.h"
#include "step8_advanced/quantization/linear/integer_codes.h"
#include "step8_advanced/quantization/linear/part_values.h"
#include "step8_advanced/quantization/linear/stored_method.h"
#include "step8_advanced/quantization/linear/stored_scales.h"
#include "step8_advanced/quantization/numbers/packing.h"

namespace ladder {
namespace {

class PackedMethod final : public StoredMethod {
 public:
  PackedMethod(const StoredLinear& stored, int64_t parts_per_order) : StoredMethod(stored, parts_per_order) {
    LADDER_CHECK(!weights().is_float && weights().num_bits >= 2 && weights().num_bits <= 8,
                 "pack-quantized weights of {} bits: expected integers of 2 to 8", weights().num_bits);
    LADDER_CHECK(weights().strategy == ScaleStrategy::group || !has_order(),
                 "pack-quantized weights with actorder group: expected the strategy group");
  }

 private:
  bool has_order() const { return weights().actorder == ActivationOrder::group; }

  std::vector<LinearParameterSpec> weight_tensors(const LinearShape& shape) const override {
    const std::vector<LinearDimension> scales = scale_dimensions(weights(), shape);
    std::vector<LinearParameterSpec> specs = {
        {"weight_packed", DType::i32, {LinearDimension::along_out(), words_along_in(weights().num_bits)}},
        {"weight_scale", DType::f32, scales},
        {"weight_shape", DType::i64, {LinearDimension::per_part(), LinearDimension::of_size(2)}}};
    if (!weights().symmetric) {
      LADDER_CHECK(weights().strategy == ScaleStrategy::group || weights().strategy == ScaleStrategy::channel,
                   "pack-quantized weights with zero points: expected the strategy group or channel");
      specs.push_back({"weight_zero_point", DType::i32, {words_along_out(weights().num_bits), scales[1]}});
    }
    if (has_order())
      specs.push_back(
          {"weight_g_idx", DType::i32, {LinearDimension::per_part(), LinearDimension::along_in()}});
    return specs;
  }

  QuantizedWeight unpack(const LinearShape& shape, const StoredTensors& tensors) const override {
    for (size_t part = 0; part < shape.out.size(); ++part) {
      const int64_t* found = tensors["weight_shape"].data<int64_t>() + 2 * part;
      LADDER_CHECK(found[0] == shape.out[part].full && found[1] == shape.in.full,
                   "weight_shape of part {} is [{}, {}], expected [{}, {}]", part, found[0], found[1],
                   shape.out[part].full, shape.in.full);
    }
    check_scales(tensors["weight_scale"], "weight_scale", ScaleSign::any);
    const int bits = weights().num_bits;
    const FeatureRange words = words_along_in(bits).features_behind(shape.in);
    IntegerCodes integers;
    integers.codes = unpack_rows(tensors["weight_packed"], bits, words.size, "weight_packed")
                         .narrow(1, shape.in.begin - words.begin, shape.in.size);
    integers.scales = expanded_to_rows(tensors["weight_scale"], scale_dimensions(weights(), shape), shape);
    if (!weights().symmetric) integers.zeros = unpacked_zeros(shape, tensors);
    if (has_order())
      integers.group_of = shared_rows(tensors["weight_g_idx"], parts_per_order(), "weight_g_idx");
    return integer_weight(integers, weights(), shape);
  }

  // Packed along the rows, each part for itself.
  Tensor unpacked_zeros(const LinearShape& shape, const StoredTensors& tensors) const {
    const int bits = weights().num_bits;
    return joined_parts(shape, [&](size_t part) {
      const FeatureRange& rows = shape.out[part];
      const FeatureRange words = words_along_out(bits).features_behind(rows);
      return unpack_columns(tensors.part("weight_zero_point", shape, part), bits, words.size,
                            "weight_zero_point")
          .narrow(0, rows.begin - words.begin, rows.size);
    });
  }
};

}  // namespace

std::shared_ptr<const LinearMethod> packed_linear_method(const StoredLinear& stored,
                                                         int64_t parts_per_order) {
  return std::make_shared<const PackedMethod>(stored, parts_per_order);
}

}  // namespace ladder
