#include "step7_parallel/data/lockstep_executor.h"

#include <utility>

#include "step1_layers/core/error.h"
#include "step4_runner/local_executor.h"

namespace ladder {

LockstepExecutor::LockstepExecutor(std::unique_ptr<Executor> inner, std::shared_ptr<LockstepGroup> group,
                                   int replica)
    : group_(std::move(group)), replica_(replica), inner_(std::move(inner)) {}

LockstepExecutor::~LockstepExecutor() {
  try {
    while (group_->is_awaited_at_the_end(replica_)) run_along();
  } catch (const std::exception&) {
    // The group has failed, or all others have left.
  }
  group_->leave(replica_);
}

// What another replica failed with is said in its words, not in those of a rank that was released from its wait for it.
template <class Work>
auto LockstepExecutor::or_fail_all(Work work) {
  try {
    return work();
  } catch (const std::exception& error) {
    group_->fail(replica_, error.what());
    const std::string first = group_->failure_of_another(replica_);
    LADDER_CHECK(first.empty(), "{}", first);
    throw;
  }
}

// >>> task 7.9.wave: a step of one's own, or along with the others'
Ticket LockstepExecutor::submit(const SchedulerOutput& step) {
  return or_fail_all([&] {
    group_->next_step(replica_, true);
    return inner_->submit(step);
  });
}

void LockstepExecutor::run_along() {
  or_fail_all([&] {
    if (group_->next_step(replica_, false)) inner_->collect(inner_->submit({}));  // no rows
  });
}
// <<< task 7.9.wave

StepOutput LockstepExecutor::collect(Ticket ticket) {
  return or_fail_all([&] { return inner_->collect(ticket); });
}

void LockstepExecutor::check() {
  or_fail_all([&] { inner_->check(); });
  group_->check();
}

ExecutorMaker make_lockstep_executor(std::shared_ptr<LockstepGroups> groups) {
  return [groups = std::move(groups)](const ExecutorOptions& options) {
    const std::shared_ptr<LockstepGroup> group = groups->join(options.config);
    const int replica = options.config.expert_replica;
    ExecutorOptions own = options;
    own.expert_ranks = group->ranks_of(replica);
    try {
      MadeExecutor made = make_executor_in_process(own);
      groups->started(*group);
      made.executor = std::make_unique<LockstepExecutor>(std::move(made.executor), group, replica);
      return made;
    } catch (const std::exception& error) {
      group->fail(replica, error.what());
      const std::string first = group->failure_of_another(replica);
      LADDER_CHECK(first.empty(), "{}", first);
      throw;
    }
  };
}

}  // namespace ladder
