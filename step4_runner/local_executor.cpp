#include "step4_runner/local_executor.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/distributed/local_group.h"

namespace ladder {

struct LocalExecutor::State {
  RunnerConfig config;
  LocalGroup group;
  std::vector<std::thread> threads;

  // Guarded by the mutex. A rank works when `given` is ahead of what it has done; the last one to finish
  // wakes collect().
  std::mutex mutex;
  std::condition_variable work_given, work_done;
  int64_t given = 0;    // steps handed to the ranks; the making of the runners is number 0
  int num_working = 0;  // ranks that have not finished it
  bool stopping = false;
  std::exception_ptr error;  // the first one; it stays
  SchedulerOutput step;
  StepOutput output;
  MemoryPlan memory;

  int64_t last_ticket = 0;  // of the caller's thread alone
  bool in_flight = false;

  State(const RunnerConfig& resolved, const ModelFactory& make_model)
      : config(resolved), group(resolved.tensor_parallel_size), num_working(resolved.tensor_parallel_size) {
    for (int rank = 0; rank < config.tensor_parallel_size; ++rank)
      threads.emplace_back([this, rank, &make_model] { run_rank(rank, make_model); });
    wait_until_done();
  }

  ~State() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    work_given.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void wait_until_done() {
    std::unique_lock lock(mutex);
    work_done.wait(lock, [this] { return num_working == 0; });
  }

  // >>> task 4.4: the life of a rank: make the runner, then step after step; an error releases the others
  void run_rank(int rank, const ModelFactory& make_model) {
    set_num_threads(config.threads / config.tensor_parallel_size);
    ParallelContext parallel;
    parallel.tp = &group.rank(rank);
    OpContext ctx;
    ctx.parallel = &parallel;
    ctx.batch_invariant = config.dtype == DType::f32;
    ctx.kernels = config.kernels;
    std::unique_ptr<ModelRunner> runner;
    guarded(rank, [&] {
      runner = std::make_unique<ModelRunner>(ctx, config, make_model(ctx));
      runner->warm_up();
      std::lock_guard lock(mutex);
      const MemoryPlan mine = runner->memory();
      memory.weights += mine.weights;
      memory.kv += mine.kv;
      memory.activations += mine.activations;
    });
    for (int64_t done = 0;; ++done) {
      {
        std::unique_lock lock(mutex);
        if (--num_working == 0) work_done.notify_one();
        work_given.wait(lock, [&] { return stopping || given > done; });
        if (stopping) return;
      }
      guarded(rank, [&] {
        StepOutput result = runner->execute(step);
        if (rank == 0) output = std::move(result);
      });
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
  // <<< task 4.4
};

LocalExecutor::LocalExecutor(const DecoderSpec& spec, const RunnerConfig& config,
                             const ModelFactory& make_model)
    : state_(std::make_unique<State>(resolve_runner_config(spec, config), make_model)) {
  if (state_->error) std::rethrow_exception(state_->error);
}

LocalExecutor::~LocalExecutor() = default;

Ticket LocalExecutor::submit(const SchedulerOutput& step) {
  LADDER_CHECK(!state_->in_flight, "step {} is submitted while another is in flight", step.step);
  {
    std::lock_guard lock(state_->mutex);
    if (state_->error) std::rethrow_exception(state_->error);
    state_->step = step;
    state_->num_working = state_->config.tensor_parallel_size;
    ++state_->given;
  }
  state_->work_given.notify_all();
  state_->in_flight = true;
  return {++state_->last_ticket};
}

StepOutput LocalExecutor::collect(Ticket ticket) {
  LADDER_CHECK(state_->in_flight && ticket.value == state_->last_ticket,
               "ticket {} is collected, the step in flight is {}", ticket.value,
               state_->in_flight ? std::to_string(state_->last_ticket) : "none");
  state_->wait_until_done();
  state_->in_flight = false;
  if (state_->error) std::rethrow_exception(state_->error);
  return std::move(state_->output);
}

const RunnerConfig& LocalExecutor::config() const {
  return state_->config;
}

MemoryPlan LocalExecutor::memory() const {
  return state_->memory;
}

std::unique_ptr<LocalExecutor> make_local_executor(
    const std::filesystem::path& directory, const DecoderSpec& spec, const RunnerConfig& config,
    std::function<void(int64_t done, int64_t total)> progress) {
  const RunnerConfig resolved = resolve_runner_config(spec, config);
  return std::make_unique<LocalExecutor>(spec, resolved, [&](const OpContext& ctx) {
    ModelOptions options;
    options.dtype = resolved.dtype;
    options.load_format = resolved.load_format;
    options.max_model_len = resolved.max_model_len;
    if (tp_group(ctx).rank() == 0) options.progress = progress;
    return load_model(ctx, directory, spec, options);
  });
}

}  // namespace ladder
