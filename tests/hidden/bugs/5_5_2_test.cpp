// Bug 5.5#2: blocks of an ended sequence that others share count as idle.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

TEST(Bug5_5_2, BlocksThatAnotherSequenceSharesAreLive) {
  Harness harness(small_config(), 1);
  SamplingParams sampling = greedy(20);
  sampling.n = 2;
  const std::vector<SequenceId> ids = harness.add(iota_prompt(8), sampling);
  ASSERT_TRUE(harness.submit());
  harness.collect();
  ASSERT_TRUE(harness.submit());
  ASSERT_EQ(harness.output.scheduled.size(), 2u);
  const int64_t before = harness.scheduler.find(ids[0])->num_computed_tokens;
  harness.abort(ids[1]);  // its blocks wait for the step in flight; two of them are also the other's
  EXPECT_EQ(harness.scheduler.stats().num_live_tokens, before);
  harness.collect();
  harness.run();
}

}  // namespace
}  // namespace ladder
