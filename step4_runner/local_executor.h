#pragma once
// Task 4.4: an executor in this process.
//
// Every rank of the grid (rank_grid.h) is a thread with its own shard of the model, its own KV cache, arena and batch.
// A step is handed to all of them; the answer of the one that samples is collected. On a GPU a rank's thread only
// launches: the next step may be submitted before, and collect() waits for the GPU. In a pipeline a step may be
// submitted for each stage: while the last one computes the oldest, the first one is at the newest. If a rank throws, the
// others are released from the collective they wait in, and collect() throws what that rank threw: an executor that
// failed stays failed.
#include <functional>
#include <memory>

#include "step4_runner/executor.h"
#include "step4_runner/executor_options.h"
#include "step4_runner/kv_cache_size.h"
#include "step4_runner/model_runner.h"
#include "step4_runner/rank_start.h"

namespace ladder {

class LocalExecutor final : public Executor {
 public:
  // Resolves the configuration, starts the ranks, loads their models, allocates their caches, and runs the
  // warm-up. The rank that samples does so with `processor` after the warm-up, unless that is null. Error: what any rank
  // failed with; several ranks on a GPU. `device`: the context of config.device, where the caller has one, as for a fake device; else the
  // executor makes it. `expert_ranks`: where config.expert_replicas are several. `kv_caches`: hears of each rank's, or null.
  LocalExecutor(const DecoderSpec& spec, const RunnerConfig& config, const ModelFactory& make_model,
                std::shared_ptr<LogitsProcessor> processor = {}, const OpContext* device = nullptr,
                ExpertRanks expert_ranks = {}, std::shared_ptr<KvCacheRegistry> kv_caches = {});
  ~LocalExecutor() override;

  Ticket submit(const SchedulerOutput& step) override;  // Error: max_in_flight() are in flight already
  StepOutput collect(Ticket ticket) override;
  int max_in_flight() const override;  // max_steps_in_flight()

  const RunnerConfig& config() const;  // resolved: what the scheduler is made with
  MemoryPlan memory() const;           // measured, all ranks; `other` left out
  // For measuring what the host costs: see ModelRunner. Error: a step is in flight, too.
  double replay_last_step(int64_t count);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// With the model of the folder (step2_model/model.h), of the parts that the makers make on every rank's own
// thread. Error: a maker of a proposer, since nothing here verifies drafts.
std::unique_ptr<LocalExecutor> make_local_executor(const ExecutorOptions& options);

}  // namespace ladder
