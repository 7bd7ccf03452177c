// Shares of a GPU's multiprocessors. On a GPU: kernels of a share's stream run on so many and on no others, results stay the same,
// and nothing is left. Everywhere: a driver without the functions is named in one line.
#ifdef LADDER_HAS_CUDA
#include <gtest/gtest.h>

#include <algorithm>

#include "step1_layers/core/device_graph.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/sm_partition_cuda.h"
#include "step1_layers/core/stream_order.h"
#include "step1_layers/linear/matmul.h"
#include "tests/support/numerics.h"
#include "tests/support/used_multiprocessors.h"

namespace ladder {
namespace {

using ladder::testing::bitwise_equal;
using ladder::testing::multiprocessor_kernel;
using ladder::testing::multiprocessors_of_blocks;
using ladder::testing::Random;
using ladder::testing::read_multiprocessors;
using ladder::testing::tell_multiprocessors;
using ladder::testing::used_multiprocessors;

class Task8_7_SmPartition : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (cuda_device_count(&reason) == 0) GTEST_SKIP() << "no GPU: " << reason;
    const GreenContextDriver driver = find_green_context_driver();
    if (driver.create == nullptr) GTEST_SKIP() << "the driver has no green contexts";
    first_ = std::make_unique<CudaContext>(0);
    second_ = std::make_unique<CudaContext>(0);
  }

  std::unique_ptr<CudaContext> first_, second_;
};

std::vector<int> shares_of(const CudaContext& whole) {
  std::vector<int> shares;
  for (int sms = 16; sms <= whole.num_multiprocessors() - 16; sms += 16) shares.push_back(sms);
  return shares;
}

TEST_F(Task8_7_SmPartition, SharesAddUpAndEachRunsOnItsOwn) {
  const auto splits = split_multiprocessors(*first_, *second_, shares_of(*first_));
  ASSERT_FALSE(splits.empty());
  EXPECT_EQ(std::ssize(used_multiprocessors(first_->op_context())), first_->num_multiprocessors());
  for (const SmSplit& split : splits) {
    EXPECT_EQ(split.first->num_multiprocessors() + split.second->num_multiprocessors(),
              first_->num_multiprocessors());
    const std::set<int> first = used_multiprocessors(split.first->op_context()),
                        second = used_multiprocessors(split.second->op_context());
    EXPECT_EQ(std::ssize(first), split.first->num_multiprocessors());
    EXPECT_EQ(std::ssize(second), split.second->num_multiprocessors());
    std::vector<int> both;
    std::ranges::set_intersection(first, second, std::back_inserter(both));
    EXPECT_TRUE(both.empty()) << both.size() << " multiprocessors belong to both";
  }
}

TEST_F(Task8_7_SmPartition, AGraphRunsWhereItWasCaptured) {
  const std::vector<int> shares{16};
  const SmSplit split = split_multiprocessors(*first_, *second_, shares).front();
  const OpContext share = split.first->op_context(), whole = first_->op_context();
  used_multiprocessors(share);  // loads the kernel
  const Tensor of_block = multiprocessors_of_blocks(share.device);
  DeviceGraph graph;
  graph.capture(share, [&] { tell_multiprocessors(share, of_block); });
  graph.replay(whole);
  device_synchronize(whole.device, whole.stream);
  EXPECT_EQ(std::ssize(read_multiprocessors(of_block)), 16);
}

TEST_F(Task8_7_SmPartition, ProductsOfAShareAreThoseOfTheWhole) {
  Random random;
  SCOPED_TRACE(random.describe());
  const OpContext whole = first_->op_context();
  Arena arena(whole.device);
  for (const int64_t rows : {1, 8, 40, 300}) {
    const Tensor x = random.exact({rows, 1024}, DType::bf16).to(whole.device),
                 weight = random.exact({1536, 1024}, DType::bf16).to(whole.device);
    const auto product = [&](OpContext ctx) {
      ctx.arena = &arena;
      const Tensor out = Tensor::zeros({rows, 1536}, DType::bf16, ctx.device);
      matmul(ctx, x, weight, {}, out);
      device_synchronize(ctx.device, ctx.stream);
      return out.to(Device{});
    };
    const Tensor expected = product(whole);
    for (const SmSplit& split : split_multiprocessors(*first_, *second_, shares_of(*first_)))
      for (const auto& side : {split.first, split.second})
        EXPECT_TRUE(bitwise_equal(product(side->op_context()), expected))
            << rows << " rows on " << side->num_multiprocessors();
  }
}

TEST_F(Task8_7_SmPartition, WorkOnTheNextShareWaitsForThatOnTheLast) {
  const auto splits = split_multiprocessors(*first_, *second_, shares_of(*first_));
  const Tensor value = Tensor::zeros({1 << 24}, DType::u8, first_->op_context().device);
  for (size_t i = 0; i + 1 < splits.size(); ++i) {
    const OpContext before = splits[i].first->op_context(), after = splits[i + 1].first->op_context();
    used_multiprocessors(before);
    for (int j = 0; j < 20; ++j) device_fill(value.raw(), value.device(), 1, value.nbytes(), before.stream);
    order_streams(before, after);
    device_fill(value.raw(), value.device(), 2, value.nbytes(), after.stream);
    device_synchronize(after.device, after.stream);
    const Tensor host = value.to(Device{});
    const auto* bytes = static_cast<const uint8_t*>(host.raw());
    EXPECT_EQ(std::count(bytes, bytes + host.nbytes(), 2), host.nbytes());
  }
}

TEST_F(Task8_7_SmPartition, AContextLeavesAnothersKernelsTheirSharedMemory) {
  const void* const kernel = multiprocessor_kernel();
  first_->allow_shared_bytes(kernel, 100 << 10);
  second_->allow_shared_bytes(kernel, 64 << 10);
  cudaFuncAttributes attributes{};
  LADDER_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  EXPECT_GE(attributes.maxDynamicSharedSizeBytes, 100 << 10);
}

// Seen with driver 580.159: 4 MiB exactly of every green context, whatever its share, do not come back when it is destroyed. That is
// all that may be missing.
TEST_F(Task8_7_SmPartition, NothingIsLeftButWhatTheDriverKeeps) {
  constexpr int64_t kKeptByDriver = int64_t{4} << 20, kSlack = int64_t{4} << 20;
  const auto free_bytes = [] { return cuda_device_info(0).free_bytes; };
  split_multiprocessors(*first_, *second_, shares_of(*first_));
  const int64_t before = free_bytes();
  int64_t num_contexts = 0;
  for (int i = 0; i < 5; ++i)
    num_contexts += 2 * std::ssize(split_multiprocessors(*first_, *second_, shares_of(*first_)));
  EXPECT_GE(free_bytes(), before - num_contexts * kKeptByDriver - kSlack);
}

TEST_F(Task8_7_SmPartition, SaysWhatCannotBe) {
  const auto message = [&](int sms, const GreenContextDriver& driver) -> std::string {
    try {
      split_multiprocessors(*first_, *second_, std::vector{sms}, driver);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  GreenContextDriver driver = find_green_context_driver();
  EXPECT_NE(message(0, driver).find("--sm-partition 0: cuda:"), std::string::npos);
  EXPECT_NE(message(first_->num_multiprocessors(), driver).find("each needs some"), std::string::npos);
  driver.create = nullptr;
  EXPECT_NE(message(16, driver).find("has no cuGreenCtxCreate"), std::string::npos);
}

TEST(Task8_7_SmPartitionDriver, WhatIsMissingIsNamed) {
  // Nothing of the driver is called before all of it is there.
  GreenContextDriver driver;
  driver.driver_version = 12020;
  try {
    expect_green_contexts(driver);
    FAIL() << "a driver without a function was taken";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "multiprocessors cannot be shared out: the driver, which serves CUDA 12.2, has no cuDeviceGetDevResource: "
        "expected one of CUDA 12.5 or later");
  }
}

}  // namespace
}  // namespace ladder
#endif
