// 7.9: replicas that share out a layer's experts answer what one engine answers; they step together, sleep together, and end
// together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>

#include "step1_layers/core/error.h"
#include "step2_model/model_makers.h"
#include "step7_parallel/data/data_parallel_client.h"
#include "step7_parallel/data/lockstep_executor.h"
#include "step7_parallel/expert/expert_parallel.h"
#include "step7_parallel/expert/split_experts.h"
#include "tests/step6_engine/engine_client_fixture.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::becomes_idle;
using testing::Grid;
using ::testing::HasSubstr;
using testing::output_of;

// The layers of all replicas: how often each replica's were called; and one that fails once, in its so manieth call from now
// on, when somebody has read what came before.
struct Layers {
  std::array<std::atomic<int64_t>, 8> calls{};
  std::atomic<int> failing{-1};
  std::atomic<int> calls_left{0};
  std::atomic<bool> is_read{false};
};
class WatchedMlp final : public Mlp {
 public:
  WatchedMlp(std::unique_ptr<Mlp> mlp, Layers& layers, int replica)
      : mlp_(std::move(mlp)), layers_(layers), replica_(replica) {}
  std::vector<Parameter*> parameters() override { return mlp_->parameters(); }
  void process_after_load(const OpContext& ctx) override { mlp_->process_after_load(ctx); }
  void forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const override {
    ++layers_.calls[static_cast<size_t>(replica_)];
    if (layers_.failing == replica_ && --layers_.calls_left == 0) {
      layers_.is_read.wait(false);
      layers_.failing = -1;
      fail("the lamp went out");
    }
    mlp_->forward(ctx, norm, stream);
  }

 private:
  std::unique_ptr<Mlp> mlp_;
  Layers& layers_;
  int replica_;
};

// Engines that share out the experts, whole or by their width, behind a door that gives each of them its turn.
class Fleet {
 public:
  Fleet(const EngineOptions& one_rank, int num_replicas, Grid grid = {}, const std::string& kernel = {},
        bool whole_experts = true)
      : turns_(static_cast<size_t>(num_replicas)) {
    EngineOptions options = testing::on_grid(one_rank, grid);
    options.runner.expert_parallel = whole_experts;
    options.runner.expert_replicas = num_replicas;
    if (!kernel.empty()) options.runner.kernels["expert_exchange"] = kernel;
    options.makers.executor = make_lockstep_executor(groups_);
    DataParallelOptions door;
    door.num_replicas = num_replicas;
    door.balancer = "round_robin";
    door.first_pause = 10ms;
    door.max_pause = 50ms;
    door.on_stop = [groups = groups_] { groups->close(); };
    door.start = [this, options](int number) {
      return groups_->start(number, [&] { return start(options, number); });
    };
    client = std::make_unique<DataParallelClient>(std::move(door));
  }

  std::vector<int64_t> turns() const { return {turns_.begin(), turns_.end()}; }

  Layers layers;

 private:
  StartedEngine start(const EngineOptions& options, int number) {
    EngineOptions own = options;
    own.runner.expert_replica = number;
    own.makers.model.mlp = [this, number, whole = own.runner.expert_parallel](
                               const OpContext& ctx, int64_t layer, const DecoderSpec& spec, DType dtype,
                               const ModelMakers& makers) -> std::unique_ptr<Mlp> {
      const auto make = whole ? make_expert_parallel_mlp : make_split_experts_mlp;
      return std::make_unique<WatchedMlp>(make(ctx, layer, spec, dtype, makers), layers, number);
    };
    EngineClientOptions of_engine;
    of_engine.on_turn = [&turns = turns_[static_cast<size_t>(number)]] { ++turns; };
    std::unique_ptr<Engine> engine = testing::engine_with(own);
    StartedEngine started;
    started.config = engine->scheduler().config();
    started.client = std::make_unique<ThreadEngineClient>(std::move(engine), std::move(of_engine));
    return started;
  }

  const std::shared_ptr<LockstepGroups> groups_ = std::make_shared<LockstepGroups>();
  std::vector<std::atomic<int64_t>> turns_;  // of the replicas' loops

 public:
  std::unique_ptr<DataParallelClient> client;  // ends first
};

template <class Condition>
::testing::AssertionResult becomes(Condition condition) {
  for (const auto begin = StreamBuffer::Clock::now(); StreamBuffer::Clock::now() - begin < 60s;) {
    if (condition()) return ::testing::AssertionSuccess();
    std::this_thread::sleep_for(1ms);
  }
  return ::testing::AssertionFailure() << "not within a minute";
}

struct Checkpoint {
  explicit Checkpoint(const std::string& name)
      : golden(testing::load_golden(testing::golden_folder() / name)),
        spec(load_decoder_spec(golden.directory)),
        one_rank(testing::small_options(golden.directory, DeviceType::cpu, golden.max_model_len)),
        requests(testing::greedy_requests(golden)) {}

  testing::GoldenCheckpoint golden;
  DecoderSpec spec;
  EngineOptions one_rank;
  std::vector<Request> requests;
};

class Task7_9_Replicas : public ::testing::TestWithParam<std::string> {
 protected:
  const Checkpoint checkpoint = Checkpoint(GetParam());
};

TEST_P(Task7_9_Replicas, AnswerWhatOneEngineAnswers) {
  const std::vector<Request>& requests = checkpoint.requests;
  const auto alone = testing::engine_with(checkpoint.one_rank)->generate(requests);
  struct Case {
    int replicas;
    Grid grid;
    const char* exchange;
  };
  int cases = 0;
  for (const Case& one :
       {Case{2, {}, ""}, Case{4, {}, ""}, Case{2, {2, 1}, ""}, Case{2, {1, 2}, "all_gather"}}) {
    DecoderSpec fitting = checkpoint.spec;
    fitting.experts.intermediate_size = 0;  // an expert's width need not divide
    if (!testing::fits(fitting, one.grid) || fitting.experts.num_experts < one.replicas * one.grid.tp)
      continue;
    const std::string what = fmt::format("{}: {} replicas, tensor {} x pipeline {}, {}", GetParam(),
                                         one.replicas, one.grid.tp, one.grid.pp, one.exchange);
    Fleet fleet(checkpoint.one_rank, one.replicas, one.grid, one.exchange);
    for (size_t i = 0; i < 2; ++i)  // the others only run along
      EXPECT_TRUE(testing::equal_or_near_tie(alone[i].completions[0],
                                             output_of(fleet.client->submit(requests[i])).completions[0],
                                             1e-4, fmt::format("{}, prompt {} by itself", what, i)));
    std::vector<RequestStream> streams;
    for (const Request& request : requests) streams.push_back(fleet.client->submit(request));
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_TRUE(testing::equal_or_near_tie(alone[i].completions[0], output_of(streams[i]).completions[0],
                                             1e-4, fmt::format("{}, prompt {} of several", what, i)));
    ++cases;
  }
  EXPECT_GE(cases, 3);
}

TEST_P(Task7_9_Replicas, WithAPartOfEveryExpertAnswerWhatOneEngineAnswers) {
  const std::vector<Request>& requests = checkpoint.requests;
  const auto alone = testing::engine_with(checkpoint.one_rank)->generate(requests);
  int cases = 0;
  for (const auto& [replicas, grid] :
       {std::pair{2, Grid{}}, {4, Grid{}}, {2, Grid{2, 1}}, {2, Grid{1, 2}}, {3, Grid{}}}) {
    if (!testing::fits(checkpoint.spec, grid) ||
        checkpoint.spec.experts.intermediate_size % (replicas * grid.tp) != 0)
      continue;
    const std::string what =
        fmt::format("{}: {} replicas, tensor {} x pipeline {}", GetParam(), replicas, grid.tp, grid.pp);
    Fleet fleet(checkpoint.one_rank, replicas, grid, {}, false);
    // One by itself, while the others run along; then several, of different lengths.
    EXPECT_TRUE(testing::equal_or_near_tie(alone[0].completions[0],
                                           output_of(fleet.client->submit(requests[0])).completions[0], 1e-4,
                                           what + ", one prompt by itself"));
    std::vector<RequestStream> streams;
    for (const Request& request : requests) streams.push_back(fleet.client->submit(request));
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_TRUE(testing::equal_or_near_tie(alone[i].completions[0], output_of(streams[i]).completions[0],
                                             1e-4, fmt::format("{}, prompt {} of several", what, i)));
    ++cases;
  }
  EXPECT_GE(cases, 2);
}

INSTANTIATE_TEST_SUITE_P(Goldens, Task7_9_Replicas,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder(), true)),
                         [](const auto& info) { return info.param; });

// Too few blocks, prompts that begin alike, aborts: every replica's books balance, and who is not aborted gets one engine's answer.
TEST(Task7_9_Lockstep, ACrowdWithAbortsLeavesAllBooksBalanced) {
  Checkpoint checkpoint("mixtral_top2");
  EngineOptions& options = checkpoint.one_rank;
  options.runner.batch.block_size = 4;
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 16;
  options.runner.batch.max_num_seqs = 5;
  options.runner.batch.max_num_batched_tokens = 12;
  testing::Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    Request request;
    request.request_id = std::to_string(i);
    request.prompt_token_ids.assign(static_cast<size_t>(random.integer(0, 8)), 7);
    for (int64_t more = random.integer(1, 8); more > 0; --more)
      request.prompt_token_ids.push_back(
          static_cast<int32_t>(random.integer(1, checkpoint.spec.vocab_size - 1)));
    request.sampling.temperature = 0.0;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 4;
    request.sampling.max_tokens = random.integer(1, 24);
    requests.push_back(request);
  }
  const auto alone = testing::engine_with(options)->generate(requests);
  Fleet fleet(options, 2);
  std::map<size_t, RequestStream> streams;
  std::vector<bool> aborted(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    streams.emplace(i, fleet.client->submit(requests[i]));
    if (random.integer(0, 4) > 0) continue;
    const auto victim = static_cast<size_t>(random.integer(0, static_cast<int64_t>(i)));
    aborted[victim] = true;
    fleet.client->abort(requests[victim].request_id);
  }
  for (auto& [i, stream] : streams) {
    const RequestOutput output = output_of(stream);
    if (!aborted[i]) {
      EXPECT_TRUE(testing::equal_or_near_tie(alone[i].completions[0], output.completions[0], 1e-4,
                                             fmt::format("request {}", i)));
    }
  }
  ASSERT_TRUE(becomes_idle(*fleet.client));
  EXPECT_GT(fleet.client->stats().scheduler.num_preemptions, 0);
  EXPECT_EQ(fleet.layers.calls[0], fleet.layers.calls[1]) << "a step was not run by both";
  for (const EngineStats& stats : fleet.client->replica_stats()) {
    EXPECT_EQ(stats.scheduler.num_used_blocks, 0);
    EXPECT_EQ(stats.scheduler.num_running + stats.scheduler.num_waiting, 0);
    EXPECT_EQ(stats.error, "");
  }
}

TEST(Task7_9_Lockstep, WhoHasNoRequestRunsAlongAndThenAllSleep) {
  const Checkpoint checkpoint("mixtral_top2");
  Fleet fleet(checkpoint.one_rank, 3);
  for (auto& calls : fleet.layers.calls) calls = 0;  // of the warm-up
  const RequestOutput output = output_of(fleet.client->submit(checkpoint.requests[0]));
  const auto num_steps = static_cast<int64_t>(output.completions[0].token_ids.size());
  ASSERT_TRUE(becomes_idle(*fleet.client));
  EXPECT_TRUE(becomes([&] {
    const std::vector<int64_t> before = fleet.turns();
    std::this_thread::sleep_for(50ms);
    return before == fleet.turns();
  })) << "a replica without work does not sleep";
  for (size_t replica = 0; replica < 3; ++replica)
    EXPECT_EQ(fleet.layers.calls[replica], num_steps * checkpoint.spec.num_layers)
        << "replica " << replica << " has not run each step once, or has run steps that nobody had";
  for (const EngineStats& stats : fleet.client->replica_stats())
    EXPECT_TRUE(stats.metrics.num_steps == 0 || stats.metrics.num_steps == num_steps)
        << "steps without rows are no steps of an engine";
}

TEST(Task7_9_Lockstep, APausedReplicaRunsAlong) {
  const Checkpoint checkpoint("mixtral_top2");
  const auto alone = testing::engine_with(checkpoint.one_rank)->generate(checkpoint.requests);
  Fleet fleet(checkpoint.one_rank, 2);
  fleet.client->pause();
  RequestStream stream = fleet.client->submit(checkpoint.requests[0]);
  EXPECT_FALSE(stream.next(20ms).has_value());
  fleet.client->resume();
  EXPECT_TRUE(
      testing::equal_or_near_tie(alone[0].completions[0], output_of(stream).completions[0], 1e-4, ""));
}

TEST(Task7_9_Lockstep, AReplicaWithoutRequestsStaysUntilTheOthersHaveDrained) {
  const Checkpoint checkpoint("mixtral_top2");
  Fleet fleet(checkpoint.one_rank, 2);
  Request request = checkpoint.requests[0];
  RequestStream stream = fleet.client->submit(request);
  fleet.client->stop(60s);
  const RequestOutput output = output_of(stream);
  EXPECT_EQ(output.completions[0].finish_reason, FinishReason::length) << output.completions[0].error;
}

TEST(Task7_9_Lockstep, WhatIsRunningWhenAllAreStoppedIsAborted) {
  const Checkpoint checkpoint("mixtral_top2");
  Fleet fleet(checkpoint.one_rank, 2);
  std::vector<RequestStream> streams;
  for (const Request& request : checkpoint.requests) streams.push_back(fleet.client->submit(request));
  fleet.client->stop();
  for (RequestStream& stream : streams)
    EXPECT_NE(output_of(stream).completions[0].finish_reason, FinishReason::error);
}

TEST(Task7_9_Lockstep, TheDeathOfOneIsTheEndOfAllAndTheyStartAgainTogether) {
  const Checkpoint checkpoint("mixtral_top2");
  const auto alone = testing::engine_with(checkpoint.one_rank)->generate(checkpoint.requests);
  for (const int dying : {0, 1}) {  // who has the request, or who runs along
    Fleet fleet(checkpoint.one_rank, 2);
    fleet.layers.calls_left = 9;  // some tokens have been read by then, so the request is not tried again
    fleet.layers.failing = dying;
    RequestStream stream = fleet.client->submit(checkpoint.requests[0]);
    EXPECT_TRUE(stream.next(60s).has_value());
    fleet.layers.is_read = true;
    fleet.layers.is_read.notify_all();
    const auto begin = StreamBuffer::Clock::now();
    const RequestOutput output = output_of(stream);
    EXPECT_LT(StreamBuffer::Clock::now() - begin, 30s);
    EXPECT_EQ(output.completions[0].finish_reason, FinishReason::error);
    EXPECT_THAT(output.completions[0].error, HasSubstr("the lamp went out"));
    EXPECT_EQ(output.completions[0].error.find('\n'), std::string::npos);
    if (dying == 1) {
      EXPECT_THAT(output.completions[0].error, HasSubstr("replica 1, which has a share of the experts"));
    }
    EXPECT_TRUE(becomes([&] { return fleet.client->stats().num_live_replicas == 2; }));
    for (size_t i = 0; i < 2; ++i) {
      const RequestOutput again = output_of(fleet.client->submit(checkpoint.requests[i]));
      EXPECT_TRUE(testing::equal_or_near_tie(alone[i].completions[0], again.completions[0], 1e-4, ""));
    }
  }
}

TEST(Task7_9_Lockstep, WhatOneCannotLoadIsSaidAndNobodyWaitsForIt) {
  const Checkpoint checkpoint("mixtral_top2");
  for (const int failing : {0, 1})
    for (const bool before_it_joins : {false, true})
      for (const auto& [early, late] :
           {std::pair{0ms, 20ms}, {20ms, 0ms}}) {  // who fails, and who waits for it
        const auto groups = std::make_shared<LockstepGroups>();
        EngineOptions options = checkpoint.one_rank;
        options.runner.expert_parallel = true;
        options.runner.expert_replicas = 2;
        options.makers.executor = make_lockstep_executor(groups);
        options.makers.model.mlp = make_expert_parallel_mlp;
        const auto load = [&](int number) -> StartedEngine {
          EngineOptions own = options;
          own.runner.expert_replica = number;
          std::this_thread::sleep_for(number == failing ? early : late);
          ModelFolder folder = open_model_folder(own.model);
          if (number == failing) own.model = "a_folder_that_is_not_there";
          if (number == failing && before_it_joins) folder = open_model_folder(own.model);
          std::unique_ptr<Engine> engine = load_engine(own, folder);
          SchedulerConfig config = engine->scheduler().config();
          return {std::make_unique<ThreadEngineClient>(std::move(engine)), std::move(config)};
        };
        DataParallelOptions door;
        door.num_replicas = 2;
        door.on_stop = [groups] { groups->close(); };
        door.start = [&](int number) { return groups->start(number, [&] { return load(number); }); };
        try {
          DataParallelClient client(std::move(door));
          FAIL() << "it started";
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("a_folder_that_is_not_there"));
        }
      }
}

TEST(Task7_9_Lockstep, WhatDoesNotFitIsNamedWithItsNumbers) {
  const auto error_of = [](const std::string& name, int replicas) -> std::string {
    Checkpoint checkpoint(name);
    try {
      const Fleet fleet(checkpoint.one_rank, replicas);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of("qwen3_tied", 2), HasSubstr("the model has no experts"));
  EXPECT_THAT(error_of("mixtral_top2", 5),
              HasSubstr("the model's 4 experts are fewer than the 5 ranks of 5 replicas"));
}

}  // namespace
}  // namespace ladder
