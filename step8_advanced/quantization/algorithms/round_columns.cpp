#include "step8_advanced/quantization/algorithms/round_columns.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/linear/matmul.h"

namespace ladder {

// >>> task 8.3.gptq: round column by column, and let the columns to come make up for it
int64_t end_of_block(int64_t begin, int64_t k, int64_t block_size, int64_t group_size) {
  if (group_size <= block_size) return std::min(begin + block_size / group_size * group_size, k);
  const int64_t end_of_group = (begin / group_size + 1) * group_size;
  return std::min({begin + block_size, end_of_group, k});
}

namespace {

// One row of one block. errors [block]; w the whole row.
void round_row(int64_t row, int64_t begin, int64_t end, const Tensor& u, const RoundWeight& round, float* w,
               float* errors) {
  const int64_t k = u.dim(1);
  for (int64_t i = begin; i < end; ++i) {
    const float* factors = u.data<float>() + i * k;
    const float value = round(row, i, w);
    const float error = (w[i] - value) / factors[i];
    w[i] = value;
    for (int64_t j = i + 1; j < end; ++j) w[j] -= error * factors[j];
    errors[i - begin] = error;
  }
}

// weight[:, end..] -= errors * U[begin..end, end..]
void update_columns_behind(const Tensor& weight, const Tensor& u, const Tensor& errors, int64_t begin,
                           int64_t end) {
  const int64_t n = weight.dim(0), k = weight.dim(1), behind = k - end, width = end - begin;
  if (behind == 0) return;
  // matmul's second factor has a row per column of the result.
  const Tensor transposed = Tensor::empty({behind, width}, DType::f32);
  parallel_for(behind, 64, [&](int64_t first, int64_t last) {
    for (int64_t i = 0; i < width; ++i)
      for (int64_t j = first; j < last; ++j)
        transposed.data<float>()[j * width + i] = u.data<float>()[(begin + i) * k + end + j];
  });
  OpContext ctx;
  ctx.batch_invariant = true;
  constexpr int64_t kRows = 256;  // of the product that are there at a time
  const Tensor product = Tensor::empty({std::min(kRows, n), behind}, DType::f32);
  for (int64_t row = 0; row < n; row += kRows) {
    const int64_t rows = std::min(kRows, n - row);
    matmul(ctx, errors.narrow(0, row, rows), transposed, Tensor(), product.rows(rows));
    parallel_for(rows, 4, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        float* to = weight.data<float>() + (row + i) * k + end;
        const float* from = product.data<float>() + i * behind;
        for (int64_t j = 0; j < behind; ++j) to[j] -= from[j];
      }
    });
  }
}

}  // namespace

void round_columns(const Tensor& weight, const Tensor& u, int64_t block_size, int64_t group_size,
                   const RoundWeight& round) {
  const int64_t n = weight.dim(0), k = weight.dim(1);
  for (int64_t begin = 0; begin < k;) {
    const int64_t end = end_of_block(begin, k, block_size, group_size);
    const Tensor errors = Tensor::empty({n, end - begin}, DType::f32);
    parallel_for(n, 4, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        round_row(row, begin, end, u, round, weight.data<float>() + row * k,
                  errors.data<float>() + row * (end - begin));
    });
    update_columns_behind(weight, u, errors, begin, end);
    begin = end;
  }
}
// <<< task 8.3.gptq

}  // namespace ladder
