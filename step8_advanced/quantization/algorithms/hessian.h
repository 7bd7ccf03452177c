#pragma once
// Task 8.3: what calibration has to know of a linear layer's inputs.
//
//   H = (2 / n) sum over n rows x of x x^T        the layer's error is quadratic in the weights' error E: for
//   mean |x_i|, max |x_i|                         every row of E, the mean of (E x)^2 is (E H E^T) / 2
//
// "Optimal Brain Compression" (Frantar et al., 2022, arXiv 2208.11580) calls H the Hessian of the layer's squared error, which
// it is. Everything that GPTQ, SparseGPT and the layer error need of the activations is in it; AWQ and SmoothQuant need the means
// and maxima.
//
// Memory: 4 k^2 bytes for H, whatever the number of rows, and 2 KiB per column for rows that wait. Rows are added in
// the order in which they come, kRowsAtOnce together, so H has the same bits however they were cut into batches, and for any
// number of threads.
#include <cstdint>
#include <string>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder {

class Hessian {
 public:
  static constexpr int64_t kRowsAtOnce = 512;

  // `name`: of the layer, for messages.
  Hessian(int64_t columns, std::string name);

  // x [m, columns], f32, bf16 or f16, on the CPU; rows may be strided. Error naming the layer: another width, and NaN or
  // infinity in it, with the column: one such row would make all of H NaN.
  void add(const Tensor& x);

  int64_t count() const { return count_; }  // rows so far
  const std::string& name() const { return name_; }

  // f32. Error: no row was added.
  Tensor matrix();          // H [columns, columns], symmetric
  Tensor mean_abs() const;  // [columns]
  Tensor max_abs() const;   // [columns]

 private:
  void add_waiting();

  std::string name_;
  int64_t columns_ = 0, count_ = 0;
  Tensor sums_;     // sum of x x^T, f32 [columns, columns], the lower triangle
  Tensor waiting_;  // rows that are not in sums_ yet, f32 [columns, kRowsAtOnce]
  int64_t waiting_rows_ = 0;
  std::vector<double> abs_sums_;
  std::vector<float> abs_max_;
};

// What it costs a layer that its weight [n, k] became `rounded`: the squared error of its output over the squared output,
// tr(E H E^T) / tr(W H W^T), E = rounded - weight. 0 where the layer's output is 0. f32, on the CPU.
double layer_error(const Tensor& weight, const Tensor& rounded, const Tensor& hessian);

}  // namespace ladder
