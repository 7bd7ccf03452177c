// Bug 5.2#1: the runner is told of the end tokens alone, not of stop_token_ids, where min_tokens forbids both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

TEST(Bug5_2_1, MinTokensForbidsStopTokensAndEndTokens) {
  SchedulerConfig config = small_config();
  config.eos_token_ids = {2};
  Harness harness(config);
  SamplingParams sampling = greedy(8);
  sampling.min_tokens = 3;
  sampling.stop_token_ids = {5, 6};
  harness.add(iota_prompt(4), sampling);
  ASSERT_TRUE(harness.submit());
  ASSERT_EQ(harness.output.new_sequences.size(), 1u);
  EXPECT_THAT(harness.output.new_sequences[0].sampling.all_stop_token_ids,
              ::testing::UnorderedElementsAre(2, 5, 6));
}

}  // namespace
}  // namespace ladder
