// Floats of four and eight bits whose groups share a small scale: NVFP4 and the MX formats.
#include <cmath>

#include "step1_layers/core/error.h"
#include "step1_layers/core/small_floats.h"
#include "step8_advanced/quantization/linear/formats.h"
#include "step8_advanced/quantization/linear/stored_method.h"
#include "step8_advanced/quantization/linear/stored_scales.h"
#include "step8_advanced/quantization/numbers/packing.h"

namespace ladder {
namespace {

class BlockFloatMethod final : public StoredMethod {
 public:
  explicit BlockFloatMethod(const StoredLinear& stored) : StoredMethod(stored) {
    LADDER_CHECK(
        weights().is_float && weights().symmetric && weights().strategy == ScaleStrategy::group &&
            (weights().num_bits == 4 || (weights().num_bits == 8 && !is_nvfp4())),
        "weights of nvfp4, mxfp4 or mxfp8: expected floats in groups, of 4 bits or mxfp8's 8, found {} bits",
        weights().num_bits);
  }

 private:
  bool is_nvfp4() const { return stored().format == StoredFormat::nvfp4; }
  bool in_nibbles() const { return weights().num_bits == 4; }
  const char* codes_name() const {
    return in_nibbles() && !stored().scales_are_factors ? "weight_packed" : "weight";
  }
  const char* global_name() const {
    return stored().scales_are_factors ? "weight_scale_2" : "weight_global_scale";
  }

  std::vector<LinearParameterSpec> weight_tensors(const LinearShape& shape) const override {
    std::vector<LinearParameterSpec> specs = {
        {codes_name(),
         in_nibbles() ? DType::u8 : DType::f8_e4m3,
         {LinearDimension::along_out(), LinearDimension::along_in(in_nibbles() ? 2 : 1)}},
        {"weight_scale", is_nvfp4() ? DType::f8_e4m3 : DType::u8, scale_dimensions(weights(), shape)}};
    if (is_nvfp4()) specs.push_back({global_name(), DType::f32, {LinearDimension::per_part()}});
    return specs;
  }

  QuantizedWeight unpack(const LinearShape& shape, const StoredTensors& tensors) const override {
    const ColumnGroups groups = column_groups(weights(), shape);
    QuantizedWeight weight{.type = in_nibbles() ? WeightCodes::fp4_e2m1 : WeightCodes::fp8_e4m3,
                           .n = shape.out_features(),
                           .k = shape.in_features(),
                           .scales = is_nvfp4() ? nvfp4_scales(shape, tensors) : mx_scales(tensors),
                           .group_size = groups.size,
                           .group_offset = groups.offset};
    const Tensor& codes = tensors[codes_name()];
    if (!in_nibbles()) {
      check_e4m3(codes, codes_name());
      weight.codes = as_bytes(codes);
    } else if (shape.in.begin % 2 == 0) {
      weight.codes = codes;
    } else {  // the first byte's lower half is the rank's before
      weight.codes = pack_nibbles(
          unpack_nibbles(codes, 1 + shape.in.size, codes_name()).narrow(1, 1, shape.in.size).clone());
    }
    return weight;
  }

  // Local E4M3 scales over the part's global one, which is a divisor, or times ModelOpt's.
  Tensor nvfp4_scales(const LinearShape& shape, const StoredTensors& tensors) const {
    const Tensor& local = tensors["weight_scale"];
    const Tensor& global = tensors[global_name()];
    check_scales(global, global_name());
    check_e4m3(local, "weight_scale");
    const Tensor of_rows = expanded_to_rows(global, {LinearDimension::per_part()}, shape);
    const Tensor scales = Tensor::empty(local.shape(), DType::f32);
    const auto* bytes = static_cast<const uint8_t*>(local.raw());
    for (int64_t i = 0; i < scales.numel(); ++i) {
      const float of_part = of_rows.data<float>()[i / scales.dim(1)], of_group = e4m3_to_float(bytes[i]);
      scales.data<float>()[i] = stored().scales_are_factors ? of_group * of_part : of_group / of_part;
    }
    check_scales(scales, "weight_scale with the tensor's");
    return scales;
  }

  // Powers of two.
  static Tensor mx_scales(const StoredTensors& tensors) {
    const Tensor& stored = tensors["weight_scale"];
    const Tensor scales = Tensor::empty(stored.shape(), DType::f32);
    for (int64_t i = 0; i < scales.numel(); ++i)
      scales.data<float>()[i] = e8m0_to_float(stored.data<uint8_t>()[i]);
    check_scales(scales, "weight_scale");
    return scales;
  }
};

}  // namespace

std::shared_ptr<const LinearMethod> block_float_linear_method(const StoredLinear& stored) {
  return std::make_shared<const BlockFloatMethod>(stored);
}

}  // namespace ladder
