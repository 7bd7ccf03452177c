#include "step8_advanced/quantization/algorithms/hessian.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/linear/matmul.h"

namespace ladder {
namespace {

constexpr int64_t kStrip = 256;  // rows of a product that are there at a time

// out = x * weight^T on this machine's own rungs, whose sums do not depend on the number of threads.
void product(const Tensor& x, const Tensor& weight, const Tensor& out) {
  OpContext ctx;
  ctx.batch_invariant = true;
  matmul(ctx, x, weight, Tensor(), out);
}

// tr(A H A^T).
double quadratic_form(const Tensor& a, const Tensor& hessian) {
  const int64_t n = a.dim(0), k = a.dim(1);
  const Tensor strip = Tensor::empty({std::min(kStrip, n), k}, DType::f32);
  std::vector<double> of_row(static_cast<size_t>(n));
  for (int64_t begin = 0; begin < n; begin += kStrip) {
    const int64_t rows = std::min(kStrip, n - begin);
    product(a.narrow(0, begin, rows), hessian, strip.rows(rows));
    parallel_for(rows, 1, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const float* left = a.data<float>() + (begin + row) * a.stride(0);
        const float* right = strip.data<float>() + row * k;
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += static_cast<double>(left[i]) * right[i];
        of_row[static_cast<size_t>(begin + row)] = sum;
      }
    });
  }
  double sum = 0;
  for (const double row : of_row) sum += row;
  return sum;
}

}  // namespace

Hessian::Hessian(int64_t columns, std::string name)
    : name_(std::move(name)),
      columns_(columns),
      sums_(Tensor::zeros({columns, columns}, DType::f32)),
      waiting_(Tensor::zeros({columns, kRowsAtOnce}, DType::f32)),
      abs_sums_(static_cast<size_t>(columns)),
      abs_max_(static_cast<size_t>(columns)) {}

void Hessian::add(const Tensor& x) {
  expect_shape(x, {-1, columns_}, name_ + ": activations");
  for (int64_t begin = 0; begin < x.dim(0);) {
    const int64_t rows = std::min(kRowsAtOnce - waiting_rows_, x.dim(0) - begin);
    with_float_type(x.dtype(), name_ + ": activations", [&](auto tag) {
      using T = decltype(tag);
      parallel_for(columns_, 64, [&](int64_t first, int64_t last) {
        for (int64_t row = 0; row < rows; ++row) {
          const T* from = x.data<T>() + (begin + row) * x.stride(0);
          float* to = waiting_.data<float>() + waiting_rows_ + row;
          for (int64_t column = first; column < last; ++column) {
            const auto value = static_cast<float>(from[column]);
            LADDER_CHECK(std::isfinite(value),
                         "{}: activation {} in column {}, which should be a finite number", name_, value,
                         column);
            to[column * kRowsAtOnce] = value;
            abs_sums_[static_cast<size_t>(column)] += std::fabs(value);
            abs_max_[static_cast<size_t>(column)] =
                std::max(abs_max_[static_cast<size_t>(column)], std::fabs(value));
          }
        }
      });
    });
    begin += rows;
    count_ += rows;
    waiting_rows_ += rows;
    if (waiting_rows_ == kRowsAtOnce) add_waiting();
  }
}

void Hessian::add_waiting() {
  if (waiting_rows_ == 0) return;
  const Tensor rows = waiting_.narrow(1, 0, waiting_rows_);
  const Tensor memory = Tensor::empty({std::min(kStrip, columns_) * columns_}, DType::f32);
  for (int64_t begin = 0; begin < columns_; begin += kStrip) {
    const int64_t height = std::min(kStrip, columns_ - begin), width = begin + height;
    const Tensor strip = memory.narrow(0, 0, height * width).view({height, width});
    product(rows.narrow(0, begin, height), rows.narrow(0, 0, width), strip);
    parallel_for(height, 4, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const float* from = strip.data<float>() + row * width;
        float* to = sums_.data<float>() + (begin + row) * columns_;
        for (int64_t column = 0; column < width; ++column) to[column] += from[column];
      }
    });
  }
  waiting_rows_ = 0;
}

Tensor Hessian::matrix() {
  LADDER_CHECK(count_ > 0, "{}: no activations were seen in calibration", name_);
  add_waiting();
  const Tensor result = Tensor::empty({columns_, columns_}, DType::f32);
  const double scale = 2.0 / static_cast<double>(count_);
  parallel_for(columns_, 16, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t column = 0; column < columns_; ++column) {
        const float sum = sums_.data<float>()[std::max(row, column) * columns_ + std::min(row, column)];
        result.data<float>()[row * columns_ + column] = static_cast<float>(sum * scale);
      }
    }
  });
  return result;
}

Tensor Hessian::mean_abs() const {
  LADDER_CHECK(count_ > 0, "{}: no activations were seen in calibration", name_);
  const Tensor result = Tensor::empty({columns_}, DType::f32);
  for (int64_t column = 0; column < columns_; ++column)
    result.data<float>()[column] =
        static_cast<float>(abs_sums_[static_cast<size_t>(column)] / static_cast<double>(count_));
  return result;
}

Tensor Hessian::max_abs() const {
  LADDER_CHECK(count_ > 0, "{}: no activations were seen in calibration", name_);
  return Tensor::from<float>(abs_max_, {columns_});
}

double layer_error(const Tensor& weight, const Tensor& rounded, const Tensor& hessian) {
  expect_dtype(weight, DType::f32, "layer_error: weight");
  expect_shape(rounded, {weight.dim(0), weight.dim(1)}, "layer_error: rounded");
  expect_shape(hessian, {weight.dim(1), weight.dim(1)}, "layer_error: hessian");
  const Tensor difference = Tensor::empty(weight.shape(), DType::f32);
  const int64_t k = weight.dim(1);
  for (int64_t row = 0; row < weight.dim(0); ++row)
    for (int64_t column = 0; column < k; ++column)
      difference.data<float>()[row * k + column] = rounded.data<float>()[row * rounded.stride(0) + column] -
                                                   weight.data<float>()[row * weight.stride(0) + column];
  const double output = quadratic_form(weight, hessian);
  return output > 0 ? quadratic_form(difference, hessian) / output : 0.0;
}

}  // namespace ladder
