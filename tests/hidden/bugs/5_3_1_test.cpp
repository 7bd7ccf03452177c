// Bug 5.3#1: abandon() keeps the list of preempted sequences that the runner was not told of.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

TEST(Bug5_3_1, AfterAbandonNobodyIsToldOfAPreemption) {
  Harness harness(small_config());
  harness.add(iota_prompt(5), greedy(8));
  ASSERT_TRUE(harness.submit());
  harness.collect();
  harness.scheduler.preempt_last();  // the next step would tell
  harness.scheduler.abandon();
  harness.scheduler.add(iota_prompt(5, 100), greedy(4));
  harness.schedule();
  ASSERT_FALSE(harness.output.empty());
  EXPECT_TRUE(harness.output.preempted.empty());
}

}  // namespace
}  // namespace ladder
