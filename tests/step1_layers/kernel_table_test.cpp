// Task 1.4: the choice of a kernel by measurement.
#include "step1_layers/core/kernel_table.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "step1_layers/linear/matmul.h"

namespace ladder {
namespace {

OpContext hopper() {
  OpContext ctx;
  ctx.device = {DeviceType::cuda, 0};
  ctx.device_arch = 90;
  return ctx;
}

TEST(Task1_4_KernelTable, EveryMeasuredProductNamesARowOfTheTable) {
  int named = 0;
  for (const MeasuredKernel& row : kernel_table(DeviceType::cuda, 90)) {
    EXPECT_TRUE(row.n > 0 && row.k > 0 && row.rows > 0);
    EXPECT_EQ(measured_kernel(hopper(), row.op, DType::bf16, row.rows, row.n, row.k), row.kernel);
    if (row.op != "matmul") continue;
    ++named;
#ifdef LADDER_HAS_CUDA
    const auto variants = matmul_variants();
    EXPECT_TRUE(std::any_of(variants.begin(), variants.end(), [&](const auto& variant) {
      return variant.device == DeviceType::cuda && variant.name == row.kernel;
    })) << row.kernel;
#endif
  }
  EXPECT_GT(named, 0);
}

TEST(Task1_4_KernelTable, TheNearestShapeWithinFourfoldAndTheNextLargerNumberOfRowsDecide) {
  const auto table = kernel_table(DeviceType::cuda, 90);
  const auto row = std::find_if(table.begin(), table.end(), [](const MeasuredKernel& candidate) {
    return candidate.op == "matmul" && candidate.n == 4096 && candidate.k == 1024 && candidate.rows > 1;
  });
  ASSERT_NE(row, table.end());
  auto kernel = [](int64_t rows, int64_t n, int64_t k) {
    return measured_kernel(hopper(), "matmul", DType::bf16, rows, n, k);
  };
  EXPECT_EQ(kernel(row->rows - 1, 4096, 1024), kernel(row->rows, 4096, 1024));
  EXPECT_EQ(kernel(row->rows, 4096 + 64, 1024 - 64), row->kernel);
  EXPECT_EQ(kernel(row->rows, 4096, 1024 * 3 / 10), row->kernel);
  EXPECT_EQ(kernel(row->rows, 4096, 1024 / 5), "");
  EXPECT_EQ(kernel(1, 4096, 100), "");
  EXPECT_EQ(kernel(1, 100, 1024), "");
  EXPECT_EQ(kernel(int64_t{1} << 40, 4096, 1024), "");
  EXPECT_EQ(measured_kernel(hopper(), "matmul", DType::f16, row->rows, 4096, 1024), row->kernel);
  EXPECT_EQ(measured_kernel(hopper(), "matmul", DType::f32, row->rows, 4096, 1024), "");
  EXPECT_EQ(measured_kernel(hopper(), "no such operator", DType::bf16, row->rows, 4096, 1024), "");
  EXPECT_EQ(measured_kernel(OpContext{}, "matmul", DType::bf16, row->rows, 4096, 1024), "");
}

struct FakeArgs {};
constexpr Variant<FakeArgs> kFake[] = {
    {.name = "slow", .idea = ""},
    {.name = "measured", .idea = "", .batch_invariant = false},
    {.name = "last", .idea = ""},
};

TEST(Task1_4_KernelTable, TheChoiceSaysWhy) {
  OpContext ctx;
  auto choice = [&](std::string_view measured) {
    const auto chosen = choose_variant<FakeArgs>("fake", kFake, ctx, {}, measured);
    return std::string(chosen.variant->name) + ": " + std::string(chosen.why);
  };
  EXPECT_EQ(choice(""), "last: table order");
  EXPECT_EQ(choice("measured"), "measured: measured");
  EXPECT_EQ(choice("gone"), "last: table order");
  ctx.batch_invariant = true;  // what was measured may not break the promise
  EXPECT_EQ(choice("measured"), "last: table order");
  ctx.kernels["fake"] = "slow";
  EXPECT_EQ(choice("measured"), "slow: forced");
}

}  // namespace
}  // namespace ladder
