// Task 5.3 by itself: room for a running sequence, from the end of the order.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

using Sequences = std::vector<Sequence*>;

// A cache of `num_blocks` blocks of 4 tokens, in which sequences run with their prompts computed.
class Running {
 public:
  explicit Running(int64_t num_blocks, SchedulingPolicy policy = SchedulingPolicy::fcfs)
      : scheduler(config_of(num_blocks, policy)) {}

  Sequence& add(int64_t num_prompt_tokens, int32_t priority = 0) {
    SamplingParams sampling = greedy(4);
    sampling.priority = priority;
    Sequence& sequence = scheduler.sequence(scheduler.add(iota_prompt(num_prompt_tokens), sampling)[0]);
    scheduler.waiting_.erase(&sequence);
    EXPECT_TRUE(scheduler.block_manager().append(sequence.block_table, num_prompt_tokens));
    scheduler.start_running(sequence);
    sequence.num_computed_tokens = num_prompt_tokens;
    return sequence;
  }

  OpenScheduler scheduler;

 private:
  static SchedulerConfig config_of(int64_t num_blocks, SchedulingPolicy policy) {
    SchedulerConfig config = small_config();
    config.batch.num_kv_blocks = num_blocks;
    config.policy = policy;
    return config;
  }
};

TEST(Task5_3_AllocateSlots, GivesSlotsForATotalAndNotForAnAddition) {
  Running run(8);
  Sequence& a = run.add(8);
  EXPECT_TRUE(run.scheduler.allocate_slots(a, 9));
  EXPECT_EQ(a.block_table.size(), 3u) << "9 slots in blocks of 4";
  EXPECT_TRUE(run.scheduler.allocate_slots(a, 12));
  EXPECT_EQ(a.block_table.size(), 3u) << "12 slots are there already";
  EXPECT_TRUE(run.scheduler.allocate_slots(a, 5));
  EXPECT_EQ(a.block_table.size(), 3u) << "a table is never shortened";
  EXPECT_EQ(run.scheduler.stats().num_preemptions, 0);
}

TEST(Task5_3_AllocateSlots, TheLastInTheOrderGivesWay) {
  Running run(5);
  Sequence& a = run.add(8);
  Sequence& b = run.add(8);
  b.output_token_ids = {500};
  b.num_computed_tokens = 9;
  b.prefix.num_indexed_blocks = 2;
  b.prefix.last_entry = 7;
  EXPECT_TRUE(run.scheduler.allocate_slots(a, 13)) << "4 blocks: its 2, the free one, one of b's";
  EXPECT_EQ(a.block_table.size(), 4u);
  EXPECT_EQ(run.scheduler.running_, (Sequences{&a}));
  EXPECT_EQ(run.scheduler.waiting_.next(), &b);
  EXPECT_EQ(b.status, SequenceStatus::preempted);
  EXPECT_TRUE(b.block_table.empty());
  EXPECT_EQ(b.num_computed_tokens, 0) << "its K and V are gone";
  EXPECT_EQ(b.output_token_ids, (std::vector<int32_t>{500})) << "its tokens are not";
  EXPECT_EQ(b.prefix.num_indexed_blocks, 0) << "of a table that it has given up";
  EXPECT_EQ(b.num_preemptions, 1);
  EXPECT_EQ(run.scheduler.stats().num_preemptions, 1);
  EXPECT_EQ(a.num_preemptions, 0);
  expect_books_balance(run.scheduler);
}

TEST(Task5_3_AllocateSlots, AsManyGiveWayAsItTakesAndNoMore) {
  Running run(8);
  Sequence& a = run.add(8);
  Sequence& b = run.add(8);
  Sequence& c = run.add(8);
  Sequence& d = run.add(8);
  EXPECT_TRUE(run.scheduler.allocate_slots(a, 17)) << "3 blocks more, and each of the others has 2";
  EXPECT_EQ(run.scheduler.running_, (Sequences{&a, &b}));
  EXPECT_EQ(run.scheduler.waiting_.next(), &c) << "the order puts the earlier one first";
  EXPECT_EQ(run.scheduler.waiting_.next(&c), &d);
  EXPECT_EQ(run.scheduler.blocks().num_free_blocks(), 1);
  expect_books_balance(run.scheduler);
}

TEST(Task5_3_AllocateSlots, ASequenceThatIsTheLastItselfGivesWay) {
  Running run(4);
  Sequence& a = run.add(8);
  Sequence& b = run.add(8);
  EXPECT_FALSE(run.scheduler.allocate_slots(b, 9));
  EXPECT_EQ(run.scheduler.running_, (Sequences{&a}));
  EXPECT_EQ(b.status, SequenceStatus::preempted);
  EXPECT_TRUE(b.block_table.empty());
  EXPECT_EQ(a.block_table.size(), 2u);
  expect_books_balance(run.scheduler);
}

TEST(Task5_3_AllocateSlots, UnderPriorityTheLeastImportantGivesWay) {
  Running run(4, SchedulingPolicy::priority);
  Sequence& unimportant = run.add(8, 5);
  Sequence& important = run.add(8, -1);
  EXPECT_TRUE(run.scheduler.allocate_slots(important, 9));
  EXPECT_EQ(run.scheduler.running_, (Sequences{&important}));
  EXPECT_EQ(unimportant.status, SequenceStatus::preempted);
}

// Both sequences are computed by a step that is in flight: what b gives up is still being written.
TEST(Task5_3_AllocateSlots, NobodyElseGivesWayWhileBlocksAreComingBack) {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 6;
  OpenScheduler scheduler(config);
  for (int i = 0; i < 3; ++i) scheduler.add(iota_prompt(8, 100 * i), greedy(4));
  SchedulerOutput output;
  scheduler.schedule_simply(output);
  Sequence &a = scheduler.sequence(0), &b = scheduler.sequence(1), &c = scheduler.sequence(2);
  ASSERT_EQ(scheduler.running_, (Sequences{&a, &b, &c}));

  EXPECT_FALSE(scheduler.allocate_slots(a, 9)) << "c's blocks are not free yet";
  EXPECT_EQ(a.block_table.size(), 2u);
  EXPECT_EQ(scheduler.running_, (Sequences{&a, &b})) << "b need not go: two blocks are on their way";
  EXPECT_TRUE(c.block_table.empty());
  EXPECT_EQ(c.num_placeholders, 1) << "its token comes with the step in flight";
  EXPECT_EQ(scheduler.blocks().num_free_blocks(), 0) << "not before the step is collected";
  ASSERT_EQ(scheduler.deferred_.size(), 1u);
  EXPECT_EQ(scheduler.deferred_[0].step, 0);
  EXPECT_EQ(scheduler.deferred_[0].block_table.size(), 2u);
  EXPECT_FALSE(scheduler.allocate_slots(b, 9));
  EXPECT_EQ(scheduler.stats().num_preemptions, 1);
  expect_books_balance(scheduler);
}

TEST(Task5_3_ReleaseBlocks, WaitForTheLatestStepThatComputesTheSequence) {
  OpenScheduler scheduler(small_config());
  scheduler.add(iota_prompt(6), greedy(4));
  scheduler.add(iota_prompt(6, 100), greedy(1));
  SchedulerOutput output;
  scheduler.schedule_simply(output);
  scheduler.schedule_simply(output);
  Sequence &both = scheduler.sequence(0), &first_only = scheduler.sequence(1);
  ASSERT_EQ(both.num_steps_in_flight, 2);
  ASSERT_EQ(first_only.num_steps_in_flight, 1);
  scheduler.release_blocks(both);
  scheduler.release_blocks(first_only);
  ASSERT_EQ(scheduler.deferred_.size(), 2u);
  EXPECT_EQ(scheduler.deferred_[0].step, 1);
  EXPECT_EQ(scheduler.deferred_[1].step, 0);
  EXPECT_TRUE(both.block_table.empty());
  EXPECT_EQ(both.num_known_blocks, 0);
  expect_books_balance(scheduler);
}

TEST(Task5_3_ReleaseBlocks, ComeBackAtOnceWhereNoStepComputesTheSequence) {
  Running run(4);
  Sequence& a = run.add(8);
  run.scheduler.release_blocks(a);
  EXPECT_EQ(run.scheduler.blocks().num_free_blocks(), 4);
  EXPECT_TRUE(run.scheduler.deferred_.empty());
  EXPECT_TRUE(a.block_table.empty());
}

TEST(Task5_3_Preemption, TheRunnerIsToldOfASequenceThatItKnows) {
  OpenScheduler scheduler(small_config());
  scheduler.add(iota_prompt(6), greedy(4));
  SchedulerOutput output;
  scheduler.schedule_simply(output);
  ASSERT_GT(scheduler.sequence(0).num_known_blocks, 0);
  scheduler.preempt_last();
  EXPECT_EQ(scheduler.preempted_ids_[0], (std::vector<SequenceId>{0}));
  EXPECT_EQ(scheduler.sequence(0).num_known_blocks, 0) << "it is a new one when it comes back";

  Running run(4);
  run.add(8);
  run.scheduler.preempt_last();
  EXPECT_TRUE(run.scheduler.preempted_ids_[0].empty()) << "the runner never heard of it";
}

}  // namespace
}  // namespace ladder
