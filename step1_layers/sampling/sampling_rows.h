#pragma once
// What the files of this folder share. Internal to it.
#include <algorithm>
#include <string_view>

#include "step1_layers/core/context.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/core/tensor.h"

namespace ladder::detail {

inline float* row_of(const Tensor& logits, int64_t row) {
  return logits.data<float>() + row * logits.stride(0);
}

// Calls fn(row) for every row, rows split among threads.
template <class Fn>
void for_each_row(const Tensor& logits, Fn&& fn) {
  parallel_for(logits.dim(0), 16384 / std::max<int64_t>(logits.dim(1), 1) + 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row) fn(row);
               });
}

inline void check_logits(const Tensor& logits, std::string_view op) {
  expect_dtype(logits, DType::f32, op);
  expect_shape(logits, {-1, -1}, op);
  LADDER_CHECK(logits.dim(1) >= 1 && logits.stride(1) == 1,
               "{}: expected rows of at least one adjacent logit, got {}", op, logits.str());
}

// One value per row of logits.
inline void check_per_row(const Tensor& values, const Tensor& logits, DType dtype, std::string_view op) {
  expect_shape(values, {logits.dim(0)}, op);
  expect_dtype(values, dtype, op);
  LADDER_CHECK(values.is_contiguous(), "{}: values per row must be adjacent", op);
}

// Entries of all rows in one list: row r owns [row_start[r], row_start[r + 1]). Only the CPU reads them here.
inline void check_entries(const Tensor& logits, const Tensor& row_start, const Tensor& token_ids,
                          std::string_view op) {
  expect_shape(row_start, {logits.dim(0) + 1}, op);
  expect_dtype(row_start, DType::i32, op);
  expect_shape(token_ids, {-1}, op);
  expect_dtype(token_ids, DType::i32, op);
  if (!logits.device().is_cpu()) return;
  const int32_t* starts = row_start.data<int32_t>();
  for (int64_t row = 0; row < logits.dim(0); ++row)
    LADDER_CHECK(starts[row] >= 0 && starts[row] <= starts[row + 1] && starts[row + 1] <= token_ids.dim(0),
                 "{}: row {} has entries {} to {} of {}", op, row, starts[row], starts[row + 1],
                 token_ids.dim(0));
  for (int64_t i = 0; i < token_ids.dim(0); ++i) {
    const int32_t id = token_ids.data<int32_t>()[i];
    LADDER_CHECK(id >= 0 && id < logits.dim(1), "{}: token {} is outside a vocabulary of {}", op, id,
                 logits.dim(1));
  }
}

}  // namespace ladder::detail
