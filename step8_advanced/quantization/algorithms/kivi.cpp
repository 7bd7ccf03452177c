#include "step8_advanced/quantization/algorithms/kivi.h"

#include <array>

#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/core/error.h"

namespace ladder {

// >>> task 8.6.kivi: keys rounded channel by channel, values token by token
namespace {

// kKiviGroup numbers that lie `stride` apart.
void round_group(float* numbers, int64_t stride) {
  std::array<float, kKiviGroup> group;
  std::array<uint8_t, kKiviGroup / 2> codes;
  std::array<float, 2> scales;
  for (int64_t i = 0; i < kKiviGroup; ++i) group[static_cast<size_t>(i)] = numbers[i * stride];
  quantize_kv(KvCacheDType::int4, group.data(), kKiviGroup, codes.data(), scales.data());
  dequantize_kv(KvCacheDType::int4, codes.data(), scales.data(), kKiviGroup, group.data());
  for (int64_t i = 0; i < kKiviGroup; ++i) numbers[i * stride] = group[static_cast<size_t>(i)];
}

void check(const Tensor& heads, const char* what) {
  expect_dtype(heads, DType::f32, what);
  expect_shape(heads, {-1, -1, -1}, what);
  LADDER_CHECK(heads.dim(2) % kKiviGroup == 0, "{}: heads of {} numbers, expected a multiple of {}", what,
               heads.dim(2), kKiviGroup);
}

}  // namespace

void round_per_channel(const Tensor& keys) {
  check(keys, "keys");
  const int64_t row = keys.dim(1) * keys.dim(2);
  for (int64_t token = 0; token + kKiviGroup <= keys.dim(0); token += kKiviGroup)
    for (int64_t channel = 0; channel < row; ++channel)
      round_group(keys.data<float>() + token * row + channel, row);
}

void round_per_token(const Tensor& values) {
  check(values, "values");
  const int64_t row = values.dim(1) * values.dim(2), whole = values.dim(0) / kKiviGroup * kKiviGroup;
  for (int64_t i = 0; i < whole * row; i += kKiviGroup) round_group(values.data<float>() + i, 1);
}
// <<< task 8.6.kivi

}  // namespace ladder
