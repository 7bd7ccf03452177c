#pragma once
// Rows from which no token can be drawn, among good ones: an operator must say so of each, and give the others
// what they get without them.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "step1_layers/sampling/invalid_token.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

// run(logits [rows, vocab]) gives a token per row.
template <class Run>
void expect_invalid_rows(int64_t vocab, Run&& run) {
  Random random;
  SCOPED_TRACE(random.describe() + " vocabulary " + std::to_string(vocab));
  const int64_t rows = 10;
  const Tensor logits = random.normal({rows, vocab}, DType::f32, 2.0);
  const std::vector<int32_t> good = run(logits.clone());
  for (const int32_t id : good) EXPECT_TRUE(id >= 0 && id < vocab);
  // A NaN, of either sign, in the first column, in some column, in the last; beside +inf, and in a row that is
  // otherwise forbidden; all of them NaN; and all of them forbidden.
  const auto set = [&](int64_t row, int64_t column, float value) { logits.at<float>({row, column}) = value; };
  set(1, 0, NAN);
  set(2, random.integer(0, vocab - 1), -NAN);
  set(4, vocab - 1, NAN);
  for (int64_t i = 0; i < vocab; ++i) {
    set(5, i, i == vocab / 2 ? NAN : INFINITY);
    set(6, i, i == vocab - 1 ? NAN : -INFINITY);
    set(7, i, NAN);
    set(8, i, -INFINITY);
  }
  const std::vector<int32_t> ids = run(logits);
  for (int64_t row = 0; row < rows; ++row) {
    const bool invalid = row != 0 && row != 3 && row != 9;
    EXPECT_EQ(ids[static_cast<size_t>(row)], invalid ? kInvalidToken : good[static_cast<size_t>(row)])
        << "row " << row;
  }
}

}  // namespace ladder::testing
