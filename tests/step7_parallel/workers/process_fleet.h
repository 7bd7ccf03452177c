#pragma once
// Two replicas behind a door that share out experts, and whose ranks are processes: on the CPU, or on a GPU each.
#include <array>
#include <mutex>
#include <sstream>

#include "step4_runner/rank_grid.h"
#include "step7_parallel/data/data_parallel_client.h"
#include "step7_parallel/data/lockstep_executor.h"
#include "tests/step6_engine/engine_client_fixture.h"
#include "tests/step7_parallel/workers/worker_program.h"

namespace ladder::testing {

// A golden checkpoint, and what one rank answers to its prompts.
struct Answered {
  explicit Answered(const std::string& name, DeviceType device = DeviceType::cpu)
      : checkpoint(load_golden(golden_folder() / name)),
        one_rank(small_options(checkpoint.directory, device, checkpoint.max_model_len)),
        requests(greedy_requests(checkpoint)),
        alone(engine_with(one_rank)->generate(requests)) {}

  GoldenCheckpoint checkpoint;
  EngineOptions one_rank;
  std::vector<Request> requests;
  std::vector<RequestOutput> alone;
};

// Which experts the runner of ranks plans for, where the workers' program is told the same words (program/worker_ranks.cpp).
inline void plan_experts(RunnerConfig& runner, const std::string& experts) {
  std::istringstream words(experts);
  std::string kind;
  words >> kind >> runner.num_redundant_experts;
  runner.expert_parallel = kind == "whole" || kind == "moving";
  runner.balance_experts = kind == "moving";
}

class ProcessFleet {
 public:
  // `experts`: as in workers/program/worker_ranks.cpp.
  ProcessFleet(const EngineOptions& one_rank, Grid grid, const std::string& experts) {
    using namespace std::chrono_literals;
    EngineOptions options = on_grid(one_rank, grid);
    plan_experts(options.runner, experts);
    options.runner.expert_replicas = 2;
    const WorkerProgram program = worker_program(one_rank.model, "none", "1 1 1", experts);
    const auto start = [this, program](const ExecutorOptions& given, std::vector<int> groups) {
      MadeExecutor made = start_workers(given, program, std::move(groups));
      std::lock_guard lock(mutex_);
      pids_[static_cast<size_t>(given.config.expert_replica)] =
          dynamic_cast<WorkerExecutor&>(*made.executor).pids();
      return made;
    };
    options.makers.executor = make_lockstep_executor(groups_, start);
    DataParallelOptions door;
    door.num_replicas = 2;
    door.balancer = "round_robin";
    door.first_pause = 10ms;
    door.max_pause = 50ms;
    door.on_stop = [groups = groups_] { groups->close(); };
    door.start = [groups = groups_, options](int number) {
      return groups->start(number, [&]() -> StartedEngine {
        EngineOptions own = options;
        own.runner.expert_replica = number;
        if (!own.runner.device.is_cpu()) own.runner.device.index += number * num_ranks(own.runner);
        std::unique_ptr<Engine> engine = engine_with(own);
        SchedulerConfig config = engine->scheduler().config();
        return {std::make_unique<ThreadEngineClient>(std::move(engine)), std::move(config)};
      });
    };
    client = std::make_unique<DataParallelClient>(std::move(door));
  }

  std::vector<int> pids(int replica) {
    std::lock_guard lock(mutex_);
    return pids_[static_cast<size_t>(replica)];
  }

 private:
  const std::shared_ptr<LockstepGroups> groups_ = std::make_shared<LockstepGroups>();
  std::mutex mutex_;
  std::array<std::vector<int>, 2> pids_;

 public:
  std::unique_ptr<DataParallelClient> client;  // ends first
};

}  // namespace ladder::testing
