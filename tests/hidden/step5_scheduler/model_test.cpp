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

// Steps of a batch by the rules of schedule_static(), counted from the scheduler's state before each of them.
struct WatchesBatches : Harness {
  using Harness::Harness;
  void schedule() override {
    const BatchConfig& batch = scheduler.config().batch;
    std::vector<const Sequence*> rows(scheduler.running_.begin(), scheduler.running_.end());
    if (rows.empty() && scheduler.num_steps_in_flight() == 0) {
      int64_t free = scheduler.blocks().num_free_blocks(), longest = 0, sum = 0;
      for (const Sequence* next = scheduler.waiting_.next();
           next != nullptr && std::ssize(rows) < batch.max_num_seqs;
           next = scheduler.waiting_.next(const_cast<Sequence*>(next))) {
        free -= scheduler.blocks().blocks_for(next->num_prompt_tokens + *next->sampling.max_tokens - 1);
        if (free < 0) break;
        rows.push_back(next);
        longest = std::max(longest, next->num_prompt_tokens);
        sum += next->num_prompt_tokens;
      }
      num_rows = std::ssize(rows);
      prompt_padding = num_rows * longest - sum;
    }
    const auto has_output = [](const Sequence* row) {
      return row->num_output_tokens() + row->num_placeholders > 0;
    };
    const bool prompts_done = std::ranges::all_of(rows, has_output);
    int64_t budget = batch.max_num_batched_tokens;
    std::vector<std::pair<SequenceId, int64_t>> expected, seen;
    for (const Sequence* row : rows) {
      const bool is_full = row->num_output_tokens() + row->num_placeholders >= *row->sampling.max_tokens;
      int64_t num_tokens = is_full || (!prompts_done && has_output(row)) ? 0 : row->num_uncomputed_tokens();
      if (num_tokens > budget) num_tokens = scheduler.config().enable_chunked_prefill ? budget : 0;
      if (num_tokens > 0) expected.emplace_back(row->id, num_tokens);
      budget -= num_tokens;
    }
    int64_t padding = 0;
    if (!expected.empty()) {
      const int64_t num_idle = prompts_done ? num_rows - std::ssize(expected) : 0;
      padding = std::min(budget, num_idle + prompt_padding);
      prompt_padding -= std::max<int64_t>(padding - num_idle, 0);
    }
    Harness::schedule();
    for (const ScheduledSequence& scheduled : output.scheduled)
      seen.emplace_back(scheduled.id, scheduled.num_tokens);
    EXPECT_EQ(seen, expected) << "step " << output.step;
    EXPECT_EQ(output.num_static_padding_rows, padding) << "step " << output.step;
  }
  int64_t num_rows = 0, prompt_padding = 0;
};

TEST(Hidden5_1_Steps, AreThoseOfTheRules) {
  testing::Random random;
  for (int day = 0; day < 60; ++day) {
    SchedulerConfig config = small_config();
    config.static_batching = true;
    config.enable_chunked_prefill = random.integer(0, 1) == 0;
    config.policy = random.one_of<SchedulingPolicy>({SchedulingPolicy::fcfs, SchedulingPolicy::priority});
    config.batch.max_num_seqs = random.integer(1, 8);
    config.batch.max_model_len = 80;
    config.batch.max_num_batched_tokens =
        random.integer(config.enable_chunked_prefill ? config.batch.max_num_seqs : 80, 120);
    config.batch.num_kv_blocks = random.integer(25, 90);
    WatchesBatches harness(config, static_cast<int>(random.integer(0, 2)));
    std::vector<SequenceId> ids;
    for (int turn = 0; turn < 120; ++turn) {
      if (random.integer(0, 5) == 0) {
        SamplingParams sampling = greedy(random.integer(1, 20));
        sampling.priority = static_cast<int32_t>(random.integer(-1, 1));
        for (const SequenceId id : harness.add(random_prompt(random, random.integer(1, 60)), sampling))
          ids.push_back(id);
      }
      if (!ids.empty() && random.integer(0, 25) == 0) harness.abort(random.one_of(ids));
      harness.turn();
      if (HasFailure()) return;
    }
    harness.run();
    harness.expect_reference_outputs();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace ladder
