#include "step8_advanced/disaggregation/partition/phase_executors.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step4_runner/kv_cache_size.h"
#include "step4_runner/rank_grid.h"
#include "step4_runner/rank_start.h"

namespace ladder {

namespace {

// What all threads of both lanes share.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t num_done = 0;  // steps, in the order in which they were
};

// One lane: a runner and its two threads.
class LaneExecutor final : public Executor {
 public:
  LaneExecutor(Shared& shared, StepPhase phase, LaneContexts& contexts, int threads)
      : shared_(shared),
        phase_(phase),
        contexts_(contexts),
        launcher_([this, threads] {
          set_num_threads(threads);
          launch_steps();
        }),
        collector_([this] { collect_steps(); }) {}

  ~LaneExecutor() override {
    {
      const std::lock_guard lock(shared_.mutex);
      stopping_ = true;
      tasks_.clear();
    }
    shared_.changed.notify_all();
    collector_.join();
    // Events of steps in flight go before the runner.
    add_task([this] {
      in_flight_.clear();
      runner.reset();
      ended_ = true;
    });
    launcher_.join();
  }

  // Does the work on the thread of the runner, and waits for it. Throws what it throws.
  void on_thread(std::function<void()> work) {
    const auto task = std::make_shared<std::packaged_task<void()>>(std::move(work));
    std::future<void> done = task->get_future();
    add_task([task] { (*task)(); });
    done.get();
  }

  // Of this lane: that which its runner is made with, and the others, of a runner that is made.
  OpContext main_context(const RunnerConfig& config) {
    OpContext ctx = contexts_.make(phase_).front();
    apply_config(config, ctx);
    return ctx;
  }
  void add_contexts() {
    runner->serve_phase(phase_);
    const std::vector<OpContext> contexts = contexts_.make(phase_);
    runner->add_contexts(std::span(contexts).subspan(1));
  }

  // Made, used and ended on its thread.
  std::unique_ptr<ModelRunner> runner;

  // `newcomers_from`: the lane that this one's sequences come from; null: none. While the oldest step of that one draws first
  // tokens, no step here is launched behind another: who comes would wait for both.
  void set_max_in_flight(int count, const LaneExecutor* newcomers_from) {
    max_in_flight_ = count;
    newcomers_from_ = newcomers_from;
  }
  int max_in_flight() const override {
    return newcomers_from_ != nullptr && newcomers_from_->draws_tokens() ? 1 : max_in_flight_;
  }

  Ticket submit(const SchedulerOutput& step) override {
    {
      const std::lock_guard lock(shared_.mutex);
      if (error_) std::rethrow_exception(error_);
      LADDER_CHECK(std::ssize(in_flight_) < max_in_flight_,
                   "step {} is submitted while {} are in flight, which is all there may be", step.step,
                   in_flight_.size());
    }
    // Here, where steps of both lanes are in the order of their submission.
    const size_t context = contexts_.choose(phase_, step);
    {
      const std::lock_guard lock(shared_.mutex);
      in_flight_.push_back({step.step, nullptr, {}, -1});
    }
    add_task([this, step, context] { launch(step, context); });
    return {step.step};
  }

  StepOutput collect(Ticket ticket) override {
    std::unique_lock lock(shared_.mutex);
    if (error_) std::rethrow_exception(error_);
    LADDER_CHECK(!in_flight_.empty() && in_flight_.front().step == ticket.value,
                 "ticket {} is collected, the oldest step in flight is {}", ticket.value,
                 in_flight_.empty() ? "none" : std::to_string(in_flight_.front().step));
    shared_.changed.wait(lock, [this] { return is_done(); });
    if (error_) std::rethrow_exception(error_);
    StepOutput output = std::move(*in_flight_.front().output);
    in_flight_.pop_front();
    return output;
  }

  // Under the mutex: whether collect() of the oldest step has nothing to wait for; since when, as Shared::num_done then.
  bool has_steps() const { return !in_flight_.empty(); }
  bool is_done() const { return error_ != nullptr || (has_steps() && in_flight_.front().output); }
  int64_t done_since() const { return error_ != nullptr ? -1 : in_flight_.front().place; }

 private:
  struct InFlight {
    int64_t step = 0;
    std::shared_ptr<const LaunchedStep> launched;
    std::optional<StepOutput> output;
    int64_t place = -1;  // of Shared::num_done
  };

  void add_task(std::function<void()> task) {
    {
      const std::lock_guard lock(shared_.mutex);
      tasks_.push_back(std::move(task));
    }
    shared_.changed.notify_all();
  }

  void launch_steps() {
    while (!ended_) {
      std::function<void()> task;
      {
        std::unique_lock lock(shared_.mutex);
        shared_.changed.wait(lock, [this] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  bool draws_tokens() const {
    const std::lock_guard lock(shared_.mutex);
    if (in_flight_.empty() || !in_flight_.front().launched) return false;
    return std::ranges::any_of(in_flight_.front().launched->rows, &LaunchedStep::Row::yields_token);
  }

  void launch(const SchedulerOutput& step, size_t context) {
    {
      const std::lock_guard lock(shared_.mutex);
      if (error_) return;
    }
    std::shared_ptr<const LaunchedStep> launched;
    try {
      runner->select_context(context);
      launched = runner->launch(step);
    } catch (...) {
      return set_error(step.step);
    }
    {
      const std::lock_guard lock(shared_.mutex);
      const auto is_it = [&](const InFlight& one) { return one.step == step.step; };
      std::find_if(in_flight_.begin(), in_flight_.end(), is_it)->launched = std::move(launched);
    }
    shared_.changed.notify_all();
  }

  void collect_steps() {
    const auto next = [this] {  // launched, and not read yet
      return std::find_if(in_flight_.begin(), in_flight_.end(),
                          [](const InFlight& one) { return one.launched && !one.output; });
    };
    for (;;) {
      std::shared_ptr<const LaunchedStep> launched;
      {
        std::unique_lock lock(shared_.mutex);
        shared_.changed.wait(lock, [&] { return stopping_ || next() != in_flight_.end(); });
        if (stopping_) return;
        launched = next()->launched;
      }
      StepOutput output;
      try {
        output = launched->collect();
        contexts_.on_done(phase_, output.forward_seconds);
      } catch (...) {
        set_error(launched->step);
        return;
      }
      {
        const std::lock_guard lock(shared_.mutex);
        InFlight& step = *next();
        step.output = std::move(output);
        step.place = shared_.num_done++;
      }
      shared_.changed.notify_all();
    }
  }

  // Called where an exception is being handled. A lane that failed stays failed.
  void set_error(int64_t step) {
    {
      const std::lock_guard lock(shared_.mutex);
      if (!error_) {
        error_ = std::current_exception();
        try {
          throw;
        } catch (const Error& error) {
          error_ = std::make_exception_ptr(Error(fmt::format("step {}: {}", step, error.what())));
        } catch (...) {
        }
      }
    }
    shared_.changed.notify_all();
  }

  Shared& shared_;
  const StepPhase phase_;
  LaneContexts& contexts_;
  int max_in_flight_ = 1;
  const LaneExecutor* newcomers_from_ = nullptr;
  // Under the mutex:
  std::deque<std::function<void()>> tasks_;
  std::deque<InFlight> in_flight_;  // oldest first
  std::exception_ptr error_;        // the first one
  bool stopping_ = false;
  bool ended_ = false;                // of the launching thread alone
  std::thread launcher_, collector_;  // last: they use all of it
};

// Of the decode lane: a row for each sequence.
RunnerConfig decode_config(RunnerConfig config) {
  config.batch.max_num_batched_tokens = config.batch.max_num_seqs;
  return config;
}

class TwoLanes final : public PhaseExecutors {
 public:
  TwoLanes(const ExecutorOptions& options, const RunnerConfig& config, std::shared_ptr<LaneContexts> contexts)
      : contexts_(std::move(contexts)),
        prefill_(shared_, StepPhase::prefill, *contexts_, std::max(config.threads - config.threads / 2, 1)),
        decode_(shared_, StepPhase::decode, *contexts_, std::max(config.threads / 2, 1)) {
    const ModelFactory make_model = model_factory(options, config);
    const auto make_processor = options.runner_makers.logits_processor;
    // Each after the other, as each measures what is left of the memory.
    prefill_.on_thread([&] {
      const OpContext ctx = prefill_.main_context(config);
      prefill_.runner = std::make_unique<ModelRunner>(ctx, config, make_model(ctx));
      prefill_.add_contexts();
      prefill_.runner->run_largest_steps();
    });
    decode_.on_thread([&] {
      const OpContext ctx = decode_.main_context(config);
      decode_.runner = std::make_unique<ModelRunner>(ctx, decode_config(config), *prefill_.runner);
      decode_.add_contexts();
      decode_.runner->run_largest_steps();
    });
    prefill_.on_thread([&] {
      const ModelRunner* const sharers[] = {decode_.runner.get()};
      prefill_.runner->size_cache(sharers);
    });
    decode_.on_thread([&] {
      decode_.runner->take_over_cache(*prefill_.runner);
      decode_.runner->end_warm_up();
      decode_.runner->replay_graphs();
    });
    prefill_.on_thread([&] { prefill_.runner->end_warm_up(); });
    contexts_->calibrate(
        prefill_.runner->model(), prefill_.runner->config(),
        [&](StepPhase phase, size_t context, int64_t num_seqs, int64_t num_tokens, int64_t num_computed) {
          LaneExecutor& lane = phase == StepPhase::decode ? decode_ : prefill_;
          double seconds = 0;
          lane.on_thread([&] {
            lane.runner->select_context(context);
            seconds = lane.runner->measure_step(num_seqs, num_tokens, num_computed);
          });
          return seconds;
        });
    for (LaneExecutor* lane : {&prefill_, &decode_}) {
      if (make_processor) lane->runner->sampler().add_processor(make_processor(options));
      lane->set_max_in_flight(max_steps_in_flight(config), lane == &decode_ ? &prefill_ : nullptr);
    }
  }

  Executor& of(StepPhase phase) override { return phase == StepPhase::decode ? decode_ : prefill_; }

  StepPhase wait() override {
    std::unique_lock lock(shared_.mutex);
    LADDER_CHECK(prefill_.has_steps() || decode_.has_steps(),
                 "no step is in flight that could be waited for");
    shared_.changed.wait(lock, [this] { return prefill_.is_done() || decode_.is_done(); });
    if (!prefill_.is_done() || !decode_.is_done())
      return decode_.is_done() ? StepPhase::decode : StepPhase::prefill;
    return decode_.done_since() < prefill_.done_since() ? StepPhase::decode : StepPhase::prefill;
  }

  bool on_waiting(int64_t num_tokens) override { return contexts_->on_waiting(num_tokens); }

  const BatchConfig& batch() const { return prefill_.runner->config().batch; }

 private:
  const std::shared_ptr<LaneContexts> contexts_;
  Shared shared_;
  LaneExecutor prefill_, decode_;  // the one that shares the other's cache ends first
};

}  // namespace

ExecutorMaker make_phase_executors(LaneContextsMaker make_contexts) {
  return [make_contexts = std::move(make_contexts)](const ExecutorOptions& options) {
    LADDER_CHECK(!options.runner_makers.proposer,
                 "proposer: there is a maker of one, and this executor verifies no draft tokens");
    LADDER_CHECK(options.runner_makers.kv_caches == nullptr,
                 "lanes for prompts and answers: the KV cache is shown to no other engine");
    const RunnerConfig config = resolve_runner_config(options.spec, options.config);
    LADDER_CHECK(num_ranks(config) == 1 && config.expert_replicas == 1,
                 "lanes for prompts and answers: expected one rank, got {}",
                 num_ranks(config) * config.expert_replicas);
    auto lanes = std::make_unique<TwoLanes>(
        options, config, make_contexts ? make_contexts(config) : make_plain_lane_contexts(config.device));
    const BatchConfig batch = lanes->batch();
    return MadeExecutor{nullptr, batch, std::move(lanes)};
  };
}

}  // namespace ladder
