// Bug 5.2#3: what a running prompt still needs is promised for its prompt alone, not for the answer it computes again.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

TEST(Bug5_2_3, BlocksThatACutSequenceStillNeedsAreKeptForIt) {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 12;
  config.batch.max_num_batched_tokens = 8;
  config.max_num_partial_prefills = config.max_long_partial_prefills = 2;
  config.enable_prefix_caching = false;
  config.watermark = 0;
  Harness harness(config);
  const SequenceId first = harness.add(iota_prompt(4), greedy(40))[0];
  for (int i = 0; i < 24; ++i) {
    ASSERT_TRUE(harness.submit());
    harness.collect();
  }
  harness.scheduler.preempt_last();  // 28 tokens: seven blocks, of which a step computes two
  ASSERT_TRUE(harness.submit());
  harness.collect();
  ASSERT_LT(harness.scheduler.find(first)->num_computed_tokens, 20);
  harness.add(iota_prompt(24, 100), greedy(4));  // six blocks: twelve are not enough for both
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.scheduler.stats().num_running, 1);
  harness.collect();
}

}  // namespace
}  // namespace ladder
