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

TEST(Task5_2_Policy, FirstComeFirstServedIgnoresPriorities) {
  EXPECT_EQ(order_of_admission(SchedulingPolicy::fcfs), (std::vector<SequenceId>{0, 1, 2, 3, 4}));
}

TEST(Task5_2_Policy, PriorityServesLowerNumbersFirstThenFirstCome) {
  EXPECT_EQ(order_of_admission(SchedulingPolicy::priority), (std::vector<SequenceId>{3, 1, 4, 0, 2}));
}

TEST(Task5_2_Policy, RunningSequencesAreServedInTheOrderOfThePolicyToo) {
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

// Sequences with arrival, priority and number of tokens.
std::unique_ptr<Sequence> sequence_of(int64_t arrival, int32_t priority, int64_t num_tokens = 1) {
  SamplingParams sampling = greedy(8);
  sampling.priority = priority;
  return std::move(make_sequences(iota_prompt(num_tokens), sampling, arrival)[0]);
}

TEST(Task5_4_Policy, OneComparisonDecidesAndTwoAreNeverEqual) {
  const auto early = sequence_of(1, 3), late = sequence_of(2, 0), latest = sequence_of(3, 0);
  const RunsBefore fcfs{SchedulingPolicy::fcfs}, priority{SchedulingPolicy::priority};
  EXPECT_TRUE(fcfs(early.get(), late.get())) << "first come, first served";
  EXPECT_FALSE(fcfs(late.get(), early.get()));
  EXPECT_TRUE(priority(late.get(), early.get())) << "the lower number runs earlier";
  EXPECT_FALSE(priority(early.get(), late.get()));
  EXPECT_TRUE(priority(late.get(), latest.get())) << "of equal priority the one that came first";
  EXPECT_FALSE(priority(latest.get(), late.get()));
  EXPECT_FALSE(priority(late.get(), late.get()));
}

TEST(Task5_4_WaitingQueue, LooksLikeOneQueueInTheOrderOfThePolicy) {
  WaitingQueue queue(SchedulingPolicy::priority, 10);
  const auto a = sequence_of(1, 0, 20), b = sequence_of(2, 0, 5), c = sequence_of(3, 0, 11),
             d = sequence_of(4, -1, 10);
  for (const auto* sequence : {&c, &b, &d, &a}) queue.insert(sequence->get());
  EXPECT_EQ(queue.size(), 4);
  EXPECT_EQ(queue.next(), d.get());
  EXPECT_EQ(queue.next(d.get()), a.get());
  EXPECT_EQ(queue.next(a.get()), b.get());
  EXPECT_EQ(queue.next(b.get()), c.get());
  EXPECT_EQ(queue.next(c.get()), nullptr);
  EXPECT_EQ(queue.next(d.get(), false), b.get()) << "a and c have more than 10 tokens";
  EXPECT_EQ(queue.next(b.get(), false), nullptr);
  queue.erase(d.get());
  EXPECT_EQ(queue.next(d.get()), a.get()) << "after one that has left";
}

TEST(Task5_4_WaitingQueue, ErasesASequenceThatHasGrownLongSinceItWasInserted) {
  WaitingQueue queue(SchedulingPolicy::fcfs, 10);
  const auto sequence = sequence_of(1, 0, 10);
  queue.insert(sequence.get());
  append_token(*sequence, 5, {});
  queue.erase(sequence.get());
  EXPECT_TRUE(queue.empty());
  queue.erase(sequence.get());  // not there: nothing
}

TEST(Task5_4_Policy, NamesAreThoseOfTheCommandLine) {
  EXPECT_EQ(parse_scheduling_policy("fcfs"), SchedulingPolicy::fcfs);
  EXPECT_EQ(parse_scheduling_policy("priority"), SchedulingPolicy::priority);
  EXPECT_THROW(parse_scheduling_policy("fair"), Error);
}

}  // namespace
}  // namespace ladder
