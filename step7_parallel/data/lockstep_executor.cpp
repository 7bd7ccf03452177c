#include "step7_parallel/data/lockstep_executor.h"

#include <utility>

#include "step1_layers/core/error.h"

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
    const int64_t mine = step.total_num_tokens + step.num_static_padding_rows;
    const std::optional<int64_t> rows = group_->next_step(replica_, mine);
    if (*rows == mine) return inner_->submit(step);
    SchedulerOutput padded = step;
    padded.num_static_padding_rows += *rows - mine;
    return inner_->submit(padded);
  });
}

void LockstepExecutor::run_along() {
  or_fail_all([&] {
    const std::optional<int64_t> rows = group_->next_step(replica_, {});
    if (!rows) return;
    SchedulerOutput nothing;  // no rows, or as many spare ones as the others have
    nothing.num_static_padding_rows = *rows;
    inner_->collect(inner_->submit(nothing));
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

namespace {

// `make_ranks` makes the executor of a replica that has joined a group.
template <class MakeRanks>
ExecutorMaker lockstep_executor_maker(std::shared_ptr<LockstepGroups> groups, RanksAre ranks,
                                      MakeRanks make_ranks) {
  return [groups = std::move(groups), ranks,
          make_ranks = std::move(make_ranks)](const ExecutorOptions& options) {
    const std::shared_ptr<LockstepGroup> group = groups->join(options.config, ranks);
    const int replica = options.config.expert_replica;
    try {
      group->expect_same_steps(options.config);
      MadeExecutor made = make_ranks(options, *group);
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

}  // namespace

ExecutorMaker make_lockstep_executor(std::shared_ptr<LockstepGroups> groups) {
  return lockstep_executor_maker(std::move(groups), RanksAre::threads,
                                 [](const ExecutorOptions& options, LockstepGroup& group) {
                                   ExecutorOptions own = options;
                                   own.expert_ranks = group.ranks_of(options.config.expert_replica);
                                   return make_executor_in_process(own);
                                 });
}

ExecutorMaker make_lockstep_executor(std::shared_ptr<LockstepGroups> groups, WorkersStart start) {
  return lockstep_executor_maker(
      std::move(groups), RanksAre::processes,
      [start = std::move(start)](const ExecutorOptions& options, const LockstepGroup& group) {
        return start(options, group.shared_ranks());
      });
}

}  // namespace ladder
