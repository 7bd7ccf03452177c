// What a step must be, by counting, where the cache is large enough for all or is always too small.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

std::vector<int32_t> random_prompt(testing::Random& random, int64_t size) {
  std::vector<int32_t> prompt(size);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random.integer(0, 999));
  return prompt;
}

// With room for all and no limits a step has all tokens that anybody lacks, up to the budget, and every decode is in it.
TEST(Hidden5_2_Budget, IsUsedUpWhileAnybodyLacksATokenAndNoDecodeWaits) {
  testing::Random random;
  for (int day = 0; day < 40; ++day) {
    SchedulerConfig config = small_config();
    config.enable_prefix_caching = false;
    config.batch.num_kv_blocks = 4000;
    config.batch.max_num_seqs = random.integer(1, 20);
    config.batch.max_num_batched_tokens = random.integer(config.batch.max_num_seqs, 90);
    Harness harness(config);
    for (int turn = 0; turn < 60; ++turn) {
      for (int64_t i = random.integer(0, 2); i > 0; --i)
        harness.add(random_prompt(random, random.integer(1, 120)), greedy(random.integer(1, 20)));
      int64_t lacked = 0, decodes = 0;
      for (const Sequence* sequence : harness.scheduler.running_) {
        const int64_t lacks = sequence->num_tokens() - sequence->num_computed_tokens;
        lacked += lacks;
        decodes += lacks == 1;
      }
      int64_t room = config.batch.max_num_seqs - std::ssize(harness.scheduler.running_);
      for (Sequence* next = harness.scheduler.waiting_.next(); next != nullptr && room > 0;
           next = harness.scheduler.waiting_.next(next), --room)
        lacked += next->num_tokens();
      const auto running = harness.scheduler.running_;
      if (!harness.submit()) {
        ASSERT_EQ(lacked, 0);
        continue;
      }
      ASSERT_EQ(harness.output.total_num_tokens, std::min(lacked, config.batch.max_num_batched_tokens))
          << "step " << harness.output.step;
      int64_t decoded = 0;
      for (const ScheduledSequence& scheduled : harness.output.scheduled)
        for (const Sequence* sequence : running)
          decoded += sequence->id == scheduled.id &&
                     sequence->num_computed_tokens == sequence->num_tokens() && scheduled.num_tokens == 1;
      ASSERT_GE(decoded, decodes) << "step " << harness.output.step << ": a decode waits";
      harness.collect();
    }
    harness.run();
    harness.expect_reference_outputs();
    if (HasFailure()) return;
  }
}

// Completions of one prompt compute it once: each but the first finds all its full blocks, short of the last token.
TEST(Hidden5_2_Admit_Siblings, ShareEveryFullBlockOfThePrompt) {
  testing::Random random;
  for (int day = 0; day < 60; ++day) {
    SchedulerConfig config = small_config();
    config.batch.block_size = random.integer(1, 9);
    config.batch.num_kv_blocks = 2000;
    config.batch.max_num_batched_tokens = random.integer(16, 200);
    config.batch.max_num_seqs = 16;
    Harness harness(config);
    const int64_t size = random.integer(1, 100);
    SamplingParams sampling = greedy(random.integer(1, 12));
    sampling.n = static_cast<int32_t>(random.integer(2, 8));
    const std::vector<SequenceId> ids = harness.add(random_prompt(random, size), sampling);
    harness.run();
    harness.expect_reference_outputs();
    const int64_t shared = (size - 1) / config.batch.block_size * config.batch.block_size;
    for (size_t i = 1; i < ids.size(); ++i)
      EXPECT_EQ(harness.results[ids[i]].num_cached_tokens, shared)
          << "completion " << i << " of a prompt of " << size << ", blocks of " << config.batch.block_size;
    if (HasFailure()) return;
  }
}

// Who is aborted, waiting or running, takes nothing with it and leaves nothing.
TEST(Hidden5_5_Abort, LeavesTheOthersTheirAnswers) {
  testing::Random random;
  for (int day = 0; day < 40; ++day) {
    SimpleHarness harness(small_config(), static_cast<int>(random.integer(0, 3)));
    std::vector<SequenceId> ids;
    for (int i = 0; i < 12; ++i) {
      SamplingParams sampling = greedy(random.integer(1, 25));
      sampling.n = static_cast<int32_t>(random.integer(1, 3));
      for (const SequenceId id : harness.add(random_prompt(random, random.integer(1, 60)), sampling))
        ids.push_back(id);
    }
    for (int turn = 0; turn < 40; ++turn) {
      harness.turn();
      if (random.integer(0, 3) == 0) harness.abort(random.one_of(ids));
      expect_books_balance(harness.scheduler);
      if (HasFatalFailure()) return;
    }
    harness.run();
    harness.expect_reference_outputs();
    if (HasFailure()) return;
  }
}

// Looks at who gives way in each schedule(). SchedulerOutput::preempted says it too late: those of a schedule() that
// planned nothing are told with the next step, in which one of them may run again, before others.
struct WatchesWhoGivesWay : Harness {
  using Harness::Harness;
  void schedule() override {
    const auto ran = scheduler.running_;
    Harness::schedule();
    const RunsBefore runs_before{scheduler.config().policy};
    for (const Sequence* sequence : ran) {
      if (sequence->status != SequenceStatus::preempted) continue;
      for (const Sequence* running : scheduler.running_)
        EXPECT_TRUE(runs_before(running, sequence)) << "sequence " << sequence->id << " gave way, "
                                                    << running->id << " did not, step " << output.step;
    }
  }
};

TEST(Hidden5_3_Order, WhoGivesWayStandsBehindAllWhoRunOn) {
  testing::Random random;
  int64_t num_preemptions = 0;
  for (int day = 0; day < 60; ++day) {
    SchedulerConfig config = small_config();
    config.policy = random.one_of<SchedulingPolicy>({SchedulingPolicy::fcfs, SchedulingPolicy::priority});
    config.batch.block_size = random.integer(1, 7);
    config.batch.num_kv_blocks = random.integer(90, 160) / config.batch.block_size;
    WatchesWhoGivesWay harness(config, static_cast<int>(random.integer(0, 2)));
    for (int i = 0; i < 12; ++i) {
      SamplingParams sampling = greedy(random.integer(1, 25));
      sampling.priority = static_cast<int32_t>(random.integer(-1, 1));
      harness.add(random_prompt(random, random.integer(1, 60)), sampling);
    }
    harness.run();
    harness.expect_reference_outputs();
    if (HasFailure()) return;
    num_preemptions += harness.scheduler.stats().num_preemptions;
  }
  EXPECT_GT(num_preemptions, 30) << "nobody had to give way";
}

}  // namespace
}  // namespace ladder
