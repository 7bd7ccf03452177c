// Bug 5.2.admit#1: whether all of a sequence will fit is asked of its prompt; the answer so far is forgotten.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

TEST(Bug5_2_admit_1, WhoComesBackWaitsUntilItsAnswerFitsToo) {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 10;
  config.batch.max_num_batched_tokens = 8;  // a first chunk takes two blocks
  config.enable_prefix_caching = false;
  config.watermark = 0;
  Harness harness(config);
  harness.add(iota_prompt(4, 1), greedy(30));
  harness.add(iota_prompt(4, 100), greedy(30));
  harness.run();
  harness.expect_reference_outputs();
  EXPECT_EQ(harness.results[1].num_preemptions, 1);
}

}  // namespace
}  // namespace ladder
