#include "step7_parallel/workers/worker_executor.h"

#include <utility>

#include "step1_layers/core/error.h"
#include "step7_parallel/workers/process_rank.h"
#include "step7_parallel/workers/shared_kv_caches.h"
#include "step7_parallel/workers/told_layers.h"

#ifdef LADDER_HAS_CUDA
#include "step7_parallel/workers/gpu_kv_caches.h"
#endif

namespace ladder {

namespace {

// How often a wait looks whether the workers are still there; their failure closes the ring and ends the wait at once.
constexpr std::chrono::milliseconds kLook{1'000};

class HearingExecutor final : public Executor {
 public:
  HearingExecutor(std::unique_ptr<HeardLayers> heard, std::unique_ptr<Executor> workers)
      : heard_(std::move(heard)), workers_(std::move(workers)) {}

  Ticket submit(const SchedulerOutput& step) override { return workers_->submit(step); }
  StepOutput collect(Ticket ticket) override {
    StepOutput output = workers_->collect(ticket);
    heard_->forget(output.step);
    return output;
  }
  int max_in_flight() const override { return workers_->max_in_flight(); }
  void check() override { workers_->check(); }

 private:
  const std::unique_ptr<HeardLayers> heard_;
  const std::unique_ptr<Executor> workers_;  // end first
};

}  // namespace

WorkerExecutor::WorkerExecutor(const ExecutorOptions& options, const WorkerProgram& program,
                               std::chrono::milliseconds step_patience, std::vector<int> experts,
                               std::vector<int> layers)
    : config_(options.config), step_patience_(step_patience) {
  expect_a_gpu_for_each_rank(config_, num_ranks(config_));
  const bool show = options.runner_makers.kv_caches != nullptr;
  std::vector<size_t> kv_bytes;
  for (int rank = 0; show && config_.device.is_cpu() && rank < num_ranks(config_); ++rank)
    kv_bytes.push_back(shared_kv_bytes(options.spec, config_, place_of(config_, rank).stage));
  const WorkerProcesses::Shown shown{show, !layers.empty()};
  channels_ = std::make_unique<WorkerChannels>(config_, std::move(experts), kv_bytes, std::move(layers));
  workers_ = std::make_unique<WorkerProcesses>(config_, run_fingerprint(options.model, program.program),
                                               program, *channels_, shown, options.progress);
  const std::vector<WorkerReady> all_ready = workers_->wait_until_ready();
  for (const WorkerReady& ready : all_ready) {
    batch_ = ready.batch;  // the ranks have agreed on it
    memory_.weights += ready.memory.weights;
    memory_.kv += ready.memory.kv;
    memory_.activations += ready.memory.activations;
  }
  for (int rank = 0; show && rank < num_ranks(config_); ++rank)
    show_caches(options, rank, all_ready[static_cast<size_t>(rank)]);
}

void WorkerExecutor::show_caches(const ExecutorOptions& options, int rank, const WorkerReady& ready) {
  const GridPlace place = place_of(config_, rank);
  RankKvCaches mine{rank, place, layers_of(config_, options.spec.num_layers, place.stage), {}};
  if (config_.device.is_cpu()) {
    mine.caches = kv_caches_in(channels_->kv_caches_of(rank), ready.kv_caches, config_);
    for (const KvCacheView& cache : mine.caches) memory_.kv += cache.nbytes();  // which no rank has counted
  }
#ifdef LADDER_HAS_CUDA
  if (!config_.device.is_cpu()) {
    RunnerConfig measured = config_;
    measured.batch = ready.batch;
    mine.caches = open_gpu_kv_caches(ready.gpu_memory, ready.kv_caches, measured,
                                     fmt::format("rank {} of {}", rank, num_ranks(config_)));
  }
#endif
  options.runner_makers.kv_caches->register_kv_caches(std::move(mine));
}

WorkerExecutor::~WorkerExecutor() = default;

int WorkerExecutor::max_in_flight() const {
  return max_steps_in_flight(config_);
}

// >>> task 7.6: hand a step to all workers, fetch its answer, and where none comes say why
Ticket WorkerExecutor::submit(const SchedulerOutput& step) {
  workers_->check();
  LADDER_CHECK(num_in_flight_ < max_in_flight(),
               "step {} is submitted while {} are in flight, which is all there may be", step.step,
               num_in_flight_);
  step_bytes_.clear();
  WireWriter{step_bytes_}(step, std::exchange(known_, {}));
  try {
    channels_->steps().write(step_bytes_, step_patience_);
  } catch (const Error& error) {  // closed, or some rank takes nothing
    workers_->end_all(
        {false, fmt::format("step {} cannot be handed to the workers: {}", step.step, error.what())});
    workers_->check();
  }
  ++num_in_flight_;
  return {++last_ticket_};
}

StepOutput WorkerExecutor::collect(Ticket ticket) {
  workers_->check();
  const int64_t oldest = last_ticket_ - num_in_flight_ + 1;
  LADDER_CHECK(num_in_flight_ > 0 && ticket.value == oldest,
               "ticket {} is collected, the oldest step in flight is {}", ticket.value,
               num_in_flight_ == 0 ? "none" : std::to_string(oldest));
  const auto deadline = std::chrono::steady_clock::now() + step_patience_;
  while (channels_->answers().read(answer_bytes_, std::min(kLook, step_patience_)) !=
         StepRingReader::Read::message) {
    workers_->check();
    if (std::chrono::steady_clock::now() < deadline) continue;
    const std::string where = channels_->where();
    workers_->end_all({false, fmt::format("no answer to a step within {} ms{}{}", step_patience_.count(),
                                          where.empty() ? "" : "; ", where)});
    workers_->check();
  }
  --num_in_flight_;
  StepOutput output = from_bytes<StepOutput>(answer_bytes_);
  if (config_.pipeline_parallel_size > 1) known_.push_back(known_tokens(output));
  return output;
}
// <<< task 7.6

MadeExecutor start_workers(const ExecutorOptions& options, const WorkerProgram& program,
                           std::vector<int> experts) {
  LADDER_CHECK(!options.runner_makers.proposer,
               "proposer: there is a maker of one, and this executor verifies no draft tokens");
  auto* const listener = dynamic_cast<KvLayerListener*>(options.runner_makers.kv_caches.get());
  if (listener == nullptr || !listener->wants_layers()) {
    auto executor =
        std::make_unique<WorkerExecutor>(options, program, WorkerExecutor::kStepPatience, std::move(experts));
    const BatchConfig batch = executor->batch();
    return {std::move(executor), batch};
  }
  auto heard = std::make_unique<HeardLayers>(*listener, num_ranks(options.config));
  auto executor = std::make_unique<WorkerExecutor>(options, program, WorkerExecutor::kStepPatience,
                                                   std::move(experts), heard->descriptors());
  const BatchConfig batch = executor->batch();
  return {std::make_unique<HearingExecutor>(std::move(heard), std::move(executor)), batch};
}

ExecutorMaker make_worker_executor(WorkerProgram program) {
  return [program = std::move(program)](const ExecutorOptions& options) {
    return start_workers(options, program);
  };
}

}  // namespace ladder
