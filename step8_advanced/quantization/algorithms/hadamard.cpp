#include "step8_advanced/quantization/algorithms/hadamard.h"

#include <bit>
#include <cmath>
#include <random>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"

namespace ladder {
namespace {

// Paley's first construction for a prime q with q % 4 == 3: I + S of size q + 1, where S is antisymmetric, its first row is ones,
// and S[i][j] says whether i - j is a square modulo q.
std::vector<int> paley(int64_t q) {
  const int64_t n = q + 1;
  std::vector<int> is_square(static_cast<size_t>(q), -1);
  for (int64_t i = 1; i < q; ++i) is_square[static_cast<size_t>(i * i % q)] = 1;
  std::vector<int> matrix(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      int& element = matrix[static_cast<size_t>(i * n + j)];
      if (i == j || i == 0)
        element = 1;
      else if (j == 0)
        element = -1;
      else
        element = is_square[static_cast<size_t>((i - j + q) % q)];
    }
  }
  return matrix;
}

}  // namespace

HadamardRotation::HadamardRotation(int64_t size, uint64_t seed) {
  for (const int64_t odd : {1, 12, 20})
    if (size >= odd && size % odd == 0 && std::has_single_bit(static_cast<uint64_t>(size / odd))) odd_ = odd;
  LADDER_CHECK(size >= odd_ && size % odd_ == 0 && std::has_single_bit(static_cast<uint64_t>(size / odd_)),
               "no Hadamard matrix of size {} is known here; expected a power of two, or 12 or 20 times one",
               size);
  small_ = odd_ == 1 ? std::vector<int>{1} : paley(odd_ - 1);
  std::mt19937_64 engine(seed);
  for (int64_t i = 0; i < size; ++i) signs_.push_back(engine() >> 63 == 0 ? 1.0 : -1.0);
}

void HadamardRotation::transform(double* row, double* scratch, bool transposed) const {
  const int64_t n = size(), power = n / odd_;
  if (!transposed)
    for (int64_t i = 0; i < n; ++i) row[i] *= signs_[static_cast<size_t>(i)];
  for (int64_t half = 1; half < power; half *= 2) {
    for (int64_t begin = 0; begin < n; begin += 2 * half) {
      for (int64_t i = begin; i < begin + half; ++i) {
        const double a = row[i], b = row[i + half];
        row[i] = a + b;
        row[i + half] = a - b;
      }
    }
  }
  for (int64_t lane = 0; odd_ > 1 && lane < power; ++lane) {
    for (int64_t j = 0; j < odd_; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < odd_; ++i)
        sum += row[i * power + lane] * small_[static_cast<size_t>(transposed ? j * odd_ + i : i * odd_ + j)];
      scratch[j] = sum;
    }
    for (int64_t j = 0; j < odd_; ++j) row[j * power + lane] = scratch[j];
  }
  const double scale = 1 / std::sqrt(static_cast<double>(n));
  for (int64_t i = 0; i < n; ++i) row[i] *= transposed ? scale * signs_[static_cast<size_t>(i)] : scale;
}

namespace {

template <class T, class Transform>
void for_each_row(const Tensor& x, Transform&& transform) {
  const int64_t n = x.dim(1);
  parallel_for(x.dim(0), 1, [&](int64_t first, int64_t last) {
    std::vector<double> numbers(static_cast<size_t>(n)), scratch(32);
    for (int64_t row = first; row < last; ++row) {
      T* at = x.data<T>() + row * x.stride(0);
      for (int64_t i = 0; i < n; ++i) numbers[static_cast<size_t>(i)] = at[i];
      transform(numbers.data(), scratch.data());
      for (int64_t i = 0; i < n; ++i) at[i] = static_cast<T>(numbers[static_cast<size_t>(i)]);
    }
  });
}

template <class Transform>
void for_each_row_of(const Tensor& x, int64_t size, Transform&& transform) {
  expect_shape(x, {-1, size}, "Hadamard rotation");
  if (x.dtype() == DType::f64)
    for_each_row<double>(x, transform);
  else
    for_each_row<float>(x, transform);
}

}  // namespace

void HadamardRotation::rotate(const Tensor& x) const {
  for_each_row_of(x, size(), [&](double* row, double* scratch) { transform(row, scratch, false); });
}

void HadamardRotation::rotate_back(const Tensor& x) const {
  for_each_row_of(x, size(), [&](double* row, double* scratch) { transform(row, scratch, true); });
}

}  // namespace ladder
