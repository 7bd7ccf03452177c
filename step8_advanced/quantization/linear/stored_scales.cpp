#include "step8_advanced/quantization/linear/stored_scales.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "step1_layers/core/error.h"

namespace ladder {

std::vector<LinearDimension> scale_dimensions(const QuantizationArgs& args, const LinearShape& shape) {
  switch (args.strategy) {
    case ScaleStrategy::tensor:
      return {LinearDimension::per_part()};
    case ScaleStrategy::channel:
      return {LinearDimension::along_out(), LinearDimension::of_size(1)};
    case ScaleStrategy::group:
      if (args.actorder == ActivationOrder::group)
        return {LinearDimension::along_out(),
                LinearDimension::of_size((shape.in.full + args.group_size - 1) / args.group_size)};
      return {LinearDimension::along_out(), LinearDimension::along_in(args.group_size)};
    case ScaleStrategy::block:
      return {LinearDimension::along_out(args.block_rows), LinearDimension::along_in(args.block_columns)};
    case ScaleStrategy::token:
      break;
  }
  fail("weights with a scale per token: expected per tensor, channel, group or block");
}

ColumnGroups column_groups(const QuantizationArgs& args, const LinearShape& shape) {
  const int64_t size = args.strategy == ScaleStrategy::group   ? args.group_size
                       : args.strategy == ScaleStrategy::block ? args.block_columns
                                                               : 0;
  if (size == 0) return {shape.in_features(), 0};
  return {size, shape.in.begin % size};
}

// >>> task 8.2.load: each row's own scales, and scales that cannot be
namespace {

// Which element of a dimension along `out` or of parts each of the rank's rows has.
std::vector<int64_t> element_of_rows(const LinearDimension& dim, const LinearShape& shape) {
  std::vector<int64_t> elements;
  for (size_t part = 0; part < shape.out.size(); ++part) {
    const FeatureRange& range = shape.out[part];
    const int64_t first = dim.follows == LinearDimension::Follows::parts ? 0 : dim.elements_of(range).begin;
    for (int64_t row = range.begin; row < range.begin + range.size; ++row)
      elements.push_back(dim.follows == LinearDimension::Follows::parts
                             ? static_cast<int64_t>(part)
                             : dim.begin_of_part(shape, part) + row / dim.features - first);
  }
  return elements;
}

}  // namespace

Tensor expanded_to_rows(const Tensor& stored, const std::vector<LinearDimension>& dims,
                        const LinearShape& shape) {
  const std::vector<int64_t> elements = element_of_rows(dims[0], shape);
  const int64_t width = stored.ndim() > 1 ? stored.dim(1) : 1;
  const Tensor rows = Tensor::empty({std::ssize(elements), width}, stored.dtype());
  const auto bytes = static_cast<size_t>(width * dtype_size(stored.dtype()));
  for (size_t row = 0; row < elements.size(); ++row)
    std::memcpy(static_cast<char*>(rows.raw()) + row * bytes,
                static_cast<const char*>(stored.raw()) + static_cast<size_t>(elements[row]) * bytes, bytes);
  return rows;
}

void check_scales(const Tensor& scales, std::string_view what, ScaleSign sign) {
  const float* values = scales.data<float>();
  for (int64_t i = 0; i < scales.numel(); ++i) {
    const float size = sign == ScaleSign::any ? std::fabs(values[i]) : values[i];
    LADDER_CHECK(std::isfinite(size) && size > 0, "{} is {} in row {}, expected a finite number {}", what,
                 values[i], i / scales.dim(-1), sign == ScaleSign::any ? "other than 0" : "above 0");
  }
}

void check_e4m3(const Tensor& codes, std::string_view what) {
  const uint8_t* bytes = static_cast<const uint8_t*>(codes.raw());
  for (int64_t i = 0; i < codes.numel(); ++i)
    LADDER_CHECK((bytes[i] & 0x7f) != 0x7f, "{} has a NaN in row {}", what, i / codes.dim(-1));
}
// <<< task 8.2.load

Tensor transposed(const Tensor& matrix) {
  const Tensor out = Tensor::empty({matrix.dim(1), matrix.dim(0)}, DType::f32);
  for (int64_t row = 0; row < out.dim(0); ++row)
    for (int64_t column = 0; column < out.dim(1); ++column)
      out.data<float>()[row * out.dim(1) + column] = matrix.data<float>()[column * out.dim(0) + row];
  return out;
}

Tensor as_bytes(const Tensor& e4m3) {
  return Tensor::wrap(e4m3.raw(), e4m3.shape(), DType::u8, {}, std::make_shared<Tensor>(e4m3));
}

}  // namespace ladder
