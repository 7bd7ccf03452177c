// Blocks that stay free when a sequence is admitted, and what they save.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

SchedulerConfig cramped_config(double watermark) {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 40;
  config.enable_prefix_caching = false;
  config.watermark = watermark;
  return config;
}

TEST(Task5_2_Watermark, ANewcomerLeavesItFreeWhileOthersRun) {
  Harness harness(cramped_config(0.25));  // 10 blocks
  harness.add(iota_prompt(40), greedy(4));
  harness.add(iota_prompt(84, 100), greedy(4));  // 21 blocks: with the first 10, 9 would be left
  harness.add(iota_prompt(4, 300), greedy(4));
  ASSERT_TRUE(harness.submit());
  EXPECT_EQ(harness.scheduler.stats().num_running, 1) << "and none overtakes the second";
  harness.collect();
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task5_2_Watermark, ARequestThatFitsAloneRunsWhateverItIs) {
  for (const double watermark : {0.0, 0.5, 0.99}) {
    Harness harness(cramped_config(watermark));
    for (int i = 0; i < 3; ++i) harness.add(iota_prompt(120, 200 * i), greedy(41));  // the whole cache
    harness.run();
    harness.expect_reference_outputs();
  }
}

// Rows computed for each that is needed: without headroom a sequence that comes back takes the last block and
// is soon preempted again.
TEST(Task5_2_Watermark, SavesComputingThingsTwice) {
  const auto rows = [](double watermark) {
    SchedulerConfig config = cramped_config(watermark);
    config.batch.num_kv_blocks = 100;
    config.batch.max_num_seqs = 32;
    Harness harness(config);
    for (int i = 0; i < 40; ++i) harness.add(iota_prompt(10 + i, 20 * i), greedy(60 + i));
    harness.run();
    harness.expect_reference_outputs();
    return harness.executor.num_rows();
  };
  int64_t needed = 0;
  for (int i = 0; i < 40; ++i) needed += 10 + i + 60 + i - 1;
  const int64_t without = rows(0), with = rows(0.1);
  EXPECT_GT(without, needed * 5 / 4) << "the workload does not show what it should";
  EXPECT_LT(with - needed, (without - needed) * 2 / 3);
}

}  // namespace
}  // namespace ladder
