// A step time model has five prices. That none may be below 0 makes the fit a search: some of the prices are 0, and the others
// are what plain least squares makes of them. Of five there are 31 such choices, so all are tried.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/planner/step_times.h"

namespace ladder {

namespace {

constexpr size_t kPrices = 5;
using Prices = std::array<double, kPrices>;

// What each price is paid for, over the seconds of the row: then every row counts by its relative error.
Prices paid_for(const MeasuredSteps& row) {
  const auto part = [&](int64_t count) { return static_cast<double>(count) / row.seconds; };
  return {part(row.num_steps), part(row.work.num_sequences), part(row.work.num_prompt_tokens),
          part(row.work.num_kv_tokens), part(row.work.num_prompt_pairs)};
}

// The prices in `chosen` that make the sum of squares of (sum - 1) least, all others 0; none if rows do not tell them apart.
std::optional<Prices> solve(const std::vector<Prices>& rows, unsigned chosen, const Prices& scale) {
  std::array<std::array<double, kPrices + 1>, kPrices> matrix{};
  std::array<size_t, kPrices> at{};
  size_t size = 0;
  for (size_t i = 0; i < kPrices; ++i)
    if (chosen >> i & 1) at[size++] = i;
  for (const Prices& row : rows)
    for (size_t i = 0; i < size; ++i) {
      const double own = row[at[i]] * scale[at[i]];
      for (size_t j = 0; j < size; ++j) matrix[i][j] += own * row[at[j]] * scale[at[j]];
      matrix[i][kPrices] += own;
    }
  for (size_t i = 0; i < size; ++i) {  // Gauss; the matrix is symmetric, scaled, and not below 0
    size_t pivot = i;
    for (size_t k = i + 1; k < size; ++k)
      if (std::abs(matrix[k][i]) > std::abs(matrix[pivot][i])) pivot = k;
    std::swap(matrix[i], matrix[pivot]);
    if (std::abs(matrix[i][i]) < 1e-9) return std::nullopt;
    for (size_t k = 0; k < size; ++k) {
      if (k == i) continue;
      const double factor = matrix[k][i] / matrix[i][i];
      for (size_t j = i; j <= kPrices; ++j) matrix[k][j] -= factor * matrix[i][j];
    }
  }
  Prices prices{};
  for (size_t i = 0; i < size; ++i) {
    prices[at[i]] = matrix[i][kPrices] / matrix[i][i] * scale[at[i]];
    if (prices[at[i]] < 0) return std::nullopt;
  }
  return prices;
}

}  // namespace

FittedSteps fit_step_times(const std::vector<MeasuredSteps>& steps) {
  LADDER_CHECK(!steps.empty(), "step times: expected at least one row");
  std::vector<Prices> rows;
  Prices scale{};  // brings each column to about 1
  for (const MeasuredSteps& row : steps) {
    rows.push_back(paid_for(row));
    for (size_t i = 0; i < kPrices; ++i) scale[i] += rows.back()[i] * rows.back()[i];
  }
  for (double& each : scale) each = each > 0 ? 1 / std::sqrt(each) : 1;

  FittedSteps best;
  double least = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 1; chosen < 1u << kPrices; ++chosen) {
    const std::optional<Prices> prices = solve(rows, chosen, scale);
    if (!prices) continue;
    double squares = 0, sum = 0, worst = 0;
    for (const Prices& row : rows) {
      double total = 0;
      for (size_t i = 0; i < kPrices; ++i) total += row[i] * (*prices)[i];
      squares += (total - 1) * (total - 1);
      sum += std::abs(total - 1);
      worst = std::max(worst, std::abs(total - 1));
    }
    if (squares >= least) continue;
    least = squares;
    best.model = {(*prices)[0], (*prices)[1], (*prices)[2], (*prices)[3], (*prices)[4]};
    best.mean_error = sum / static_cast<double>(rows.size());
    best.worst_error = worst;
  }
  return best;
}

}  // namespace ladder
