#include "step4_runner/local_executor.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/distributed/local_group.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

struct LocalExecutor::State {
  // A step that was submitted and not collected. Ranks launch it one after the other, in the order of
  // submission.
  struct InFlight {
    SchedulerOutput step;
    std::vector<KnownTokens> known;                // in a pipeline: what came since the step before
    int num_waiting = 0;                           // ranks that have not launched it
    std::shared_ptr<const LaunchedStep> launched;  // by the rank that answers
  };

  RunnerConfig config;
  std::shared_ptr<LogitsProcessor> processor;  // of the rank that samples; may be null
  const OpContext* device;                     // nullptr: each rank makes its own
  ExpertRanks expert_ranks;
  std::shared_ptr<KvCacheRegistry> kv_caches;                                       // may be null
  std::vector<std::unique_ptr<LocalGroup>> tensor_groups, columns, context_groups;  // of the grid
  std::vector<std::thread> threads;

  // Guarded by the mutex. A rank works when `given` is ahead of what it has done; the last one to launch a
  // step wakes collect().
  std::mutex mutex;
  std::condition_variable work_given, work_done;
  int64_t given = 0;               // steps handed to the ranks
  std::deque<InFlight> in_flight;  // of which these are the last
  int num_starting = 0;            // ranks that have not made their runner
  bool stopping = false;
  std::exception_ptr error;  // the first one; it stays
  MemoryPlan memory;

  // Of the caller's thread alone.
  int64_t last_ticket = 0;
  std::vector<KnownTokens> known;  // of the steps collected since the last one was submitted

  State(const RunnerConfig& resolved, const ModelFactory& make_model,
        std::shared_ptr<LogitsProcessor> logits_processor, const OpContext* given_device,
        ExpertRanks given_expert_ranks, std::shared_ptr<KvCacheRegistry> registry)
      : config(resolved),
        processor(std::move(logits_processor)),
        device(given_device),
        expert_ranks(std::move(given_expert_ranks)),
        kv_caches(std::move(registry)),
        num_starting(num_ranks(resolved)) {
    LADDER_CHECK(config.device.is_cpu() || num_ranks(config) == 1,
                 "{} ranks as threads of one process: expected --device cpu", num_ranks(config));
    LADDER_CHECK(config.expert_replicas == 1 || std::ssize(expert_ranks.groups) == num_ranks(config),
                 "experts shared out over {} replicas: {} ranks have {} groups", config.expert_replicas,
                 num_ranks(config), expert_ranks.groups.size());
    const auto make_groups = [](auto& groups, int count, int size) {
      for (int i = 0; i < count; ++i) groups.push_back(std::make_unique<LocalGroup>(size));
    };
    const GridGroups count = num_groups(config);
    make_groups(tensor_groups, count.tensor, config.tensor_parallel_size);
    make_groups(columns, count.column, config.pipeline_parallel_size);
    make_groups(context_groups, count.context, config.prefill_context_parallel_size);
    try {
      for (int rank = 0; rank < num_ranks(config); ++rank)
        threads.emplace_back([this, rank, &make_model] {
          try {
            run_rank(rank, make_model);
          } catch (...) {  // before it has started: nobody else would hear of it
            std::lock_guard lock(mutex);
            if (!error) error = std::current_exception();
            num_starting = 0;
            work_done.notify_one();
          }
        });
    } catch (...) {  // no more threads: the others wait for those that are not there
      for (auto rank = static_cast<int>(threads.size()); rank < num_ranks(config); ++rank)
        fail_rank(rank, "it was not started");
      end_threads();
      throw;
    }
    std::unique_lock lock(mutex);
    work_done.wait(lock, [this] { return num_starting == 0; });
  }

  ~State() { end_threads(); }

  void end_threads() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    work_given.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  // Every other rank is released from whatever it waits for.
  void fail_rank(int rank, const std::string& reason) {
    const GridPlace place = place_of(config, rank);
    for (auto& group : tensor_groups) group->fail_rank(place.tensor_rank, reason);
    for (auto& column : columns) column->fail_rank(place.stage, reason);
    for (auto& group : context_groups) group->fail_rank(place.context_rank, reason);
    if (expert_ranks.fail) expert_ranks.fail(reason);
  }

  void show_caches(int rank, const GridPlace& place, const ModelRunner& runner) const {
    if (kv_caches == nullptr) return;
    const LayerRange layers = layers_of(config, runner.model().spec().num_layers, place.stage);
    kv_caches->register_kv_caches({rank, place, layers, runner.kv_caches()});
  }

  // >>> task 4.4.executor: the life of a rank: make the runner, then step after step; an error releases the others
  void run_rank(int rank, const ModelFactory& make_model) {
    set_num_threads(std::max(config.threads / num_ranks(config), 1));
    const GridPlace place = place_of(config, rank);
    const GridGroups groups = groups_of(config, place);
    ParallelContext parallel;
    parallel.tp = &tensor_groups[static_cast<size_t>(groups.tensor)]->rank(place.tensor_rank);
    parallel.pp = &columns[static_cast<size_t>(groups.column)]->rank(place.stage);
    parallel.cp = &context_groups[static_cast<size_t>(groups.context)]->rank(place.context_rank);
    if (!expert_ranks.groups.empty()) parallel.ep = expert_ranks.groups[static_cast<size_t>(rank)];
    std::shared_ptr<void> device_owner;  // outlives the runner
    std::unique_ptr<ModelRunner> runner;
    guarded(rank, [&] {
      OpContext ctx = device != nullptr ? *device : make_rank_context(config.device, device_owner);
      if (config.device.is_cpu())
        ctx.parallel = &parallel;  // the threads' collectives work in the CPU's memory
      runner = start_rank(ctx, config, make_model, processor);
      show_caches(rank, place, *runner);
      std::lock_guard lock(mutex);
      const MemoryPlan mine = runner->memory();
      memory.weights += mine.weights;
      memory.kv += mine.kv;
      memory.activations += mine.activations;
      if (rank == 0) measured = runner->config();
      if (rank == 0) first_runner = runner.get();
    });
    {
      std::lock_guard lock(mutex);
      if (--num_starting == 0) {
        if (!error) config = measured;
        work_done.notify_one();
      }
    }
    for (int64_t done = 0;; ++done) {
      InFlight* work =
          nullptr;  // stays where it is: only the oldest is taken off, when all ranks have launched it
      {
        std::unique_lock lock(mutex);
        work_given.wait(lock, [&] { return stopping || given > done; });
        if (stopping) return;
        work = &in_flight[in_flight.size() - static_cast<size_t>(given - done)];
      }
      std::shared_ptr<const LaunchedStep> launched;
      guarded(rank, [&] {
        try {
          launched = runner->launch(work->step, work->known);
        } catch (const Error& error) {
          if (config.device.is_cpu()) throw;
          fail("step {}: {}", work->step.step, error.what());
        }
      });
      std::lock_guard lock(mutex);
      if (rank == answering_rank(config)) work->launched = std::move(launched);
      if (--work->num_waiting == 0) work_done.notify_one();
    }
  }

  template <class Work>
  void guarded(int rank, Work work) {
    try {
      work();
    } catch (const std::exception& exception) {
      {
        std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();  // before the others hear of it and fail in their turn
      }
      fail_rank(rank, exception.what());
    }
  }
  // <<< task 4.4.executor

  RunnerConfig measured;  // what rank 0's warm-up made of the configuration
  ModelRunner* first_runner = nullptr;
};

LocalExecutor::LocalExecutor(const DecoderSpec& spec, const RunnerConfig& config,
                             const ModelFactory& make_model, std::shared_ptr<LogitsProcessor> processor,
                             const OpContext* device, ExpertRanks expert_ranks,
                             std::shared_ptr<KvCacheRegistry> kv_caches)
    : state_(std::make_unique<State>(resolve_runner_config(spec, config), make_model, std::move(processor),
                                     device, std::move(expert_ranks), std::move(kv_caches))) {
  if (state_->error) std::rethrow_exception(state_->error);
}

LocalExecutor::~LocalExecutor() = default;

int LocalExecutor::max_in_flight() const {
  return max_steps_in_flight(state_->config);
}

Ticket LocalExecutor::submit(const SchedulerOutput& step) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->error) std::rethrow_exception(state_->error);
    LADDER_CHECK(std::ssize(state_->in_flight) < max_in_flight(),
                 "step {} is submitted while {} are in flight, which is all there may be", step.step,
                 state_->in_flight.size());
    state_->in_flight.push_back({step, std::exchange(state_->known, {}), num_ranks(state_->config), nullptr});
    ++state_->given;
  }
  state_->work_given.notify_all();
  return {++state_->last_ticket};
}

StepOutput LocalExecutor::collect(Ticket ticket) {
  std::unique_lock lock(state_->mutex);
  // Before anything else: what follows from a failure must not hide it.
  if (state_->error) std::rethrow_exception(state_->error);
  const int64_t oldest = state_->last_ticket - std::ssize(state_->in_flight) + 1;
  LADDER_CHECK(!state_->in_flight.empty() && ticket.value == oldest,
               "ticket {} is collected, the oldest step in flight is {}", ticket.value,
               state_->in_flight.empty() ? "none" : std::to_string(oldest));
  state_->work_done.wait(lock, [this] { return state_->in_flight.front().num_waiting == 0; });
  const State::InFlight step = std::move(state_->in_flight.front());
  state_->in_flight.pop_front();
  if (state_->error) std::rethrow_exception(state_->error);
  lock.unlock();
  try {
    StepOutput output = step.launched->collect();
    if (state_->config.pipeline_parallel_size > 1) state_->known.push_back(known_tokens(output));
    return output;
  } catch (const std::exception& error) {  // a kernel failed, which is found out here: say in which step
    std::lock_guard relock(state_->mutex);
    if (!state_->error)
      state_->error =
          dynamic_cast<const Error*>(&error) != nullptr
              ? std::make_exception_ptr(Error(fmt::format("step {}: {}", step.step.step, error.what())))
              : std::current_exception();
    std::rethrow_exception(state_->error);
  }
}

const RunnerConfig& LocalExecutor::config() const {
  return state_->config;
}

MemoryPlan LocalExecutor::memory() const {
  return state_->memory;
}

double LocalExecutor::replay_last_step(int64_t count) {
  LADDER_CHECK(state_->in_flight.empty(), "a step is replayed while {} are in flight",
               state_->in_flight.size());
  return state_->first_runner->replay_last_step(count);
}

std::unique_ptr<LocalExecutor> make_local_executor(const ExecutorOptions& options) {
  LADDER_CHECK(!options.runner_makers.proposer,
               "proposer: there is a maker of one, and this executor verifies no draft tokens");
  const RunnerConfig resolved = resolve_runner_config(options.spec, options.config);
  const auto& make_processor = options.runner_makers.logits_processor;
  return std::make_unique<LocalExecutor>(options.spec, resolved, model_factory(options, resolved),
                                         make_processor ? make_processor(options) : nullptr, nullptr,
                                         options.expert_ranks, options.runner_makers.kv_caches);
}

}  // namespace ladder
