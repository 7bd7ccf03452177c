#include "step4_runner/local_executor.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/distributed/local_group.h"

#ifdef LADDER_HAS_CUDA
#include "step1_layers/core/device_cuda.h"
#endif

namespace ladder {

namespace {

// `owner` keeps what the context points to.
OpContext make_context(Device device, [[maybe_unused]] std::shared_ptr<void>& owner) {
  if (device.is_cpu()) return {};
#ifdef LADDER_HAS_CUDA
  if (device.type == DeviceType::cuda) {
    const auto cuda = std::make_shared<CudaContext>(device.index);
    owner = cuda;
    return cuda->op_context();
  }
#endif
  fail("this build of ladder has no {}", device_name(device));
}

}  // namespace

struct LocalExecutor::State {
  // A step that was submitted and not collected. Ranks launch it one after the other, in the order of
  // submission.
  struct InFlight {
    SchedulerOutput step;
    int num_waiting = 0;                           // ranks that have not launched it
    std::shared_ptr<const LaunchedStep> launched;  // by rank 0
  };

  RunnerConfig config;
  std::shared_ptr<LogitsProcessor> processor;  // rank 0's; may be null
  const OpContext* device;                     // nullptr: each rank makes its own
  LocalGroup group;
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

  int64_t last_ticket = 0;  // of the caller's thread alone

  State(const RunnerConfig& resolved, const ModelFactory& make_model,
        std::shared_ptr<LogitsProcessor> logits_processor, const OpContext* given_device)
      : config(resolved),
        processor(std::move(logits_processor)),
        device(given_device),
        group(resolved.tensor_parallel_size),
        num_starting(resolved.tensor_parallel_size) {
    LADDER_CHECK(config.device.is_cpu() || config.tensor_parallel_size == 1,
                 "--tensor-parallel-size {}: on a GPU this version runs one rank",
                 config.tensor_parallel_size);
    for (int rank = 0; rank < config.tensor_parallel_size; ++rank)
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
    std::unique_lock lock(mutex);
    work_done.wait(lock, [this] { return num_starting == 0; });
  }

  ~State() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    work_given.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  int max_in_flight() const {
    return config.device.is_cpu() || !config.async_scheduling ? 1 : ModelRunner::kMaxInFlight;
  }

  // >>> task 4.4.executor: the life of a rank: make the runner, then step after step; an error releases the others
  void run_rank(int rank, const ModelFactory& make_model) {
    set_num_threads(config.threads / config.tensor_parallel_size);
    ParallelContext parallel;
    parallel.tp = &group.rank(rank);
    std::shared_ptr<void> device_owner;  // outlives the runner
    std::unique_ptr<ModelRunner> runner;
    guarded(rank, [&] {
      OpContext ctx = device != nullptr ? *device : make_context(config.device, device_owner);
      if (config.device.is_cpu())
        ctx.parallel = &parallel;  // the threads' collectives work in the CPU's memory
      ctx.batch_invariant = config.dtype == DType::f32;
      ctx.dependent_launch &= config.dependent_launch;
      ctx.kernels = config.kernels;
      runner = std::make_unique<ModelRunner>(ctx, config, make_model(ctx));
      runner->warm_up();
      if (rank == 0 && processor) runner->sampler().add_processor(processor);
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
          launched = runner->launch(work->step);
        } catch (const Error& error) {
          if (config.device.is_cpu()) throw;
          fail("step {}: {}", work->step.step, error.what());
        }
      });
      std::lock_guard lock(mutex);
      if (rank == 0) work->launched = std::move(launched);
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
      group.fail_rank(rank, exception.what());
    }
  }
  // <<< task 4.4.executor

  RunnerConfig measured;  // what rank 0's warm-up made of the configuration
  ModelRunner* first_runner = nullptr;
};

LocalExecutor::LocalExecutor(const DecoderSpec& spec, const RunnerConfig& config,
                             const ModelFactory& make_model, std::shared_ptr<LogitsProcessor> processor,
                             const OpContext* device)
    : state_(std::make_unique<State>(resolve_runner_config(spec, config), make_model, std::move(processor),
                                     device)) {
  if (state_->error) std::rethrow_exception(state_->error);
}

LocalExecutor::~LocalExecutor() = default;

int LocalExecutor::max_in_flight() const {
  return state_->max_in_flight();
}

Ticket LocalExecutor::submit(const SchedulerOutput& step) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->error) std::rethrow_exception(state_->error);
    LADDER_CHECK(std::ssize(state_->in_flight) < max_in_flight(),
                 "step {} is submitted while {} are in flight, which is all there may be", step.step,
                 state_->in_flight.size());
    state_->in_flight.push_back({step, state_->config.tensor_parallel_size, nullptr});
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
    return step.launched->collect();
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
  return std::make_unique<LocalExecutor>(
      options.spec, resolved,
      [&](const OpContext& ctx) {
        ModelOptions model;
        model.dtype = resolved.dtype;
        model.load_format = resolved.load_format;
        model.max_model_len = resolved.batch.max_model_len;
        model.makers = options.model_makers;
        if (tp_group(ctx).rank() == 0) model.progress = options.progress;
        return load_model(ctx, options.model, options.spec, model);
      },
      make_processor ? make_processor(options) : nullptr);
}

}  // namespace ladder
