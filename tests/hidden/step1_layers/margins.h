#pragma once
// Tensors with NaN on all sides, for the hidden tests of operators: rows lie further apart than they are long, and what
// is written beside a row is found.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/numerics.h"

namespace ladder::testing {

struct Margins {
  Tensor whole, inside;

  Margins(Random& random, const Shape& shape, DType dtype) {
    Shape size = shape;
    const int last = shape.ndim() - 1;
    const int64_t before = random.integer(0, 9);
    size[last] += before + random.integer(1, 9);
    whole = poisoned(size, dtype);
    inside = whole.narrow(last, before, shape[last]);
  }

  // The margins are as they were: counted, so that no index needs to be known.
  void expect_untouched() const {
    int64_t nan = 0, nan_inside = 0;
    for (const double value : to_double(whole)) nan += std::isnan(value);
    for (const double value : to_double(inside)) nan_inside += std::isnan(value);
    EXPECT_EQ(nan - nan_inside, whole.numel() - inside.numel())
        << "something was written beside " << inside.str();
  }
};

inline DType any_float(Random& random) {
  return random.one_of<DType>({DType::f32, DType::bf16, DType::f16});
}

// Calls one_case(random) `count` times, until one fails.
template <class Fn>
void repeated(int count, Fn&& one_case) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) one_case(random);
}

}  // namespace ladder::testing
