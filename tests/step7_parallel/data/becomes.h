#pragma once
// Waiting for what another thread brings about.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace ladder::testing {

template <class Condition>
::testing::AssertionResult becomes(Condition condition) {
  using Clock = std::chrono::steady_clock;
  for (const auto begin = Clock::now(); Clock::now() - begin < std::chrono::seconds(60);) {
    if (condition()) return ::testing::AssertionSuccess();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::testing::AssertionFailure() << "not within a minute";
}

}  // namespace ladder::testing
