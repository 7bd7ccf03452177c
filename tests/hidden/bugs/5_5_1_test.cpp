// Bug 5.5#1: abandon() keeps the list of ended sequences that the runner was not told of.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

TEST(Bug5_5_1, AfterAbandonNothingOfBeforeIsTold) {
  Harness harness(small_config());
  harness.add(iota_prompt(5), greedy(1));
  ASSERT_TRUE(harness.submit());
  harness.collect();  // ends it; the next step would tell
  harness.scheduler.abandon();
  harness.scheduler.add(iota_prompt(5, 100), greedy(4));
  harness.schedule();
  ASSERT_FALSE(harness.output.empty());
  EXPECT_TRUE(harness.output.finished.empty());
}

}  // namespace
}  // namespace ladder
