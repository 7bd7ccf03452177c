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

GridTrace::GridTrace(const RunnerConfig& config) : config_(config) {
  const int tp = config.tensor_parallel_size, cp = config.prefill_context_parallel_size;
  const GridGroups count = num_groups(config);
  const auto of_context_rank = [&](int context_rank) {
    return cp == 1 ? "" : fmt::format(", context rank {}", context_rank);
  };
  for (int i = 0; i < count.tensor; ++i)
    tensor_groups_.push_back(
        group(fmt::format("tensor ranks of stage {}{}", i / cp, of_context_rank(i % cp)), tp));
  for (int i = 0; i < count.column; ++i)
    columns_.push_back(group(fmt::format("stages of tensor rank {}{}", i % tp, of_context_rank(i / tp)),
                             config.pipeline_parallel_size));
  for (int i = 0; i < count.context; ++i)
    context_groups_.push_back(
        group(fmt::format("context ranks of stage {}, tensor rank {}", i / tp, i % tp), cp));
}

void GridTrace::join(const OpContext& ctx) {
  // It is the rank's own, and the executor lends it to nobody else: the one place where a test can get between a rank
  // and its groups.
  auto& parallel = const_cast<ParallelContext&>(*ctx.parallel);
  const GridPlace place{parallel.tp->rank(), parallel.pp->rank(), parallel.cp->rank()};
  const GridGroups mine = groups_of(config_, place);
  const auto traced = [](std::vector<Group>& groups, int number, int rank_in_group,
                         Communicator*& communicator) {
    Group& group = groups[static_cast<size_t>(number)];
    const auto rank = static_cast<size_t>(rank_in_group);
    group.ranks[rank] = std::make_unique<TracedCommunicator>(*communicator, *group.trace);
    communicator = group.ranks[rank].get();
  };
  traced(tensor_groups_, mine.tensor, place.tensor_rank, parallel.tp);
  traced(columns_, mine.column, place.stage, parallel.pp);
  traced(context_groups_, mine.context, place.context_rank, parallel.cp);
}

std::string GridTrace::where() const {
  std::string text;
  for (const std::vector<Group>* groups : {&tensor_groups_, &columns_, &context_groups_})
    for (const Group& group : *groups) text += group.name + ":\n" + group.trace->str();
  return text;
}

std::string GridTrace::parting() const {
  for (const std::vector<Group>* groups : {&tensor_groups_, &columns_, &context_groups_})
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
