// Tasks 8.4: products of random shapes, formats and batches, on every rung of the CPU.
#include "step8_advanced/quantization/kernels/quantized_matmul.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using testing::Random;

struct Product {
  QuantizedWeight weight;
  QuantizedMatmulArgs args;
  std::vector<double> expected;
};

Product random_product(Random& random, bool few_rows) {
  Product product;
  const int64_t group = 8 * random.integer(1, 20);
  const int64_t m = few_rows ? random.integer(1, 16) : random.integer(1, 70), n = random.integer(1, 90);
  int64_t k = random.integer(1, 700);
  QuantizationArgs format;
  format.num_bits = random.one_of<int>({4, 4, 8});
  format.is_float = random.integer(0, 3) == 0;
  format.symmetric = format.is_float || random.integer(0, 1) == 1;
  format.strategy = random.one_of<ScaleStrategy>({ScaleStrategy::channel, ScaleStrategy::group});
  if (format.strategy == ScaleStrategy::group) {
    format.group_size = group;
    k = group * random.integer(1, 6);
  }
  product.weight = quantize_weight(random.normal({n, k}, DType::f32), format, "weight");
  const DType dtype = random.one_of<DType>({DType::f32, DType::bf16, DType::f16});
  product.args.x = random.normal({m, k}, dtype);
  if (random.integer(0, 1) == 1) product.args.bias = random.normal({n}, dtype);
  if (random.integer(0, 1) == 1) {
    product.args.activations =
        QuantizationArgs{.num_bits = 8, .strategy = ScaleStrategy::token, .dynamic = true};
    product.args.activations->is_float = random.integer(0, 2) == 0;
  }

  const std::vector<double> dense = testing::to_double(dequantize(product.weight));
  const std::vector<double> x = testing::to_double(product.args.x);
  const std::vector<double> bias = product.args.bias.defined() ? testing::to_double(product.args.bias)
                                                               : std::vector<double>(static_cast<size_t>(n));
  for (int64_t i = 0; i < m; ++i) {
    std::vector<float> row(x.begin() + i * k, x.begin() + (i + 1) * k);
    const double scale = round_activations(row.data(), k, product.args.activations, 1, row.data());
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias[static_cast<size_t>(j)];
      for (int64_t c = 0; c < k; ++c)
        sum += scale * row[static_cast<size_t>(c)] * dense[static_cast<size_t>(j * k + c)];
      product.expected.push_back(sum);
    }
  }
  return product;
}

std::vector<Variant<QuantizedMatmulArgs>> rungs_of_the_cpu() {
  return testing::rungs_where(quantized_matmul_variants(), [](const Variant<QuantizedMatmulArgs>& variant) {
    return variant.device == DeviceType::cpu;
  });
}

RUNG_TEST(Hidden8_4_QuantizedMatmul, RandomProducts, "quantized_matmul", rungs_of_the_cpu()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int taken = 0;
  for (int round = 0; round < 150 && !::testing::Test::HasFailure(); ++round) {
    const Product product = random_product(random, round % 2 == 0);
    QuantizedMatmulArgs args = product.args;
    args.weight = &product.weight;
    args.out =
        testing::poisoned({args.x.dim(0), product.weight.n}, round % 3 == 0 ? DType::f32 : args.x.dtype());
    if (!can_run(rung, ctx, args)) continue;
    rung.run(ctx, args);
    EXPECT_TRUE(testing::close_to(args.out, product.expected, product.weight.k))
        << args.x.str() << ", " << product.weight.n << " rows of weights, round " << round;
    ++taken;
  }
  EXPECT_GT(taken, 3);
}

}  // namespace
}  // namespace ladder
