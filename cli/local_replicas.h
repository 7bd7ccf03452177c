#pragma once
// The replicas of this machine, each with its share of it: as threads of this process, or as processes.
#include <memory>
#include <mutex>
#include <vector>

#include "cli/data_parallel_flags.h"
#include "cli/engine_flags.h"
#include "cli/terminal.h"
#include "step4_runner/rank_start.h"
#include "step6_engine/thread_engine_client.h"
#include "step7_parallel/data/lockstep_executor.h"
#include "step7_parallel/data/replica.h"

namespace ladder {

class LocalReplicas {
 public:
  // `flags` and `folder` outlive it. Error: fewer GPUs than ranks; a share that holds nothing; several replicas, or one in a
  // process of its own, where mpirun or --nnodes has started the ranks.
  LocalReplicas(const EngineFlags& flags, const DataParallelFlags& replicas, const EngineOptions& options,
                const ModelFolder& folder);

  // Makes the engine of replica `number`; any thread, several at the same time. With a bar on standard error until loaded().
  StartedEngine start(int number, EngineClientOptions client);
  // All have been loaded once: who is started again later is not waited for.
  void loaded();
  // None is started any more.
  void close() { groups_->close(); }

 private:
  const EngineFlags& flags_;
  const ModelFolder& folder_;
  const ReplicaRange range_;
  const bool in_processes_;
  std::vector<EngineOptions> options_;  // of each
  const std::shared_ptr<LockstepGroups> groups_ =
      std::make_shared<LockstepGroups>();  // of those that share out experts
  std::mutex mutex_;
  std::unique_ptr<ProgressBar> bar_;  // under mutex_; none: nobody waits
  SummedProgress progress_;
};

}  // namespace ladder
