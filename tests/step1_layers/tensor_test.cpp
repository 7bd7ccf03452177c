// Task 1.1: tensors, shapes and element types.
#include "step1_layers/core/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Random;

Tensor counting(const Shape& shape) {
  Tensor tensor = Tensor::empty(shape, DType::i32);
  std::iota(tensor.data<int32_t>(), tensor.data<int32_t>() + tensor.numel(), 0);
  return tensor;
}

TEST(Task1_1_Shape, CountsAndComparesDimensions) {
  EXPECT_EQ(Shape({2, 3, 4}).numel(), 24);
  EXPECT_EQ(Shape().numel(), 1);
  EXPECT_EQ(Shape({2, 0, 4}).numel(), 0);
  EXPECT_EQ(Shape({2, 3}).str(), "[2, 3]");
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_FALSE(Shape({2, 3}) == Shape({3, 2}));
  EXPECT_FALSE(Shape({2, 3}) == Shape({2, 3, 1}));
  EXPECT_NO_THROW(Shape({1, 1, 1, 1, 1, 1}));
  EXPECT_THROW(Shape({1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(Shape({2, -1}), Error);
}

TEST(Task1_1_Shape, SizesThatOverflowAreErrors) {
  const int64_t big = int64_t{1} << 32;
  EXPECT_THROW(Shape({big, big}).numel(), Error);
  EXPECT_THROW(Shape({big, big, 0}).numel(), Error);
  EXPECT_EQ(Shape({big, big / 4}).numel(), int64_t{1} << 62);
  EXPECT_THROW(Tensor::empty({big, big / 4}, DType::f32), Error);     // the bytes overflow, not the elements
  EXPECT_THROW(Tensor::empty({int64_t{1} << 60}, DType::u8), Error);  // fits 63 bits, but no machine
  EXPECT_THROW(Tensor::empty({std::numeric_limits<int64_t>::max()}, DType::u8), Error);
}

TEST(Task1_1_Tensor, MemoryIsAlignedAndOwned) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8, DType::f64})
    for (int64_t count : {0, 1, 7, 100000}) {
      Tensor tensor = Tensor::zeros({count}, dtype);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 64, 0u);
      EXPECT_EQ(tensor.nbytes(), count * dtype_size(dtype));
      const char* bytes = static_cast<const char*>(tensor.raw());
      EXPECT_TRUE(std::all_of(bytes, bytes + tensor.nbytes(), [](char byte) { return byte == 0; }));
    }
  EXPECT_FALSE(Tensor().defined());
  EXPECT_TRUE(Tensor::empty({0}, DType::f32).defined());
}

TEST(Task1_1_Tensor, ViewsShareAndKeepTheirMemory) {
  Tensor view;
  {
    Tensor tensor = counting({4, 6});
    view = tensor.narrow(0, 1, 2).narrow(1, 2, 3);
    tensor.at<int32_t>({1, 2}) = -7;
  }  // the view is the last owner
  EXPECT_EQ(view.shape(), Shape({2, 3}));
  EXPECT_EQ(view.at<int32_t>({0, 0}), -7);
  EXPECT_EQ(view.at<int32_t>({1, 2}), 2 * 6 + 4);
  EXPECT_FALSE(view.is_contiguous());
  EXPECT_EQ(view.stride(0), 6);
  EXPECT_EQ(view.stride(-1), 1);
  EXPECT_EQ(view.dim(-1), 3);
}

TEST(Task1_1_Tensor, WrapKeepsItsOwnerAlive) {
  auto owner = std::make_shared<std::vector<float>>(4, 2.5f);
  std::weak_ptr<std::vector<float>> watch = owner;
  Tensor row;
  {
    Tensor tensor = Tensor::wrap(owner->data(), {2, 2}, DType::f32, {}, owner);
    owner.reset();
    row = tensor.select(0, 1);
  }
  ASSERT_FALSE(watch.expired());
  EXPECT_EQ(row.at<float>({1}), 2.5f);
  row = Tensor();
  EXPECT_TRUE(watch.expired());
}

TEST(Task1_1_Tensor, SelectAndNarrowReachEveryElement) {
  const Tensor tensor = counting({3, 4, 5});
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 4; ++j)
      for (int64_t k = 0; k < 5; ++k) {
        const int32_t expected = static_cast<int32_t>((i * 4 + j) * 5 + k);
        EXPECT_EQ(tensor.at<int32_t>({i, j, k}), expected);
        EXPECT_EQ(tensor.select(1, j).at<int32_t>({i, k}), expected);
        EXPECT_EQ(tensor.select(2, k).select(0, i).at<int32_t>({j}), expected);
        EXPECT_EQ(tensor.narrow(2, k, 1).at<int32_t>({i, j, 0}), expected);
      }
  EXPECT_EQ(tensor.rows(2).shape(), Shape({2, 4, 5}));
  EXPECT_EQ(tensor.view({12, 5}).at<int32_t>({11, 4}), 59);
  EXPECT_TRUE(tensor.narrow(0, 1, 2).is_contiguous());
  EXPECT_TRUE(tensor.narrow(1, 1, 1).select(0, 2).is_contiguous());
  EXPECT_EQ(tensor.narrow(0, 3, 0).numel(), 0);  // an empty window at the end
}

TEST(Task1_1_Tensor, AccessOutsideIsAnErrorThatSaysWhere) {
  const Tensor tensor = counting({3, 4});
  EXPECT_THROW(tensor.at<int32_t>({3, 0}), Error);
  EXPECT_THROW(tensor.at<int32_t>({0, -1}), Error);
  EXPECT_THROW(tensor.at<int32_t>({0}), Error);
  EXPECT_THROW(tensor.at<int32_t>({0, 0, 0}), Error);
  EXPECT_THROW(tensor.narrow(0, 2, 2), Error);
  EXPECT_THROW(tensor.narrow(0, -1, 1), Error);
  EXPECT_THROW(tensor.narrow(2, 0, 1), Error);
  EXPECT_THROW(tensor.narrow(0, std::numeric_limits<int64_t>::max(), 1), Error);
  EXPECT_THROW(tensor.narrow(0, 0, -1), Error);
  EXPECT_THROW(tensor.select(1, 4), Error);
  EXPECT_THROW(tensor.view({5, 3}), Error);
  EXPECT_THROW(tensor.narrow(1, 0, 2).view({6}), Error);
  try {
    tensor.data<float>();
    ADD_FAILURE() << "an i32 tensor was read as f32";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("i32[3, 4]"), HasSubstr("f32")));
  }
}

TEST(Task1_1_Tensor, CopiesFollowTheStrides) {
  const Tensor tensor = counting({4, 6});
  const Tensor window = tensor.narrow(1, 1, 3).narrow(0, 1, 2);
  const Tensor copy = window.clone();
  EXPECT_TRUE(copy.is_contiguous());
  EXPECT_EQ(copy.at<int32_t>({1, 2}), 2 * 6 + 3);
  // A column into a column: neither side's elements are adjacent.
  Tensor target = Tensor::zeros({4, 3}, DType::i32);
  target.select(1, 2).copy_from(tensor.select(1, 5));
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(target.at<int32_t>({i, 2}), i * 6 + 5);
    EXPECT_EQ(target.at<int32_t>({i, 1}), 0);
  }
  EXPECT_THROW(target.copy_from(tensor), Error);
  EXPECT_THROW(target.copy_from(Tensor::zeros({4, 3}, DType::f32)), Error);
  EXPECT_THROW(target.select(1, 0).fill_bytes(0), Error);
}

TEST(Task1_1_Tensor, ConversionFollowsTheStridesAndRounds) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor wide = random.normal({5, 9}, DType::f32);
  const Tensor window = wide.narrow(1, 2, 4);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor converted = window.to(dtype);
    EXPECT_EQ(converted.dtype(), dtype);
    EXPECT_TRUE(testing::close_to(converted, testing::to_double(window)));
  }
  EXPECT_THROW(counting({2}).to(DType::f32), Error);
}

TEST(Task1_1_Tensor, ExpectationsNameTheThingAndBothSides) {
  const Tensor tensor = Tensor::zeros({2, 3}, DType::bf16);
  EXPECT_NO_THROW(expect_shape(tensor, {-1, 3}, "x"));
  EXPECT_NO_THROW(expect_dtype(tensor, DType::bf16, "x"));
  try {
    expect_shape(tensor, {2, 4}, "the weight");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("the weight"), HasSubstr("[2, 4]"), HasSubstr("bf16[2, 3]")));
  }
  EXPECT_THROW(expect_shape(tensor, {2}, "x"), Error);
  EXPECT_THROW(expect_shape(tensor, {2, 3, 1}, "x"), Error);
  EXPECT_THROW(expect_dtype(tensor, DType::f16, "x"), Error);
}

// The value of a 16-bit pattern, from the definition of the format.
double value_of(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class T, int kExponentBits, int kMantissaBits>
void check_format() {
  for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
    T value;
    value.bits = static_cast<uint16_t>(pattern);
    const double expected = value_of(value.bits, kExponentBits, kMantissaBits);
    const float widened = static_cast<float>(value);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(widened)) << pattern;
      ASSERT_TRUE(std::isnan(static_cast<float>(T(widened)))) << pattern;
      continue;
    }
    ASSERT_EQ(static_cast<double>(widened), expected) << pattern;
    ASSERT_EQ(std::signbit(widened), std::signbit(expected)) << pattern;
    ASSERT_EQ(T(widened).bits, value.bits) << pattern;  // there and back
    // Halfway to the next pattern, and just beside it: to nearest, ties to even, past the largest to
    // infinity.
    if (std::isinf(expected)) continue;
    T next;
    next.bits = static_cast<uint16_t>(pattern + 1);
    double beyond = value_of(next.bits, kExponentBits, kMantissaBits);
    if (std::isinf(beyond))  // where the next value would be if the format went on
      beyond = std::copysign(std::ldexp(1.0, (1 << (kExponentBits - 1))), beyond);
    const float half = static_cast<float>((expected + beyond) / 2);
    ASSERT_EQ(T(half).bits, pattern % 2 ? next.bits : value.bits) << pattern;
    ASSERT_EQ(T(std::nextafter(half, widened)).bits, value.bits) << pattern;
    ASSERT_EQ(T(std::nextafter(half, half * 2)).bits, next.bits) << pattern;
  }
}

TEST(Task1_1_DType, EveryBf16PatternWidensAndRoundsBack) {
  check_format<bf16, 8, 7>();
}

TEST(Task1_1_DType, EveryF16PatternWidensAndRoundsBack) {
  check_format<f16, 5, 10>();
}

TEST(Task1_1_DType, ConversionsHoldAtTheEdges) {
  EXPECT_TRUE(std::isinf(static_cast<float>(f16(65520.0f))));
  EXPECT_EQ(static_cast<float>(f16(65519.0f)), 65504.0f);
  EXPECT_EQ(static_cast<float>(f16(1e-30f)), 0.0f);
  EXPECT_TRUE(std::signbit(static_cast<float>(f16(-1e-30f))));
  EXPECT_TRUE(std::isinf(static_cast<float>(bf16(std::numeric_limits<float>::max()))));
  // A NaN whose upper half alone would read as infinity.
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(f16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Task1_1_DType, NamesAndSizes) {
  EXPECT_EQ(dtype_name(DType::bf16), "bf16");
  EXPECT_EQ(dtype_size(DType::bf16), 2);
  EXPECT_EQ(dtype_size(DType::i64), 8);
  EXPECT_EQ(dtype_size(DType::f8_e4m3), 1);
  EXPECT_THROW(with_float_type(DType::i32, "the scores", [](auto) {}), Error);
}

}  // namespace
}  // namespace ladder
