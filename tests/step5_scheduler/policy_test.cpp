#include "step5_scheduler/policy.h"

#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

// The order in which five requests are admitted one at a time.
std::vector<SequenceId> order_of_admission(SchedulingPolicy policy) {
  SchedulerConfig config = small_config();
  config.batch.max_num_seqs = 1;
  config.policy = policy;
  Harness harness(config);
  for (const int32_t priority : {3, 0, 3, -2, 0}) {
    SamplingParams sampling = greedy(2);
    sampling.priority = priority;
    harness.add(iota_prompt(4), sampling);
  }
  std::vector<SequenceId> order;
  while (harness.submit()) {
    for (const NewSequence& added : harness.output.new_sequences) order.push_back(added.id);
    harness.collect();
  }
  return order;
}

TEST(Task5_4_Policy, FirstComeFirstServedIgnoresPriorities) {
  EXPECT_EQ(order_of_admission(SchedulingPolicy::fcfs), (std::vector<SequenceId>{0, 1, 2, 3, 4}));
}

TEST(Task5_4_Policy, PriorityServesLowerNumbersFirstThenFirstCome) {
  EXPECT_EQ(order_of_admission(SchedulingPolicy::priority), (std::vector<SequenceId>{3, 1, 4, 0, 2}));
}

TEST(Task5_4_Policy, RunningSequencesAreServedInTheOrderOfThePolicyToo) {
  SchedulerConfig config = small_config();
  config.policy = SchedulingPolicy::priority;
  Harness harness(config);
  SamplingParams sampling = greedy(5);
  sampling.priority = 1;
  harness.add(iota_prompt(4), sampling);
  ASSERT_TRUE(harness.submit());
  harness.collect();
  sampling.priority = 0;
  harness.add(iota_prompt(4, 50), sampling);
  ASSERT_TRUE(harness.submit());
  harness.collect();
  ASSERT_TRUE(harness.submit());
  ASSERT_EQ(harness.output.scheduled.size(), 2u);
  EXPECT_EQ(harness.output.scheduled[0].id, 1);
  harness.collect();
  harness.run();
}

TEST(Task5_4_Policy, NamesAreThoseOfTheCommandLine) {
  EXPECT_EQ(parse_scheduling_policy("fcfs"), SchedulingPolicy::fcfs);
  EXPECT_EQ(parse_scheduling_policy("priority"), SchedulingPolicy::priority);
  EXPECT_THROW(parse_scheduling_policy("fair"), Error);
}

}  // namespace
}  // namespace ladder
