#pragma once
// Ranks that are watched: what each of them calls is noted, so that a deadlock says where each stands, and ranks that
// parted are found where nothing hangs and nothing looks wrong.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/distributed/call_trace.h"
#include "step4_runner/local_executor.h"
#include "step4_runner/rank_grid.h"
#include "step6_engine/load_engine.h"
#include "tests/support/watchdog.h"

namespace ladder::testing {

// The calls of all ranks in the groups of a grid, from when a rank makes its model on.
class GridTrace {
 public:
  explicit GridTrace(const RunnerConfig& config);

  // On a rank's own thread.
  void join(const OpContext& ctx);
  // The groups are those of tensor ranks, by stage, and those of stages, by tensor rank; both of context rank 0.
  const CallTrace& tensor_group(int stage) const {
    return *tensor_groups_.at(static_cast<size_t>(stage * config_.prefill_context_parallel_size)).trace;
  }
  const CallTrace& column(int tensor_rank) const {
    return *columns_.at(static_cast<size_t>(tensor_rank)).trace;
  }
  std::string where() const;    // "stage 0, tensor rank 1: in call ...", lines for each group
  std::string parting() const;  // of the first group whose ranks part; empty: none does

 private:
  struct Group {
    std::string name;
    std::unique_ptr<CallTrace> trace;
    std::vector<std::unique_ptr<TracedCommunicator>> ranks;
  };
  static Group group(std::string name, int size);

  RunnerConfig config_;
  std::vector<Group> tensor_groups_, columns_, context_groups_;
};

// A LocalExecutor. Where its start or one of its steps takes longer than the deadline the program ends with where each
// rank stands. When it goes the ranks must have made the same calls, unless it failed or has steps in flight.
class WatchedExecutor final : public Executor {
 public:
  static constexpr std::chrono::milliseconds kDeadline{120'000};

  WatchedExecutor(const DecoderSpec& spec, const RunnerConfig& config, const ModelFactory& make_model,
                  std::chrono::milliseconds deadline = kDeadline);
  ~WatchedExecutor() override;

  Ticket submit(const SchedulerOutput& step) override;
  StepOutput collect(Ticket ticket) override;
  int max_in_flight() const override { return executor_->max_in_flight(); }

  const GridTrace& trace() const { return trace_; }
  BatchConfig batch() const { return executor_->config().batch; }

 private:
  GridTrace trace_;
  Watchdog watchdog_;
  std::unique_ptr<LocalExecutor> executor_;
  int64_t num_in_flight_ = 0;
  bool failed_ = false;
};

// For EngineOptions::makers.
MadeExecutor make_watched_executor(const ExecutorOptions& options);

}  // namespace ladder::testing
