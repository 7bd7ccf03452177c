#pragma once
// A replica without a model: the engine's own scheduler and prefix cache, steps that last what a StepTimeModel says, tokens
// that are made up. It has no clock; who drives it decides when a step has ended.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "step5_scheduler/scheduler.h"
#include "step7_parallel/data/balancer.h"
#include "step7_parallel/data/simulation/step_time_model.h"

namespace ladder {

struct SimulatedToken {
  int64_t request = 0;
  int32_t token_id = 0;
  bool is_last = false;
};

class SimulatedReplica {
 public:
  // `connector`: to other replicas; null: none.
  SimulatedReplica(const SchedulerConfig& config, const StepTimeModel& model,
                   std::shared_ptr<KvConnector> connector = nullptr);

  // `num_output` tokens are going to be answered. `kv_transfer`: null, unless there is a connector. Error: what
  // Scheduler::add() refuses.
  void add(int64_t request, std::vector<int32_t> prompt, int64_t num_output,
           std::shared_ptr<const KvTransferParams> kv_transfer = nullptr);
  // Takes what the connector has brought, plans a step and says how many seconds it takes; nothing if there is nothing to
  // compute. Not during a step.
  std::optional<double> begin_step();
  // One token for each sequence that got one. Valid until the next step.
  std::span<const SimulatedToken> end_step();

  bool in_step() const { return !output_.empty(); }
  SchedulerStats stats() const { return scheduler_.stats(); }

 private:
  struct Known {
    int64_t request = 0;
    int64_t num_tokens = 0;  // prompt and output
    int64_t num_computed = 0;
  };

  Scheduler scheduler_;
  const StepTimeModel model_;
  const int64_t vocab_size_;
  SchedulerOutput output_;  // empty between steps
  StepOutput answer_;
  std::unordered_map<SequenceId, Known> sequences_;
  std::vector<SimulatedToken> tokens_;
};

}  // namespace ladder
