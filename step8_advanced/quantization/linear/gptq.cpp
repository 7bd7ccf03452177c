// GPTQ's files: codes in 32-bit words along the input features, which may be in any order of groups (act-order).
#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/linear/formats.h"
#include "step8_advanced/quantization/linear/integer_codes.h"
#include "step8_advanced/quantization/linear/part_values.h"
#include "step8_advanced/quantization/linear/stored_method.h"
#include "step8_advanced/quantization/linear/stored_scales.h"
#include "step8_advanced/quantization/numbers/packing.h"

namespace ladder {
namespace {

class GptqMethod final : public StoredMethod {
 public:
  GptqMethod(const StoredLinear& stored, int64_t parts_per_order) : StoredMethod(stored, parts_per_order) {
    const int bits = weights().num_bits;
    LADDER_CHECK(!weights().is_float && (bits == 2 || bits == 3 || bits == 4 || bits == 8),
                 "gptq weights of {} bits: expected integers of 2, 3, 4 or 8", bits);
    LADDER_CHECK(weights().strategy == ScaleStrategy::group || weights().strategy == ScaleStrategy::channel,
                 "gptq weights: expected the strategy group or channel");
    LADDER_CHECK(stored.has_g_idx || weights().actorder != ActivationOrder::group,
                 "gptq weights without g_idx: expected no act-order");
  }

 private:
  // The words plus 1 in each of their fields, with carries from one to the next.
  static Tensor with_one_in_each(const Tensor& words, int bits) {
    uint32_t ones = 0;
    for (int at = 0; at < 32; at += bits) ones |= uint32_t{1} << at;
    const Tensor result = words.clone();
    auto* all = static_cast<uint32_t*>(result.raw());
    for (int64_t i = 0; i < result.numel(); ++i) all[i] += ones;
    return result;
  }

  // Scales and zero points stand as [groups, N].
  LinearDimension groups(const LinearShape& shape) const { return scale_dimensions(weights(), shape)[1]; }

  std::vector<LinearParameterSpec> weight_tensors(const LinearShape& shape) const override {
    const int bits = weights().num_bits;
    LADDER_CHECK(shape.in.full * bits % 32 == 0, "{} input features of {} bits do not fill 32-bit words",
                 shape.in.full, bits);
    std::vector<LinearParameterSpec> specs = {
        {"qweight", DType::i32, {words_along_in(bits), LinearDimension::along_out()}},
        {"qzeros", DType::i32, {groups(shape), words_along_out(bits)}},
        {"scales", DType::f32, {groups(shape), LinearDimension::along_out()}}};
    if (stored().has_g_idx)
      specs.push_back({"g_idx", DType::i32, {LinearDimension::per_part(), LinearDimension::along_in()}});
    return specs;
  }

  QuantizedWeight unpack(const LinearShape& shape, const StoredTensors& tensors) const override {
    const int bits = weights().num_bits;
    const FeatureRange words = words_along_in(bits).features_behind(shape.in);
    IntegerCodes integers;
    integers.codes = unpack_gptq(tensors["qweight"], bits, shape.out_features(), words.size, "qweight")
                         .narrow(1, shape.in.begin - words.begin, shape.in.size);
    integers.scales = transposed(tensors["scales"]);
    check_scales(integers.scales, "scales", ScaleSign::any);
    const bool words_less = stored().zeros_are_one_less && stored().zeros_borrow && 32 % bits == 0;
    integers.zeros = joined_parts(shape, [&](size_t part) {
      const FeatureRange& rows = shape.out[part];
      const FeatureRange behind = words_along_out(bits).features_behind(rows);
      Tensor words = tensors.part("qzeros", shape, part);
      if (words_less) words = with_one_in_each(words, bits);
      return unpack_gptq_zeros(words, bits, stored().zeros_are_one_less && !words_less, behind.size,
                               integers.scales.dim(1), "qzeros")
          .narrow(0, rows.begin - behind.begin, rows.size);
    });
    if (!stored().has_g_idx) return integer_weight(integers, weights(), shape);
    const Tensor orders = shared_rows(tensors["g_idx"], parts_per_order(), "g_idx");
    if (weights().actorder == ActivationOrder::group)
      integers.group_of = orders;
    else
      for (int64_t i = 0; i < orders.dim(0); ++i) check_neighbours(orders.select(0, i), shape);
    return integer_weight(integers, weights(), shape);
  }

  void check_neighbours(const Tensor& order, const LinearShape& shape) const {
    for (int64_t i = 0; i < order.numel(); ++i) {
      const int64_t feature = shape.in.begin + i;
      const int64_t group = weights().strategy == ScaleStrategy::group ? feature / weights().group_size : 0;
      LADDER_CHECK(order.data<int32_t>()[i] == group,
                   "g_idx has {} at feature {}, expected {}: the config has no act-order",
                   order.data<int32_t>()[i], feature, group);
    }
  }
};

}  // namespace

std::shared_ptr<const LinearMethod> gptq_linear_method(const StoredLinear& stored, int64_t parts_per_order) {
  return std::make_shared<const GptqMethod>(stored, parts_per_order);
}

}  // namespace ladder
