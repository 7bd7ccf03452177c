#include "tests/step7_parallel/watched_executor.h"

#include <gtest/gtest.h>

#include <utility>

#include "step1_layers/core/error.h"
#include "step4_runner/kv_cache_size.h"

namespace ladder::testing {

GridTrace::Group GridTrace::group(std::string name, int size) {
  Group group{std::move(name), std::make_unique<CallTrace>(size, CallTrace::kAll), {}};
  group.ranks.resize(static_cast<size_t>(size));
  return group;
}

GridTrace::GridTrace(const RunnerConfig& config) {
  for (int stage = 0; stage < config.pipeline_parallel_size; ++stage)
    stages_.push_back(group(fmt::format("tensor ranks of stage {}", stage), config.tensor_parallel_size));
  for (int column = 0; column < config.tensor_parallel_size; ++column)
    columns_.push_back(group(fmt::format("stages of tensor rank {}", column), config.pipeline_parallel_size));
}

void GridTrace::join(const OpContext& ctx) {
  // It is the rank's own, and the executor lends it to nobody else: the one place where a test can get between a rank
  // and its groups.
  auto& parallel = const_cast<ParallelContext&>(*ctx.parallel);
  const auto tensor_rank = static_cast<size_t>(parallel.tp->rank()),
             stage = static_cast<size_t>(parallel.pp->rank());
  const auto traced = [](Group& group, size_t rank, Communicator*& communicator) {
    group.ranks[rank] = std::make_unique<TracedCommunicator>(*communicator, *group.trace);
    communicator = group.ranks[rank].get();
  };
  traced(stages_[stage], tensor_rank, parallel.tp);
  traced(columns_[tensor_rank], stage, parallel.pp);
}

std::string GridTrace::where() const {
  std::string text;
  for (const std::vector<Group>* groups : {&stages_, &columns_})
    for (const Group& group : *groups) text += group.name + ":\n" + group.trace->str();
  return text;
}

std::string GridTrace::parting() const {
  for (const std::vector<Group>* groups : {&stages_, &columns_})
    for (const Group& group : *groups)
      if (const std::string where = group.trace->parting(); !where.empty()) return group.name + ": " + where;
  return {};
}

WatchedExecutor::WatchedExecutor(const DecoderSpec& spec, const RunnerConfig& config,
                                 const ModelFactory& make_model, std::chrono::milliseconds deadline)
    : trace_(config), watchdog_(deadline, [this] { return trace_.where(); }) {
  const ModelFactory joined = [this, make_model](const OpContext& ctx) {
    trace_.join(ctx);
    return make_model(ctx);
  };
  executor_ =
      watchdog_.guard("the start", [&] { return std::make_unique<LocalExecutor>(spec, config, joined); });
}

WatchedExecutor::~WatchedExecutor() {
  executor_.reset();  // its ranks use the trace
  if (failed_ || num_in_flight_ > 0) return;
  EXPECT_EQ(trace_.parting(), "");
}

Ticket WatchedExecutor::submit(const SchedulerOutput& step) {
  failed_ = true;  // until it is not
  const Ticket ticket = executor_->submit(step);
  failed_ = false;
  ++num_in_flight_;
  return ticket;
}

StepOutput WatchedExecutor::collect(Ticket ticket) {
  failed_ = true;
  StepOutput output =
      watchdog_.guard(fmt::format("ticket {}", ticket.value), [&] { return executor_->collect(ticket); });
  failed_ = false;
  --num_in_flight_;
  return output;
}

MadeExecutor make_watched_executor(const ExecutorOptions& options) {
  const RunnerConfig resolved = resolve_runner_config(options.spec, options.config);
  auto executor = std::make_unique<WatchedExecutor>(options.spec, resolved, model_factory(options, resolved));
  const BatchConfig batch = executor->batch();
  return {std::move(executor), batch};
}

}  // namespace ladder::testing
