#pragma once
// Synthetic layers: a weight and activations whose columns are correlated, as those of real layers are.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/linear/matmul.h"
#include "step8_advanced/quantization/algorithms/hessian.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

struct LayerProblem {
  Tensor weight;  // [n, k] f32
  Tensor x;       // [m, k] f32
  Tensor hessian;
};

// x = z * diag(i^-decay) * a random matrix, so that a few directions hold most of the energy, and a little of its own in every
// column; `outliers`: columns whose activations are 30 times the others'; `dead`: columns that are 0. Both are spread
// over the columns: number i is column (7 + 37 i) % k, the outliers first.
inline LayerProblem layer_problem(uint64_t seed, int64_t n, int64_t k, int64_t m, double decay = 0.7,
                                  int64_t outliers = 0, int64_t dead = 0) {
  Random random(seed);
  LayerProblem problem;
  problem.weight = random.normal({n, k}, DType::f32, 0.05);
  const Tensor z = random.normal({m, k}, DType::f32), mix = random.normal({k, k}, DType::f32);
  for (int64_t i = 0; i < k; ++i) {
    const auto share = static_cast<float>(std::pow(1.0 + static_cast<double>(i), -decay));
    for (int64_t row = 0; row < m; ++row) z.data<float>()[row * k + i] *= share;
  }
  problem.x = Tensor::empty({m, k}, DType::f32);
  OpContext ctx;
  ctx.batch_invariant = true;
  matmul(ctx, z, mix, Tensor(), problem.x);
  const Tensor own = random.normal({m, k}, DType::f32, 0.02);
  for (int64_t i = 0; i < m * k; ++i) problem.x.data<float>()[i] += own.data<float>()[i];
  for (int64_t i = 0; i < outliers + dead; ++i) {
    const int64_t column = (7 + i * 37) % k;
    for (int64_t row = 0; row < m; ++row)
      problem.x.data<float>()[row * k + column] *= i < outliers ? 30.0f : 0.0f;
  }
  Hessian hessian(k, "layer");
  hessian.add(problem.x);
  problem.hessian = hessian.matrix();
  return problem;
}

inline Tensor diagonal_matrix(const std::vector<float>& diagonal) {
  const auto k = static_cast<int64_t>(diagonal.size());
  const Tensor matrix = Tensor::zeros({k, k}, DType::f32);
  for (int64_t i = 0; i < k; ++i) matrix.data<float>()[i * k + i] = diagonal[static_cast<size_t>(i)];
  return matrix;
}

// The message of the Error that `action` throws; empty where it throws none.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace ladder::testing
