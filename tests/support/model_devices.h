#pragma once
// Whole models over both devices: a suite takes the device as a parameter and calls need_device() in SetUp().
#include <gtest/gtest.h>

#include <string>

#include "step1_layers/core/device.h"

namespace ladder::testing {

inline const auto both_devices() {
  return ::testing::Values(DeviceType::cpu, DeviceType::cuda);
}

inline std::string device_word(DeviceType type) {
  return type == DeviceType::cpu ? "cpu" : "cuda";
}

// In SetUp(): skips the test, with the reason, where there is no GPU and it wants one.
inline void need_device(DeviceType type) {
  std::string reason;
  if (type == DeviceType::cuda && cuda_device_count(&reason) == 0) GTEST_SKIP() << "no GPU: " << reason;
}

}  // namespace ladder::testing
