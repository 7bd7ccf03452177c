#include "step8_advanced/quantization/linear/part_values.h"

#include <algorithm>
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

Tensor shared_rows(const Tensor& parts, int64_t parts_per_row, std::string_view what) {
  const int64_t width = parts.dim(1), per_row = parts_per_row > 0 ? parts_per_row : parts.dim(0);
  const int32_t* values = parts.data<int32_t>();
  const Tensor rows = Tensor::empty({parts.dim(0) / per_row, width}, DType::i32);
  bool same = true;
  for (int64_t part = 0; part < parts.dim(0); ++part) {
    const int64_t first = part / per_row * per_row;
    for (int64_t i = 0; i < width; ++i)
      LADDER_CHECK(values[part * width + i] == values[first * width + i],
                   "{} of part {} is {} at feature {}, part {} has {}: expected the same in parts that share "
                   "their input",
                   what, part, values[part * width + i], i, first, values[first * width + i]);
    if (part == first) rows.select(0, part / per_row).copy_from(parts.select(0, part));
    same = same && std::equal(values, values + width, values + part * width);
  }
  return same ? rows.narrow(0, 0, 1) : rows;
}

}  // namespace ladder
