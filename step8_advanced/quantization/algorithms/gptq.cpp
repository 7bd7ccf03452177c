#include "step8_advanced/quantization/algorithms/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/algorithms/damped_factor.h"
#include "step8_advanced/quantization/algorithms/hessian.h"
#include "step8_advanced/quantization/algorithms/round_columns.h"
#include "step8_advanced/quantization/algorithms/sparse.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"

namespace ladder {
namespace {

// out[:, i] = matrix[:, order[i]], or the other way round.
Tensor take_columns(const Tensor& matrix, std::span<const int32_t> order) {
  const int64_t k = matrix.dim(1);
  const Tensor out = Tensor::empty(matrix.shape(), DType::f32);
  for (int64_t row = 0; row < matrix.dim(0); ++row)
    for (int64_t i = 0; i < k; ++i)
      out.data<float>()[row * k + i] = matrix.data<float>()[row * k + order[static_cast<size_t>(i)]];
  return out;
}

std::vector<int32_t> as_they_are(int64_t k) {
  std::vector<int32_t> order(static_cast<size_t>(k));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Act-order: so many neighbours stay together, and go by the sum of theirs.
std::vector<int32_t> by_falling_diagonal(const std::vector<double>& diagonal, int32_t together) {
  const auto sum_of = [&](int32_t first) {
    return std::accumulate(diagonal.begin() + first, diagonal.begin() + first + together, 0.0);
  };
  std::vector<int32_t> firsts;
  for (int32_t i = 0; i < static_cast<int32_t>(diagonal.size()); i += together) firsts.push_back(i);
  std::stable_sort(firsts.begin(), firsts.end(), [&](int32_t a, int32_t b) { return sum_of(a) > sum_of(b); });
  std::vector<int32_t> order;
  for (const int32_t first : firsts)
    for (int32_t i = first; i < first + together; ++i) order.push_back(i);
  return order;
}

std::vector<int32_t> inverse_of(std::span<const int32_t> order) {
  std::vector<int32_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) inverse[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  return inverse;
}

void set_grid(const WeightGrids& grids, int64_t row, int64_t group, const Grid& grid) {
  const int64_t at = row * grids.scales.dim(1) + group;
  grids.scales.data<float>()[at] = grid.scale;
  if (grids.zeros.defined()) grids.zeros.data<float>()[at] = grid.zero;
}

}  // namespace

GptqResult gptq(const Tensor& weight, const Tensor& hessian, const QuantizationArgs& args,
                std::string_view name, const GptqOptions& options) {
  LADDER_CHECK(args.actorder != ActivationOrder::group || args.strategy == ScaleStrategy::group,
               "{}: act-order `group` forms groups; expected a group strategy, or act-order `weight`", name);
  expect_dtype(weight, DType::f32, name);
  expect_shape(weight, {-1, -1}, name);
  LADDER_CHECK(!options.two_of_four || (args.actorder != ActivationOrder::group && weight.dim(1) % 4 == 0 &&
                                        (args.strategy != ScaleStrategy::group || args.group_size % 4 == 0)),
               "{}: two of four neighbours need groups of neighbours, and a multiple of 4 in each", name);
  GptqResult result;
  const int64_t k = weight.dim(1);
  const std::vector<double> diagonal = hessian_diagonal(hessian, k, name);

  Tensor rest = weight.clone();
  result.dead_columns = clear_dead_columns(rest, diagonal);
  const float global_scale = args.scale_format != ScaleFormat::e4m3 ? 1.0f
                             : options.global_scale > 0             ? options.global_scale
                                                        : nvfp4_global_scale(largest_absolute(rest));
  const WeightGrids grids = options.clipped_grids ? make_clipped_weight_grids(rest, args, name, global_scale)
                                                  : make_weight_grids(rest, args, name, global_scale);
  const std::vector<int32_t> order = args.actorder == ActivationOrder::none
                                         ? as_they_are(k)
                                         : by_falling_diagonal(diagonal, options.two_of_four ? 4 : 1);
  const DampedFactor factor = damped_factor(hessian, order, name, options.damping, options.max_damping);
  result.damping = factor.damping;

  // Groups are made anew of the weights as the loop finds them, unless they are neighbours as stored and the loop
  // does not come by neighbours.
  const bool at_their_turn =
      args.strategy == ScaleStrategy::group && args.actorder != ActivationOrder::weight;
  const int64_t group_size = at_their_turn ? grids.group_size : options.two_of_four ? 4 : 1;
  TwoOfFour pruning(weight.dim(0), factor.u);
  rest = take_columns(rest, order);
  round_columns(rest, factor.u, options.block_size, group_size,
                [&](int64_t row, int64_t column, const float* w) {
                  if (at_their_turn && column % group_size == 0) {
                    const std::span numbers(w + column, static_cast<size_t>(group_size));
                    set_grid(grids, row, column / group_size,
                             options.clipped_grids ? make_clipped_grid(numbers, args, global_scale)
                                                   : make_grid(numbers, args, global_scale));
                  }
                  if (options.two_of_four && !pruning.keeps(row, column, w)) return 0.0f;
                  const int32_t stored = order[static_cast<size_t>(column)];
                  if (options.keep_zeros && weight.data<float>()[row * k + stored] == 0) return 0.0f;
                  const int64_t at = at_their_turn ? column : stored;
                  return round_to_grid(w[column], grids.at(row, at), args);
                });

  const Tensor as_stored = take_columns(rest, inverse_of(order));
  result.error = layer_error(weight, as_stored, hessian);
  // Every value is on its grid already: what is nearest to it is itself.
  if (args.actorder != ActivationOrder::group) {
    result.weight = quantize_weight(as_stored, args, grids);
    return result;
  }
  result.weight = quantize_weight(rest, args, grids);
  result.weight.columns = Tensor::from<int32_t>(order, {k});
  result.g_idx = Tensor::empty({k}, DType::i32);
  for (int64_t i = 0; i < k; ++i)
    result.g_idx.data<int32_t>()[order[static_cast<size_t>(i)]] = static_cast<int32_t>(i / group_size);
  return result;
}

}  // namespace ladder
