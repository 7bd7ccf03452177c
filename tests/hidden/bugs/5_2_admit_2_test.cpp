// Bug 5.2.admit#2: of a prompt of whole blocks the last one is not shared with a sibling that has an answer already.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

TEST(Bug5_2_admit_2, WhoComesBackSharesAllBlocksOfItsPrompt) {
  SchedulerConfig config = small_config();
  config.enable_prefix_caching = false;
  Harness harness(config);
  SamplingParams sampling = greedy(20);
  sampling.n = 2;
  const std::vector<SequenceId> ids = harness.add(iota_prompt(8), sampling);  // two blocks of four
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(harness.submit());
    harness.collect();
  }
  harness.scheduler.preempt_last();
  Sequence& back = harness.scheduler.sequence(ids[1]);
  ASSERT_EQ(back.status, SequenceStatus::preempted);
  ASSERT_GT(back.num_output_tokens(), 0);
  BlockTable shared;
  EXPECT_TRUE(harness.scheduler.find_shared_blocks(back, shared));
  EXPECT_EQ(std::ssize(shared), 2);
}

}  // namespace
}  // namespace ladder
