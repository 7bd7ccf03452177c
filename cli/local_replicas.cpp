#include "cli/local_replicas.h"

#include <utility>

#include "cli/engine_process.h"
#include "cli/launched_command.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/data/replica_config.h"

namespace ladder {

namespace {

StartedEngine start_in_thread(EngineOptions options, const ModelFolder& folder, LoadProgress progress,
                              EngineClientOptions client_options) {
  options.progress = std::move(progress);
  std::unique_ptr<Engine> engine = load_engine(options, folder);
  SchedulerConfig config = engine->scheduler().config();
  return {std::make_unique<ThreadEngineClient>(std::move(engine), std::move(client_options)),
          std::move(config)};
}

StartedEngine start_in_process(const EngineFlags& flags, const EngineOptions& options,
                               const ModelFolder& folder, LoadProgress progress,
                               EngineClientOptions client_options) {
  EngineProcessOptions process = engine_process_options(flags.arguments_of_replica(options), folder);
  process.client = std::move(client_options);
  process.progress = std::move(progress);
  auto client = start_engine_process(std::move(process));
  SchedulerConfig config = client->config();
  return {std::move(client), std::move(config)};
}

}  // namespace

LocalReplicas::LocalReplicas(const EngineFlags& flags, const DataParallelFlags& replicas,
                             const EngineOptions& options, const ModelFolder& folder)
    : flags_(flags),
      folder_(folder),
      range_(replicas.range()),
      in_processes_(replicas.in_processes(options.runner)),
      progress_(range_.num_local, [this](int64_t done, int64_t total) {
        std::lock_guard lock(mutex_);
        if (bar_ == nullptr) return;
        bar_->set_total(total);
        bar_->set(done);
      }) {
  LADDER_CHECK(
      launched_world() == nullptr || (range_.num_local <= 1 && !in_processes_),
      "--data-parallel-size {}: ranks that mpirun and --nnodes start are those of one replica, expected "
      "--data-parallel-size-local 1 and no --data-parallel-backend mp",
      range_.num_replicas);
  expect_a_gpu_for_each_replica(options.runner, range_.num_local);
  for (int local = 0; local < range_.num_local; ++local) {
    options_.push_back(
        options_of_replica(options, folder.spec, local, range_.num_local, memory_of(options.runner.device)));
    if (options.runner.expert_replicas > 1)
      options_.back().makers.executor = flags.lockstep_maker(options.runner, groups_);
  }
  bar_ = std::make_unique<ProgressBar>(
      range_.num_local == 1 ? std::string("loading") : fmt::format("loading {} replicas", range_.num_local),
      0, "bytes");
}

StartedEngine LocalReplicas::start(int number, EngineClientOptions client) {
  const int local = number - range_.first;
  const EngineOptions& own = options_[static_cast<size_t>(local)];
  LoadProgress of_this = [this, local](int64_t done, int64_t total) { progress_.set(local, done, total); };
  if (in_processes_) return start_in_process(flags_, own, folder_, std::move(of_this), std::move(client));
  const auto load = [&] { return start_in_thread(own, folder_, std::move(of_this), std::move(client)); };
  return own.runner.expert_replicas > 1 ? groups_->start(local, load) : load();
}

void LocalReplicas::loaded() {
  std::lock_guard lock(mutex_);
  if (bar_ != nullptr) bar_->clear();
  bar_ = nullptr;
}

}  // namespace ladder
