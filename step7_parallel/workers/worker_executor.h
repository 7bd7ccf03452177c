#pragma once
// Task 7.6: an executor whose ranks are processes.
//
//   submit()    the step, and what is known of earlier ones' tokens, is written once into the ring that all workers read
//   collect()   the answer of the one that samples is read from the other ring
//
// An executor that has failed stays failed: submit() and collect() throw the first failure, which names the rank.
// vLLM's is MultiprocExecutor in vllm/v1/executor/multiproc_executor.py.
#include <functional>
#include <memory>
#include <vector>

#include "step4_runner/executor.h"
#include "step4_runner/executor_options.h"
#include "step6_engine/engine_makers.h"
#include "step7_parallel/workers/worker_processes.h"

namespace ladder {

class WorkerExecutor final : public Executor {
 public:
  // Of a step, after which the workers are given up.
  static constexpr std::chrono::milliseconds kStepPatience{300'000};

  // options.config is resolved. `experts` and `layers`: as WorkerChannels'. Returns when all ranks are ready. Error: what a rank says is wrong; fewer GPUs than ranks.
  // ProcessFailed: how one ended.
  WorkerExecutor(const ExecutorOptions& options, const WorkerProgram& program,
                 std::chrono::milliseconds step_patience = kStepPatience, std::vector<int> experts = {},
                 std::vector<int> layers = {});
  ~WorkerExecutor() override;

  Ticket submit(const SchedulerOutput& step) override;
  StepOutput collect(Ticket ticket) override;
  int max_in_flight() const override;
  void check() override { workers_->check(); }

  const BatchConfig& batch() const { return batch_; }
  const MemoryPlan& memory() const { return memory_; }  // measured, all ranks; `other` left out
  std::vector<int> pids() const { return workers_->pids(); }

 private:
  // Those of a rank, to options.runner_makers.kv_caches.
  void show_caches(const ExecutorOptions& options, int rank, const WorkerReady& ready);

  RunnerConfig config_;
  std::chrono::milliseconds step_patience_;
  std::unique_ptr<WorkerChannels> channels_;
  std::unique_ptr<WorkerProcesses> workers_;
  BatchConfig batch_;
  MemoryPlan memory_;

  int64_t last_ticket_ = 0;
  int num_in_flight_ = 0;
  std::vector<KnownTokens> known_;  // of the steps collected since the last one was submitted
  std::string step_bytes_, answer_bytes_;
};

// Where options.runner_makers.kv_caches are a KvLayerListener that wants it, the workers tell it their layers (told_layers.h); of
// steps it hears elsewhere. Error: a maker of a proposer, since nothing here verifies drafts.
MadeExecutor start_workers(const ExecutorOptions& options, const WorkerProgram& program,
                           std::vector<int> experts = {});
// The same for EngineMakers::executor.
ExecutorMaker make_worker_executor(WorkerProgram program);

}  // namespace ladder
