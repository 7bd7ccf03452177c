#pragma once
// Task 8.3: from H to the factor that round_columns.h takes.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder {

// H's diagonal. Errors name the layer: not f32 [k, k], NaN or infinity anywhere in H, a diagonal below 0.
std::vector<double> hessian_diagonal(const Tensor& hessian, int64_t k, std::string_view name);

// Sets the weight's columns whose H[i][i] is 0 to 0: calibration knows nothing of them, their inputs were always 0.
// Returns how many.
int64_t clear_dead_columns(const Tensor& weight, std::span<const double> diagonal);

struct DampedFactor {
  Tensor u;            // f32 [k, k], upper triangular, (H + damping * mean(diagonal) * I)^-1 = U^T U
  double damping = 0;  // that it took
};

// Of H with its rows and columns in this order, dead columns with 1 on the diagonal. Where H is not positive
// definite with `damping` (rows fewer than columns and rounding make that), it is raised times 10 a time, up to
// `max_damping`. Errors name the layer: damping is not above 0; H is not positive definite with max_damping either,
// with the column whose pivot was not above 0.
DampedFactor damped_factor(const Tensor& hessian, std::span<const int32_t> order, std::string_view name,
                           double damping, double max_damping);

}  // namespace ladder
