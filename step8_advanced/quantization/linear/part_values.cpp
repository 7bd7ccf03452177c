#include "step8_advanced/quantization/linear/part_values.h"

#include <numeric>

#include "step1_layers/core/error.h"

namespace ladder {

LinearDimension words_along_in(int bits) {
  const int common = std::gcd(32, bits);
  return LinearDimension::along_in(32 / common, bits / common);
}

LinearDimension words_along_out(int bits) {
  const int common = std::gcd(32, bits);
  return LinearDimension::along_out(32 / common, bits / common);
}

Tensor joined_parts(const LinearShape& shape, const std::function<Tensor(size_t part)>& rows_of_part) {
  Tensor all;
  int64_t begin = 0;
  for (size_t part = 0; part < shape.out.size(); ++part) {
    const Tensor rows = rows_of_part(part);
    if (!all.defined()) all = Tensor::empty({shape.out_features(), rows.dim(1)}, rows.dtype());
    all.narrow(0, begin, rows.dim(0)).copy_from(rows);
    begin += rows.dim(0);
  }
  return all;
}

Tensor common_value(const Tensor& parts, std::string_view what) {
  const int64_t width = parts.dim(1);
  const int32_t* values = parts.data<int32_t>();
  for (int64_t part = 1; part < parts.dim(0); ++part)
    for (int64_t i = 0; i < width; ++i)
      LADDER_CHECK(
          values[part * width + i] == values[i],
          "{} of part {} is {} at feature {}, part 0 has {}: expected the same in all parts, which share "
          "their input",
          what, part, values[part * width + i], i, values[i]);
  return parts.select(0, 0);
}

}  // namespace ladder
