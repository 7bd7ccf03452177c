// Bug 5.1#1: ids of sequences that are gone stay in start_over_ for ever.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/harness.h"

namespace ladder {
namespace {

class Watched : public Scheduler {
 public:
  using Scheduler::Scheduler;
  using Scheduler::start_over_;
};

TEST(Bug5_1_1, NothingIsRememberedOfAnAbortedSequence) {
  SchedulerConfig config = small_config();
  config.recompute_everything = true;
  Watched scheduler(config);
  KvSimulator executor(config.batch.num_kv_blocks, config.batch.block_size, config.vocab_size);
  SchedulerOutput output;
  for (int i = 0; i < 10; ++i) {
    const SequenceId id = scheduler.add(iota_prompt(5), greedy(8))[0];
    scheduler.schedule(output);
    ASSERT_FALSE(output.empty());
    const Ticket ticket = executor.submit(output);
    scheduler.abort(id);
    scheduler.update(executor.collect(ticket));
  }
  scheduler.schedule(output);
  EXPECT_TRUE(scheduler.start_over_.empty());
}

}  // namespace
}  // namespace ladder
