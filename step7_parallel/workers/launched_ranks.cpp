#include "step7_parallel/workers/launched_ranks.h"

#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "step7_parallel/communicators/exchange_texts.h"
#include "step7_parallel/workers/run_fingerprint.h"
#include "step7_parallel/workers/worker_messages.h"

namespace ladder {

namespace {

enum class FromRank0 : uint8_t { engine, step, end_engine, dismiss };

void send_bytes(Communicator& group, const std::string& bytes, int to) {
  const Tensor size = Tensor::from<int64_t>({{std::ssize(bytes)}}, {1});
  Tensor content = Tensor::empty({std::ssize(bytes)}, DType::u8);
  std::memcpy(content.raw(), bytes.data(), bytes.size());
  group.send({}, size, to);
  group.send({}, content, to);
}

std::string recv_bytes(Communicator& group, int from) {
  const Tensor size = Tensor::empty({1}, DType::i64);
  group.recv({}, size, from);
  const Tensor content = Tensor::empty({size.data<int64_t>()[0]}, DType::u8);
  group.recv({}, content, from);
  return {static_cast<const char*>(content.raw()), static_cast<size_t>(content.numel())};
}

// No broadcast: that would be a call in which a rank that is at a later step waits for one at an earlier one.
template <class... T>
void tell_all(LaunchedWorld& world, FromRank0 kind, const T&... values) {
  std::string bytes;
  WireWriter{bytes}(kind, values...);
  for (int rank = 1; rank < world.size(); ++rank) send_bytes(*world.steps, bytes, rank);
}

// A rank of one engine, on every process of the world.
class LaunchedRank {
 public:
  // All come here; what is wrong on one, before any waits for another's share of a step, is an AgreedError on all.
  LaunchedRank(const RunnerConfig& config, const std::function<ExecutorOptions()>& make_options,
               LaunchedWorld& world)
      : config_(config) {
    ExecutorOptions options;
    agree_on_no_error(world, error_of([&] { options = make_options(); }));
    agree_on(world, to_bytes(run_fingerprint(options.model)), "this program and the files of --model");
    agree_on_no_error(world, error_of([&] { expect_a_gpu_for_each_rank(config_, world.local_rank + 1); }));
    const GridGroups mine = groups_of(config_, place_of(config_, world.rank())), count = num_groups(config_);
    tensor_ = world.make_group(mine.tensor);
    column_ = world.make_group(count.tensor + mine.column);
    if (config_.prefill_context_parallel_size > 1)
      context_ = world.make_group(count.tensor + count.column + mine.context);
    rank_.emplace(config_, world.rank(), world.local_rank,
                  RankGroups{config_.tensor_parallel_size > 1 ? tensor_.get() : nullptr,
                             config_.pipeline_parallel_size > 1 ? column_.get() : nullptr, context_.get()});
    bool loaded = false;
    const std::string error =
        error_of([&] { rank_->start(options, [&](auto&) { agree_on_no_error(world, {}), loaded = true; }); });
    if (!loaded) agree_on_no_error(world, error);
    if (!error.empty()) fail("{}", error);  // in the warm-up, where peers wait: nobody can be told any more
  }

  ProcessRank& operator*() { return *rank_; }
  ProcessRank* operator->() { return &*rank_; }

 private:
  // What the work throws, but an AgreedError, which goes on.
  template <class Work>
  static std::string error_of(Work work) {
    try {
      work();
    } catch (const AgreedError&) {
      throw;
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }

  RunnerConfig config_;
  std::unique_ptr<Communicator> tensor_, column_, context_;
  std::optional<ProcessRank> rank_;
};

}  // namespace

void agree_on_no_error(LaunchedWorld& world, const std::string& mine) {
  const std::vector<std::string> texts = exchange_texts(*world.calls, mine);
  for (size_t rank = 0; rank < texts.size(); ++rank)
    if (!texts[rank].empty())
      throw AgreedError(fmt::format("rank {} of {}: {}", rank, texts.size(), texts[rank]));
}

void agree_on(LaunchedWorld& world, const std::string& text, const std::string& what) {
  const std::vector<std::string> texts = exchange_texts(*world.calls, text);
  for (size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0])
      throw AgreedError(
          fmt::format("rank {} of {}: {} are others than rank 0's, expected the same on all ranks", rank,
                      texts.size(), what));
}

struct LaunchedExecutor::State {
  LaunchedWorld& world;
  RunnerConfig config;
  LaunchedRank rank;
  std::deque<std::shared_ptr<const LaunchedStep>> in_flight;  // of this process's rank
  int64_t last_ticket = 0;
  std::vector<KnownTokens> known;  // of the steps collected since the last one was submitted

  // What goes wrong in a step leaves the others waiting.
  template <class Work>
  auto or_broken(Work work) {
    try {
      return work();
    } catch (...) {
      world.broken = true;
      throw;
    }
  }
};

LaunchedExecutor::LaunchedExecutor(const ExecutorOptions& options, const std::vector<std::string>& arguments,
                                   LaunchedWorld& world) {
  const RunnerConfig& config = options.config;
  LADDER_CHECK(
      num_ranks(config) == world.size(),
      "{} ranks were started: expected --tensor-parallel-size times --pipeline-parallel-size{} to be that, it is {} "
      "times {}{}",
      world.size(), config.prefill_context_parallel_size == 1 ? "" : " times --prefill-context-parallel-size",
      config.tensor_parallel_size, config.pipeline_parallel_size,
      config.prefill_context_parallel_size == 1
          ? ""
          : fmt::format(" times {}", config.prefill_context_parallel_size));
  tell_all(world, FromRank0::engine, config, arguments);
  try {
    state_.reset(new State{world,
                           config,
                           LaunchedRank(
                               config, [&] { return options; }, world),
                           {},
                           0,
                           {}});
  } catch (const AgreedError&) {
    throw;
  } catch (...) {
    world.broken = true;
    throw;
  }
}

LaunchedExecutor::~LaunchedExecutor() {
  if (state_ == nullptr || state_->world.broken) return;
  try {
    tell_all(state_->world, FromRank0::end_engine);
  } catch (const std::exception&) {
    state_->world.broken = true;
  }
}

int LaunchedExecutor::max_in_flight() const {
  return max_steps_in_flight(state_->config);
}

const BatchConfig& LaunchedExecutor::batch() const {
  return state_->rank->runner().config().batch;
}

Ticket LaunchedExecutor::submit(const SchedulerOutput& step) {
  State& state = *state_;
  LADDER_CHECK(!state.world.broken, "the ranks have failed");
  LADDER_CHECK(std::ssize(state.in_flight) < max_in_flight(),
               "step {} is submitted while {} are in flight, which is all there may be", step.step,
               state.in_flight.size());
  const std::vector<KnownTokens> known = std::exchange(state.known, {});
  state.or_broken([&] {
    tell_all(state.world, FromRank0::step, step, known);
    state.in_flight.push_back(state.rank->launch(step, known));
  });
  return {++state.last_ticket};
}

StepOutput LaunchedExecutor::collect(Ticket ticket) {
  State& state = *state_;
  LADDER_CHECK(!state.world.broken, "the ranks have failed");
  const int64_t oldest = state.last_ticket - std::ssize(state.in_flight) + 1;
  LADDER_CHECK(!state.in_flight.empty() && ticket.value == oldest,
               "ticket {} is collected, the oldest step in flight is {}", ticket.value,
               state.in_flight.empty() ? "none" : std::to_string(oldest));
  return state.or_broken([&] {
    const auto launched = std::move(state.in_flight.front());
    state.in_flight.pop_front();
    StepOutput output =
        state.rank->answers()
            ? launched->collect()
            : from_bytes<StepOutput>(recv_bytes(*state.world.calls, answering_rank(state.config)));
    if (state.config.pipeline_parallel_size > 1) state.known.push_back(known_tokens(output));
    return output;
  });
}

ExecutorMaker make_launched_executor(std::vector<std::string> arguments, LaunchedWorld& world) {
  return [arguments = std::move(arguments), &world](const ExecutorOptions& options) -> MadeExecutor {
    LADDER_CHECK(!options.runner_makers.proposer,
                 "proposer: there is a maker of one, and this executor verifies no draft tokens");
    LADDER_CHECK(options.runner_makers.kv_caches == nullptr,
                 "a KV connector: it reads the ranks' caches, and these ranks may be on other machines");
    auto executor = std::make_unique<LaunchedExecutor>(options, arguments, world);
    const BatchConfig batch = executor->batch();
    return {std::move(executor), batch};
  };
}

void serve_launched_rank(
    const std::function<ExecutorOptions(const std::vector<std::string>& arguments)>& make_options,
    LaunchedWorld& world) {
  std::optional<LaunchedRank> rank;
  RunnerConfig config;
  std::vector<std::string> arguments;
  SchedulerOutput step;
  std::vector<KnownTokens> known;
  for (;;) {
    const std::string bytes = recv_bytes(*world.steps, 0);
    WireReader wire(bytes);
    switch (wire.value<FromRank0>()) {
      case FromRank0::engine:
        wire(config, arguments);
        try {
          rank.emplace(
              config, [&] { return make_options(arguments); }, world);
        } catch (const AgreedError& error) {  // rank 0 says it, and goes on to whatever it does then
          world.agreed_error = error.what();
        }
        break;
      case FromRank0::step: {
        LADDER_CHECK(rank.has_value(), "a step of no engine has come");
        wire(step, known);
        const auto launched = (*rank)->launch(step, known);
        if ((*rank)->answers()) send_bytes(*world.calls, to_bytes(launched->collect()), 0);
        break;
      }
      case FromRank0::end_engine:
        rank.reset();
        break;
      case FromRank0::dismiss:
        return;
      default:
        fail("a message that rank 0 does not send has come");
    }
    wire.expect_end();
  }
}

void dismiss_launched_ranks(LaunchedWorld& world) {
  if (!world.broken) tell_all(world, FromRank0::dismiss);
}

}  // namespace ladder
