#include "tests/emulator/lanes.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace {

TEST(EmulatorLanes, GetWhatTheProgrammingGuideSays) {
  const auto results = exchange_lanes();
  ASSERT_STREQ(cudaGetErrorString(cudaGetLastError()), "an error");  // which is no report
  for (int lane = 0; lane < 32; ++lane) {
    SCOPED_TRACE(lane);
    int at = 0;
    const auto got = [&] { return results[static_cast<size_t>(at++)][static_cast<size_t>(lane)]; };
    EXPECT_EQ(got(), 105);
    EXPECT_EQ(got(), 100 + lane / 8 * 8 + 1);
    EXPECT_EQ(got(), 100 + (lane ^ 3));
    EXPECT_EQ(got(), lane < 30 ? 102 + lane : 100 + lane);
    EXPECT_EQ(got(), lane % 16 == 0 ? 100 + lane : 99 + lane);
    EXPECT_EQ(static_cast<unsigned>(got()), 0xaaaaaaaau);
    EXPECT_EQ(got(), 1);
    EXPECT_EQ(got(), 0);
    EXPECT_EQ(static_cast<unsigned>(got()), 0x11111111u << lane % 4);
    EXPECT_EQ(got(), 31 * 32 / 2);
    EXPECT_EQ(got(), -16);
    EXPECT_EQ(got(), 31);
    EXPECT_EQ(got(), lane < 16 ? 15 * 16 / 2 : 16);
  }
}

TEST(EmulatorLanes, ABlockCountsAtItsBarriers) {
  EXPECT_EQ(count_block(), (std::vector<int>{11, 1, 0, 63 * 64 / 2, 63 * 64 / 2, 10}));
}

TEST(EmulatorLanes, OnlyKernelsTouchTheDevicesMemory) {
  EXPECT_DEATH(host_reads_the_device(), "lanes.cu:.*: the host reads memory of the device");
}

}  // namespace
