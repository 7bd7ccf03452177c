#include "step8_advanced/quantization/numbers/weight_grids.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"

namespace ladder {
namespace {

void expect_weight(const Tensor& weight, const QuantizationArgs& args, std::string_view name) {
  LADDER_CHECK(weight.defined() && weight.device().is_cpu() && weight.is_contiguous() &&
                   weight.dtype() == DType::f32 && weight.ndim() == 2,
               "{}: the weight is {}, expected a contiguous f32 matrix", name, weight.str());
  const bool bits =
      args.is_float ? args.num_bits == 4 || args.num_bits == 8 : args.num_bits >= 2 && args.num_bits <= 8;
  LADDER_CHECK(bits, "{}: {} bits, expected {}", name, args.num_bits,
               args.is_float ? "4 or 8 for floats" : "2 to 8 for integers");
  LADDER_CHECK(args.symmetric || !args.is_float, "{}: floats have no zero point", name);
  LADDER_CHECK(args.strategy != ScaleStrategy::token, "{}: one scale per token is for activations", name);
  const int64_t columns = weight.dim(1);
  if (args.strategy == ScaleStrategy::group)
    LADDER_CHECK(args.group_size > 0 && columns % args.group_size == 0,
                 "{}: {} input features are not a multiple of the group of {}", name, columns,
                 args.group_size);
  if (args.strategy == ScaleStrategy::block)
    LADDER_CHECK(args.block_rows > 0 && args.block_columns > 0, "{}: blocks of {} x {}", name,
                 args.block_rows, args.block_columns);
  const auto* values = weight.data<float>();
  for (int64_t i = 0; i < weight.numel(); ++i)
    LADDER_CHECK(std::isfinite(values[i]), "{}: the weight has {} at [{}, {}]", name, values[i], i / columns,
                 i % columns);
}

}  // namespace

float largest_absolute(const Tensor& weight) {
  float largest = 0;
  for (int64_t i = 0; i < weight.numel(); ++i)
    largest = std::max(largest, std::fabs(weight.data<float>()[i]));
  return largest;
}

Grid WeightGrids::at(int64_t row, int64_t column) const {
  const int64_t group = row * scales.dim(1) + column / group_size;
  return {scales.data<float>()[group], zeros.defined() ? zeros.data<float>()[group] : 0.0f};
}

// >>> task 8.1.rtn: the numbers that share a grid, and the search for a smaller one
Grid make_clipped_grid(std::span<const float> numbers, const QuantizationArgs& args, float global_scale) {
  float min = 0, max = 0;
  for (const float number : numbers) {
    min = std::min(min, number);
    max = std::max(max, number);
  }
  Grid best;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 80; ++i) {
    const float part = 1.0f - static_cast<float>(i) / 100;
    const Grid grid = make_grid(part * min, part * max, args, global_scale);
    double error = 0;
    for (const float number : numbers)
      error += std::pow(std::fabs(double{round_to_grid(number, grid, args)} - number), 2.4);
    if (error < least) {
      least = error;
      best = grid;
    }
  }
  return best;
}

namespace {

WeightGrids grids_of(const Tensor& weight, const QuantizationArgs& args, float global_scale,
                     Grid (*make)(std::span<const float>, const QuantizationArgs&, float)) {
  const int64_t n = weight.dim(0), k = weight.dim(1);
  // A grid covers this many rows and columns.
  int64_t rows = 1, columns = k;
  if (args.strategy == ScaleStrategy::tensor) rows = n;
  if (args.strategy == ScaleStrategy::group) columns = args.group_size;
  if (args.strategy == ScaleStrategy::block) rows = args.block_rows, columns = args.block_columns;
  rows = std::clamp<int64_t>(rows, 1, std::max<int64_t>(n, 1));
  columns = std::clamp<int64_t>(columns, 1, std::max<int64_t>(k, 1));
  const int64_t groups = (k + columns - 1) / columns;
  if (global_scale == 0)
    global_scale = args.scale_format == ScaleFormat::e4m3 ? nvfp4_global_scale(largest_absolute(weight)) : 1;

  WeightGrids grids{Tensor::empty({n, groups}, DType::f32), {}, columns};
  if (!args.symmetric) grids.zeros = Tensor::empty({n, groups}, DType::f32);
  parallel_for((n + rows - 1) / rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> numbers;
    for (int64_t row = begin * rows; row < std::min(end * rows, n); row += rows) {
      const int64_t last_row = std::min(row + rows, n);
      for (int64_t group = 0; group < groups; ++group) {
        numbers.clear();
        for (int64_t r = row; r < last_row; ++r) {
          const float* from = weight.data<float>() + r * k;
          numbers.insert(numbers.end(), from + group * columns, from + std::min((group + 1) * columns, k));
        }
        const Grid grid = make(numbers, args, global_scale);
        for (int64_t r = row; r < last_row; ++r) {
          grids.scales.data<float>()[r * groups + group] = grid.scale;
          if (!args.symmetric) grids.zeros.data<float>()[r * groups + group] = grid.zero;
        }
      }
    }
  });
  return grids;
}

}  // namespace
// <<< task 8.1.rtn

WeightGrids make_weight_grids(const Tensor& weight, const QuantizationArgs& args, std::string_view name,
                              float global_scale) {
  expect_weight(weight, args, name);
  return grids_of(weight, args, global_scale, make_grid);
}

WeightGrids make_clipped_weight_grids(const Tensor& weight, const QuantizationArgs& args,
                                      std::string_view name, float global_scale) {
  expect_weight(weight, args, name);
  return grids_of(weight, args, global_scale, make_clipped_grid);
}

}  // namespace ladder
