#include "tests/support/numerics.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "step1_layers/core/error.h"

namespace ladder::testing {

double row_bound(DType dtype, int64_t reduction_length) {
  switch (dtype) {
    case DType::f32:
      return reduction_length > 65536 ? 5e-5 : 1e-5;
    case DType::f16:
      return 1e-3;
    case DType::bf16:
      return 4e-3;
    default:
      fail("no numerics bound for {}", dtype_name(dtype));
  }
}

std::vector<double> to_double(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  with_float_type(tensor.dtype(), "to_double", [&](auto tag) {
    using T = decltype(tag);
    Tensor dense = tensor.clone();
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(static_cast<float>(dense.data<T>()[i]));
  });
  return values;
}

::testing::AssertionResult close_to(std::span<const double> out, std::span<const double> reference,
                                    int64_t columns, double bound, double half_step) {
  if (out.size() != reference.size() || columns <= 0 || out.size() % static_cast<size_t>(columns) != 0)
    return ::testing::AssertionFailure()
           << out.size() << " values against " << reference.size() << " in rows of " << columns;
  const int64_t rows = static_cast<int64_t>(out.size()) / columns;
  for (int64_t row = 0; row < rows; ++row) {
    double error = 0, norm = 0, largest = 0, worst = 0;
    int64_t worst_column = 0;
    for (int64_t column = 0; column < columns; ++column) {
      const auto i = static_cast<size_t>(row * columns + column);
      const double difference = std::abs(out[i] - reference[i]);
      if (!(difference <= worst)) {  // also true for NaN
        worst = difference;
        worst_column = column;
      }
      error += difference * difference;
      norm += reference[i] * reference[i];
      largest = std::max(largest, std::abs(reference[i]));
    }
    const bool row_ok =
        std::sqrt(error) <= bound * std::sqrt(norm) + half_step * std::sqrt(static_cast<double>(columns));
    const bool element_ok = worst <= 4 * bound * largest + half_step;
    if (!row_ok || !element_ok) {
      const auto i = static_cast<size_t>(row * columns + worst_column);
      return ::testing::AssertionFailure()
             << "row " << row << " of " << rows << ": relative error " << std::sqrt(error) / std::sqrt(norm)
             << ", bound " << bound << "; worst at column " << worst_column << ": " << out[i]
             << " instead of " << reference[i];
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult close_to(const Tensor& out, std::span<const double> reference,
                                    int64_t reduction_length) {
  return close_to(to_double(out), reference, out.dim(-1), row_bound(out.dtype(), reduction_length),
                  out.dtype() == DType::f16 ? 0x1p-25 : 0);
}

::testing::AssertionResult bitwise_equal(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype())
    return ::testing::AssertionFailure() << a.str() << " against " << b.str();
  Tensor left = a.clone(), right = b.clone();
  const auto* x = static_cast<const char*>(left.raw());
  const auto* y = static_cast<const char*>(right.raw());
  const int64_t size = dtype_size(a.dtype());
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (std::memcmp(x + i * size, y + i * size, static_cast<size_t>(size)) != 0)
      return ::testing::AssertionFailure() << a.str() << ": element " << i << " differs";
  }
  return ::testing::AssertionSuccess();
}

uint64_t fresh_seed() {
  ::testing::Test::RecordProperty("inputs", "random");
  if (const char* text = std::getenv("LADDER_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  return std::random_device{}();
}

Random::Random() : Random(fresh_seed()) {}

int64_t Random::integer(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(engine_);
}

double Random::uniform(double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(engine_);
}

Tensor Random::normal(const Shape& shape, DType dtype, double deviation) {
  Tensor result = Tensor::empty(shape, dtype);
  std::normal_distribution<double> distribution(0.0, deviation);
  with_float_type(dtype, "Random::normal", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < result.numel(); ++i)
      result.data<T>()[i] = T(static_cast<float>(distribution(engine_)));
  });
  return result;
}

Tensor Random::exact(const Shape& shape, DType dtype, int limit) {
  Tensor result = Tensor::empty(shape, dtype);
  with_float_type(dtype, "Random::exact", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < result.numel(); ++i) {
      const int64_t value = integer(0, 3) == 0 ? integer(-limit, limit) : 0;
      result.data<T>()[i] = T(static_cast<float>(value));
    }
  });
  return result;
}

void take_magnitudes(const Tensor& values) {
  with_float_type(values.dtype(), "take_magnitudes", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < values.numel(); ++i)
      values.data<T>()[i] = T(std::abs(static_cast<float>(values.data<T>()[i])));
  });
}

Tensor poisoned(const Shape& shape, DType dtype) {
  Tensor result = Tensor::empty(shape, dtype);
  result.fill_bytes(0xff);
  return result;
}

}  // namespace ladder::testing
