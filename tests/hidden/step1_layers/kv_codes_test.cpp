// Task 8.6: random heads to codes and back.
#include "step1_layers/attention/kv_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::Random;

struct Kept {
  std::vector<uint8_t> codes;
  float scales[kKvScales] = {};
  std::vector<float> x;  // what is read back
};

Kept kept(KvCacheDType kept_as, const std::vector<float>& x) {
  const auto dim = static_cast<int64_t>(x.size());
  Kept result;
  result.codes.assign(static_cast<size_t>(kv_code_bytes(kept_as, dim)) + 3, 0xa5);
  result.x.assign(x.size() + 1, -77.0f);
  quantize_kv(kept_as, x.data(), dim, result.codes.data(), result.scales);
  dequantize_kv(kept_as, result.codes.data(), result.scales, dim, result.x.data());
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(result.codes[result.codes.size() - i], 0xa5) << "behind the codes";
  EXPECT_EQ(result.x.back(), -77.0f) << "behind the numbers";
  result.x.pop_back();
  return result;
}

TEST(Hidden8_6_KvCodes, EachNumberComesBackToWithinHalfAStep) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 3000 && !HasFailure(); ++round) {
    std::vector<float> x(static_cast<size_t>(random.integer(1, 200)));
    const double size = std::exp2(random.uniform(-30, 30)), middle = random.one_of<double>({0, 0, 3, -3});
    float low = INFINITY, high = -INFINITY;
    for (float& number : x) {
      number = static_cast<float>(size * (middle + random.uniform(-1, 1)));
      low = std::min(low, number);
      high = std::max(high, number);
    }
    const double largest = std::max<double>(std::fabs(low), std::fabs(high));
    const Kept fp8 = kept(KvCacheDType::fp8, x), int8 = kept(KvCacheDType::int8, x),
               int4 = kept(KvCacheDType::int4, x);
    EXPECT_NEAR(fp8.scales[0], largest / 448, 1e-6 * largest);
    EXPECT_NEAR(int8.scales[0], largest / 127, 1e-6 * largest);
    EXPECT_NEAR(int4.scales[0], (double{high} - low) / 15, 1e-6 * largest);
    EXPECT_EQ(int4.scales[1], low);
    for (size_t i = 0; i < x.size(); ++i) {
      const double rounding = 1e-5 * largest;
      // E4M3 has four bits of a number of 2^-6 and more, and steps of 2^-9 below.
      EXPECT_NEAR(fp8.x[i], x[i], std::max(std::fabs(x[i]) / 16.0, largest / 448 * 0x1p-10) + rounding);
      EXPECT_NEAR(int8.x[i], x[i], largest / 127 / 2 + rounding);
      EXPECT_NEAR(int4.x[i], x[i], (double{high} - low) / 15 / 2 + rounding);
      if (int4.scales[0] > 0)
        EXPECT_EQ(int4.codes[i / 2] >> (i % 2 * 4) & 15, std::lround((int4.x[i] - low) / int4.scales[0]));
      EXPECT_EQ(static_cast<int8_t>(int8.codes[i]), std::lround(int8.x[i] / int8.scales[0]));
    }
  }
}

TEST(Hidden8_6_KvCodes, OfEqualNumbersAndOfSuchThatAreNone) {
  Random random;
  SCOPED_TRACE(random.describe());
  constexpr float kHalf = std::numeric_limits<float>::max() / 2;
  for (const KvCacheDType kept_as : {KvCacheDType::fp8, KvCacheDType::int8, KvCacheDType::int4})
    for (int64_t dim : {1, 2, 7, 64}) {
      const auto size = static_cast<size_t>(dim);
      EXPECT_EQ(kept(kept_as, std::vector<float>(size, 0.0f)).x, std::vector<float>(size, 0.0f));
      const auto number = static_cast<float>(random.uniform(-9, 9));
      for (const float x : kept(kept_as, std::vector<float>(size, number)).x)
        EXPECT_NEAR(x, number, 1e-5 * std::fabs(number));
      std::vector<float> bad(size, 1.0f);
      bad[static_cast<size_t>(random.integer(0, dim - 1))] = random.one_of<float>({NAN, INFINITY, -INFINITY});
      for (const float x : kept(kept_as, bad).x) {
        EXPECT_TRUE(std::isfinite(x));
        EXPECT_LE(std::fabs(x), kHalf * 1.001f);
      }
    }
}

}  // namespace
}  // namespace ladder
