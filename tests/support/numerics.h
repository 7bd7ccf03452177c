#pragma once
// The numerics policy, stated once. Every test compares through these functions.
//
// The reference is the same function in double precision. Per row (the last dimension), worst row counts:
// ||out - ref|| / ||ref|| within the bound of the output's dtype, and no element off by more than 4 times
// that bound times the row's largest |ref|. f16 below 6e-5 has steps of 6e-8 and no relative precision: half
// a step per element comes on top. NaN never passes.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder::testing {

// f32 1e-5, 5e-5 for reductions longer than 64k; f16 1e-3; bf16 4e-3.
double row_bound(DType dtype, int64_t reduction_length = 1);

// Rows of `columns` elements. Use as EXPECT_TRUE(close_to(out, reference)).
::testing::AssertionResult close_to(const Tensor& out, std::span<const double> reference,
                                    int64_t reduction_length = 1);
::testing::AssertionResult close_to(std::span<const double> out, std::span<const double> reference,
                                    int64_t columns, double bound, double half_step = 0);
// Same bits, element for element; says where the first difference is.
::testing::AssertionResult bitwise_equal(const Tensor& a, const Tensor& b);

std::vector<double> to_double(const Tensor& tensor);

// LADDER_TEST_SEED, or another number in every run. Notes in GoogleTest's report that the test's inputs are random:
// `lab grade` runs such tests again with a seed that nobody knows.
uint64_t fresh_seed();

// Random inputs are fresh in every run; a failing test prints the seed and LADDER_TEST_SEED repeats it.
class Random {
 public:
  Random();
  explicit Random(uint64_t seed) : seed_(seed), engine_(seed) {}
  uint64_t seed() const { return seed_; }
  std::string describe() const { return "LADDER_TEST_SEED=" + std::to_string(seed_); }  // for SCOPED_TRACE
  std::mt19937_64& engine() { return engine_; }

  int64_t integer(int64_t low, int64_t high);  // both included
  double uniform(double low, double high);
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(integer(0, static_cast<int64_t>(values.size()) - 1))];
  }
  // Normal with the given deviation, rounded to dtype.
  Tensor normal(const Shape& shape, DType dtype, double deviation = 1.0);
  // Small integers in [-limit, limit], three quarters of them zero: sums are exact in every dtype.
  Tensor exact(const Shape& shape, DType dtype, int limit = 3);

 private:
  uint64_t seed_;
  std::mt19937_64 engine_;
};

// Makes all values positive. A row of few numbers has no norm to be compared with: without this it may be the
// small rest of large ones.
void take_magnitudes(const Tensor& values);

// An output filled with NaN, so that an element that was not written is found.
Tensor poisoned(const Shape& shape, DType dtype);

}  // namespace ladder::testing
