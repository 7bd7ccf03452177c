#pragma once
// Whether draws follow a distribution.
#include <gtest/gtest.h>

#include <vector>

namespace ladder::testing {

// `counts` of each outcome against their probabilities.
inline double chi_square(const std::vector<double>& counts, const std::vector<double>& probabilities) {
  double draws = 0, sum = 0;
  for (double count : counts) draws += count;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * draws;
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}

// `draw` draws anew and returns its chi-square, which must lie between `low`, as it does vary, and `high`. A
// right distribution is out of bounds about once in 100,000 draws, so twice in a row it is a wrong one.
template <class Draw>
void expect_chi_square(double low, double high, Draw&& draw) {
  double found = draw();
  if (found < low || found > high) found = draw();
  EXPECT_GT(found, low);
  EXPECT_LT(found, high);
}

}  // namespace ladder::testing
