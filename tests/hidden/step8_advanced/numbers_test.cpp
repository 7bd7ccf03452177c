// Tasks 8.1: the small floats, grids, words and weights of random numbers, against what their definitions say of them one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "step1_layers/core/small_floats.h"
#include "step8_advanced/quantization/numbers/packing.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::Random;

// The value of a float of `exponent` and `mantissa` bits, from its fields.
double value_of_bits(int bits, int exponent_bits, int mantissa_bits, int bias) {
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

// The nearest of the values of codes [0, count), which grow; of two as near the even code.
int nearest_of(double x, int count, const std::function<double(int)>& value) {
  int best = 0;
  for (int code = 1; code < count; ++code) {
    const double distance = std::fabs(value(code) - x), least = std::fabs(value(best) - x);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(Hidden8_1_SmallFloats, RandomNumbersBecomeTheNearest) {
  Random random;
  SCOPED_TRACE(random.describe());
  const auto e4m3 = [](int code) { return value_of_bits(code, 4, 3, 7); };
  const auto e2m1 = [](int code) { return value_of_bits(code, 2, 1, 1); };
  for (int i = 0; i < 20000 && !HasFailure(); ++i) {
    const int mode = static_cast<int>(random.integer(0, 2));
    float x = static_cast<float>(std::exp2(random.uniform(-12, 10)));
    if (mode == 1)
      x = static_cast<float>(random.integer(0, 4000)) * 0x1p-11f;  // many lie in the middle of two
    if (mode == 2) x = static_cast<float>(random.integer(0, 600));
    const int sign = static_cast<int>(random.integer(0, 1));
    const float with_sign = sign == 1 ? -x : x;
    EXPECT_EQ(float_to_e4m3(with_sign), nearest_of(x, 0x7f, e4m3) | sign << 7) << with_sign;
    EXPECT_EQ(float_to_e2m1(with_sign), nearest_of(x, 8, e2m1) | sign << 3) << with_sign;
  }
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(code)), static_cast<float>(std::ldexp(1.0, code - 127)));
}

QuantizationArgs random_integers(Random& random) {
  QuantizationArgs args;
  args.num_bits = static_cast<int>(random.integer(2, 8));
  args.symmetric = random.integer(0, 1) == 1;
  return args;
}

TEST(Hidden8_1_Grid, NoCodeIsNearerThanTheOneThatIsChosen) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 2000 && !HasFailure(); ++round) {
    const QuantizationArgs args = random_integers(random);
    std::vector<float> numbers(static_cast<size_t>(random.integer(1, 40)));
    const double size = std::exp2(random.uniform(-20, 20)), middle = random.uniform(-2, 2);
    double low = 0, high = 0;
    for (float& number : numbers) {
      number = static_cast<float>(size * (middle + random.uniform(-1, 1)));
      low = std::min<double>(low, number);
      high = std::max<double>(high, number);
    }
    const Grid grid = make_grid(numbers, args);
    const double codes = std::exp2(args.num_bits) - 1;
    const double scale = args.symmetric ? std::max(high, -low) / (codes / 2) : (high - low) / codes;
    EXPECT_NEAR(grid.scale, scale, 1e-6 * scale);
    EXPECT_EQ(round_to_grid(0.0f, grid, args), 0.0f);
    EXPECT_EQ(grid.zero, std::nearbyint(grid.zero));
    if (args.symmetric) {
      EXPECT_EQ(grid.zero, 0.0f);
    }
    for (const float number : numbers) {
      const float code = nearest_code(number, grid, args);
      ASSERT_GE(code, args.min_code());
      ASSERT_LE(code, args.max_code());
      EXPECT_EQ(code, std::nearbyint(code));
      const double distance = std::fabs((double{code} - grid.zero) * grid.scale - number);
      for (int other = args.min_code(); other <= args.max_code(); ++other)
        EXPECT_LE(distance, std::fabs((other - double{grid.zero}) * grid.scale - number) + 1e-5 * grid.scale);
    }
  }
}

TEST(Hidden8_1_Grid, TiesGoToTheEvenCode) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 500; ++round) {
    QuantizationArgs args = random_integers(random);
    const Grid grid{
        .scale = std::exp2(static_cast<float>(random.integer(-9, 9))),
        .zero = args.symmetric ? 0.0f : static_cast<float>(random.integer(args.min_code(), args.max_code()))};
    const auto code = static_cast<float>(random.integer(args.min_code(), args.max_code() - 1));
    const float tie = (code + 0.5f - grid.zero) * grid.scale;
    EXPECT_EQ(std::fmod(nearest_code(tie, grid, args), 2.0f), 0.0f) << tie << " of " << grid.scale;
  }
}

Tensor random_codes(Random& random, int64_t rows, int64_t columns, int bits) {
  const Tensor codes = Tensor::empty({rows, columns}, DType::u8);
  for (int64_t i = 0; i < codes.numel(); ++i)
    codes.data<uint8_t>()[i] = static_cast<uint8_t>(random.integer(0, (1 << bits) - 1));
  return codes;
}

// Bits [begin, begin + count) of words that lie `stride` apart.
int bits_of(const Tensor& words, int64_t first, int64_t stride, int64_t begin, int count) {
  int code = 0;
  for (int bit = 0; bit < count; ++bit) {
    const auto word = static_cast<uint32_t>(words.data<int32_t>()[first + (begin + bit) / 32 * stride]);
    code |= static_cast<int>(word >> (begin + bit) % 32 & 1) << bit;
  }
  return code;
}

TEST(Hidden8_1_Pack, EveryCodeIsWhereItsFormatPutsIt) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    const int bits = static_cast<int>(random.integer(2, 8));
    const int64_t rows = random.integer(1, 12), count = random.integer(1, 200);
    const Tensor codes = random_codes(random, rows, count, bits);
    const Tensor words = pack_rows(codes, bits);
    ASSERT_EQ(words.shape(), Shape({rows, (count * bits + 31) / 32}));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(bits_of(words, row * words.dim(1), 1, i * bits, bits),
                  codes.data<uint8_t>()[row * count + i]);
    EXPECT_TRUE(testing::bitwise_equal(unpack_rows(words, bits, count, "codes"), codes));

    const Tensor columns = pack_columns(codes, bits);  // `rows` codes below each other
    ASSERT_EQ(columns.shape(), Shape({(rows * bits + 31) / 32, count}));
    for (int64_t column = 0; column < count; ++column)
      for (int64_t i = 0; i < rows; ++i)
        ASSERT_EQ(bits_of(columns, column, count, i * bits, bits), codes.data<uint8_t>()[i * count + column]);
    EXPECT_TRUE(testing::bitwise_equal(unpack_columns(columns, bits, rows, "codes"), codes));
  }
}

TEST(Hidden8_1_Pack, GptqsWordsAreTransposedAndItsZerosOneLess) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 100 && !HasFailure(); ++round) {
    const int bits = random.one_of<int>({2, 3, 4, 8});
    const int64_t n = 32 * random.integer(1, 3), k = 32 * random.integer(1, 4), groups = random.integer(1, 5);
    const Tensor codes = random_codes(random, n, k, bits);
    const Tensor qweight = pack_gptq(codes, bits);
    ASSERT_EQ(qweight.shape(), Shape({k * bits / 32, n}));
    for (int64_t row = 0; row < n; ++row)
      for (int64_t i = 0; i < k; ++i)
        ASSERT_EQ(bits_of(qweight, row, n, i * bits, bits), codes.data<uint8_t>()[row * k + i]);
    EXPECT_TRUE(testing::bitwise_equal(unpack_gptq(qweight, bits, n, k, "qweight"), codes));
    for (const bool one_less : {false, true}) {
      const Tensor zeros = random_codes(random, n, groups, bits);
      const Tensor qzeros = pack_gptq_zeros(zeros, bits, one_less);
      ASSERT_EQ(qzeros.shape(), Shape({groups, n * bits / 32}));
      for (int64_t group = 0; group < groups; ++group)
        for (int64_t row = 0; row < n; ++row) {
          const int zero = zeros.data<uint8_t>()[row * groups + group];
          const int stored = one_less ? (zero + (1 << bits) - 1) % (1 << bits) : zero;
          ASSERT_EQ(bits_of(qzeros, group * qzeros.dim(1), 1, row * bits, bits), stored);
        }
      EXPECT_TRUE(
          testing::bitwise_equal(unpack_gptq_zeros(qzeros, bits, one_less, n, groups, "qzeros"), zeros));
    }
  }
}

TEST(Hidden8_1_Pack, AwqsNibblesAreInItsOrder) {
  Random random;
  SCOPED_TRACE(random.describe());
  constexpr int kColumnOfNibble[] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (int round = 0; round < 100 && !HasFailure(); ++round) {
    const int64_t n = 8 * random.integer(1, 9), rows = random.integer(1, 70);
    const Tensor codes = random_codes(random, n, rows, 4);
    const Tensor words = pack_awq(codes);
    ASSERT_EQ(words.shape(), Shape({rows, n / 8}));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t word = 0; word < n / 8; ++word)
        for (int nibble = 0; nibble < 8; ++nibble)
          ASSERT_EQ(bits_of(words, row * n / 8 + word, 1, 4 * nibble, 4),
                    codes.data<uint8_t>()[(8 * word + kColumnOfNibble[nibble]) * rows + row]);
    EXPECT_TRUE(testing::bitwise_equal(unpack_awq(words, n, rows, "words"), codes));
    const Tensor nibbles = pack_nibbles(codes);
    for (int64_t row = 0; row < n; ++row)
      for (int64_t i = 0; i < rows; ++i)
        ASSERT_EQ(nibbles.data<uint8_t>()[row * nibbles.dim(1) + i / 2] >> (i % 2 * 4) & 15,
                  codes.data<uint8_t>()[row * rows + i]);
    EXPECT_TRUE(testing::bitwise_equal(unpack_nibbles(nibbles, rows, "nibbles"), codes));
  }
}

double power_error(const std::vector<float>& numbers, const Grid& grid, const QuantizationArgs& args) {
  double error = 0;
  for (const float number : numbers)
    error += std::pow(std::fabs(double{round_to_grid(number, grid, args)} - number), 2.4);
  return error;
}

TEST(Hidden8_1_Rtn, EachNumberIsRoundedToTheGridOfItsNeighbours) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    QuantizationArgs args = random_integers(random);
    args.strategy = random.one_of<ScaleStrategy>(
        {ScaleStrategy::tensor, ScaleStrategy::channel, ScaleStrategy::group, ScaleStrategy::block});
    const int64_t n = random.integer(1, 20);
    int64_t k = random.integer(1, 90), rows = 1, columns = k;
    if (args.strategy == ScaleStrategy::tensor) rows = n;
    if (args.strategy == ScaleStrategy::group) {
      args.group_size = columns = random.integer(1, 24);
      k = columns * random.integer(1, 5);
    }
    if (args.strategy == ScaleStrategy::block) {
      args.block_rows = rows = random.integer(1, 9);
      args.block_columns = columns = random.integer(1, 30);
    }
    const bool clipped = random.integer(0, 1) == 1;
    const Tensor weight = random.normal({n, k}, DType::f32);
    const WeightGrids grids = clipped ? make_clipped_weight_grids(weight, args, "weight")
                                      : make_weight_grids(weight, args, "weight");
    const Tensor rounded = dequantize(quantize_weight(weight, args, grids));
    for (int64_t row = 0; row < n; ++row)
      for (int64_t column = 0; column < k; ++column) {
        std::vector<float> numbers;  // that share the grid
        for (int64_t r = row / rows * rows; r < std::min(row / rows * rows + rows, n); ++r)
          for (int64_t c = column / columns * columns; c < std::min(column / columns * columns + columns, k);
               ++c)
            numbers.push_back(weight.data<float>()[r * k + c]);
        const Grid grid = grids.at(row, column), whole = make_grid(numbers, args);
        if (!clipped) {
          EXPECT_EQ(grid.scale, whole.scale);
          EXPECT_EQ(grid.zero, whole.zero);
        } else if (row % rows == 0 && column % columns == 0) {
          const double error = power_error(numbers, grid, args);
          float low = 0, high = 0;
          for (const float number : numbers) low = std::min(low, number), high = std::max(high, number);
          for (int i = 0; i < 80; ++i) {
            const float share = 1.0f - static_cast<float>(i) / 100;
            EXPECT_LE(error, power_error(numbers, make_grid(share * low, share * high, args), args)) << share;
          }
        }
        const int64_t at = row * k + column;
        EXPECT_EQ(rounded.data<float>()[at], round_to_grid(weight.data<float>()[at], grid, args));
      }
  }
}

}  // namespace
}  // namespace ladder
