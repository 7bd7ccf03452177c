#pragma once
// A bound on time, for tests that run where other programs may have the processors.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace ladder::testing {

// Does the work, which says how long what is bounded took, up to three times: one of them must keep the bound. What the
// program itself waits for it waits for in each of them.
template <class Work>
void expect_within(std::chrono::milliseconds bound, Work work) {
  using Duration = std::chrono::steady_clock::duration;
  Duration quickest = Duration::max();
  for (int i = 0; i < 3 && quickest >= bound && !::testing::Test::HasFailure(); ++i)
    quickest = std::min<Duration>(quickest, work());
  EXPECT_LT(std::chrono::duration<double>(quickest).count(), std::chrono::duration<double>(bound).count())
      << "seconds";
}

}  // namespace ladder::testing
