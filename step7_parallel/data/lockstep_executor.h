#pragma once
// 7.9: an executor of one of the replicas that step together (lockstep_group.h). Its engine and its ranks know nothing of it:
//
//   submit()      waits until all replicas come to a step, then hands the step on, filled up to the rows that they agree on
//   run_along()   the same with a step of nothing but these, an empty SchedulerOutput (on the CPU without any rows), which is
//                 collected too; or nothing, if nobody else has a step either
//
// Whatever it fails with is the end of the other replicas too.
#include <memory>

#include "step4_runner/executor.h"
#include "step6_engine/engine_makers.h"
#include "step7_parallel/data/lockstep_group.h"

namespace ladder {

class LockstepExecutor final : public Executor {
 public:
  // `inner` has the group's ranks of this replica.
  LockstepExecutor(std::unique_ptr<Executor> inner, std::shared_ptr<LockstepGroup> group, int replica);
  // Runs along until all others end too, for at most LockstepGroup::kLeavePatience while nobody steps.
  ~LockstepExecutor() override;

  Ticket submit(const SchedulerOutput& step) override;
  StepOutput collect(Ticket ticket) override;
  int max_in_flight() const override { return inner_->max_in_flight(); }
  void check() override;

  bool is_awaited() const override { return group_->is_awaited(replica_); }
  void run_along() override;
  void on_awaited(std::function<void()> wake) override { group_->on_awaited(replica_, std::move(wake)); }

 private:
  // Returns what the work does. If it throws, the group fails of it.
  template <class Work>
  auto or_fail_all(Work work);

  std::shared_ptr<LockstepGroup> group_;
  const int replica_;
  std::unique_ptr<Executor> inner_;
};

// For EngineMakers::executor, of replicas whose ranks are threads of this process. All of them start at the same time, and each
// waits for the others: they warm up together.
ExecutorMaker make_lockstep_executor(std::shared_ptr<LockstepGroups> groups);
// The same of replicas whose ranks are processes: `start` is start_workers() with a program (workers/worker_executor.h).
using WorkersStart = std::function<MadeExecutor(const ExecutorOptions& options, std::vector<int> experts)>;
ExecutorMaker make_lockstep_executor(std::shared_ptr<LockstepGroups> groups, WorkersStart start);

}  // namespace ladder
