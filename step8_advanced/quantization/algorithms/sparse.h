#pragma once
// Task 8.3: two of every four neighbours along k become 0 (2:4), which the tensor cores of a GPU skip ("Accelerating sparse deep
// neural networks", Mishra et al., 2021, arXiv 2104.08378). Which two:
//
//   magnitude   the least |w|
//   Wanda       the least |w| * norm(x_i): what the weight adds to the output on the average (Sun et al., 2023, arXiv 2306.11695)
//   SparseGPT   the least w^2 / U[i][i]^2: the error that is left when the columns to come make up for the loss, which they then
//               do (Frantar and Alistarh, 2023, arXiv 2301.00774)
//
//   SparseGPT:  for each column i, in order (round_columns.h):
//                 if i is a multiple of 4:
//                   of w[i..i+4), as they are by now, mark the two with the least w^2 / U[i][i]^2
//                 where marked q = 0, elsewhere q = w, or with quantization w rounded
//
// Of equal scores the lower column goes first. k is a multiple of 4, or it is an Error that names the layer.
//
// SparseGPT together with quantization, in one loop, is gptq() with GptqOptions::two_of_four: a zero is on every grid.
//
// Time: magnitude and Wanda n k; SparseGPT as GPTQ.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder {

// The first row and column of four neighbours, beginning at a multiple of 4, that hold more than two numbers other than
// 0. weight f32 [n, k].
struct WeightPlace {
  int64_t row = 0, column = 0;
};
std::optional<WeightPlace> more_than_two_of_four(const Tensor& weight);

// Copies of weight [n, k] f32.
Tensor prune_by_magnitude(const Tensor& weight, std::string_view name);
// hessian [k, k] (hessian.h): only its diagonal is read, 2 / n times the squared norms of x.
Tensor prune_by_wanda(const Tensor& weight, const Tensor& hessian, std::string_view name);

struct SparseGptResult {
  Tensor weight;             // [n, k]
  double error = 0;          // layer_error() of it
  double damping = 0;        // as GptqResult's
  int64_t dead_columns = 0;  // as GptqResult's
};

// Damping and errors as gptq() has them.
SparseGptResult prune_by_sparse_gpt(const Tensor& weight, const Tensor& hessian, std::string_view name,
                                    double damping = 0.01, double max_damping = 1, int64_t block_size = 128);

// SparseGPT's choice, one weight after the other, for round_columns().
class TwoOfFour {
 public:
  TwoOfFour(int64_t rows, const Tensor& u) : u_(u), kept_(static_cast<size_t>(rows)) {}
  // Whether w[column] stays. Asked for each row in the order of the columns; rows may be asked for at the same time.
  bool keeps(int64_t row, int64_t column, const float* w);

 private:
  Tensor u_;
  std::vector<uint8_t> kept_;  // of each row's four: one bit per column
};

}  // namespace ladder
