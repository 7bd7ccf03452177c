// 7.9: experts that change places while the engine runs: answers stay what they are, and the ranks' work becomes more even.
#include "step7_parallel/expert/balanced_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <mutex>

#include "step1_layers/core/error.h"
#include "step2_model/decoder/decoder_model.h"
#include "step4_runner/memory.h"
#include "step4_runner/rank_grid.h"
#include "step7_parallel/communicators/kinds.h"
#include "step7_parallel/data/data_parallel_client.h"
#include "step7_parallel/data/lockstep_executor.h"
#include "step7_parallel/expert/expert_moves.h"
#include "tests/step6_engine/engine_client_fixture.h"
#include "tests/step7_parallel/engine_on_grid.h"
#include "tests/step7_parallel/failing_communicator.h"
#include "tests/support/in_time.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::engine_with;
using testing::Grid;
using ::testing::HasSubstr;
using ::testing::Ne;

// What the turns of all stages and replicas did, in their order.
class Turns {
 public:
  void add(const ExpertsMoved& moved) {
    std::lock_guard lock(mutex_);
    turns_.push_back(moved);
  }
  std::vector<ExpertsMoved> all() const {
    std::lock_guard lock(mutex_);
    return turns_;
  }
  int64_t layers_moved() const {
    int64_t sum = 0;
    for (const ExpertsMoved& turn : all()) sum += turn.layers_moved;
    return sum;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<ExpertsMoved> turns_;
};

EngineOptions balanced(const EngineOptions& one_rank, Grid grid, int64_t redundant, int64_t interval,
                       Turns& turns, double least_gain = ExpertBalance{}.least_gain) {
  EngineOptions options = testing::on_grid(one_rank, grid);
  options.runner.expert_parallel = options.runner.balance_experts = true;
  options.runner.num_redundant_experts = redundant;
  move_experts_by_load(options.makers.model, {redundant, interval, least_gain,
                                              [&turns](const ExpertsMoved& moved) { turns.add(moved); }});
  return options;
}

// Replicas that step together, whose door gives each of them its turn.
DataParallelOptions fleet_of(EngineOptions options, int num_replicas) {
  const auto groups = std::make_shared<LockstepGroups>();
  options.runner.expert_replicas = num_replicas;
  options.makers.executor = make_lockstep_executor(groups);
  DataParallelOptions door;
  door.num_replicas = num_replicas;
  door.balancer = "round_robin";
  door.on_stop = [groups] { groups->close(); };
  door.start = [options](int number) {
    EngineOptions own = options;
    own.runner.expert_replica = number;
    std::unique_ptr<Engine> engine = engine_with(own);
    StartedEngine started;
    started.config = engine->scheduler().config();
    started.client = std::make_unique<ThreadEngineClient>(std::move(engine));
    return started;
  };
  return door;
}

struct Golden {
  explicit Golden(const std::string& name)
      : checkpoint(testing::load_golden(testing::golden_folder() / name)),
        spec(load_decoder_spec(checkpoint.directory)),
        one_rank(testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len)),
        requests(testing::greedy_requests(checkpoint)) {}

  bool fits(Grid grid, int64_t ranks) const {
    DecoderSpec fitting = spec;
    fitting.experts.intermediate_size = 0;  // an expert's width need not divide
    return testing::fits(fitting, grid) && spec.experts.num_experts >= ranks;
  }
  // As few as fit, and one copy more on each rank.
  std::vector<int64_t> redundant(int64_t ranks) const {
    const int64_t experts = spec.experts.num_experts, least = (ranks - experts % ranks) % ranks;
    if (least + ranks > experts * (ranks - 1)) return {least};
    return {least, least + ranks};
  }

  testing::GoldenCheckpoint checkpoint;
  DecoderSpec spec;
  EngineOptions one_rank;
  std::vector<Request> requests;
};

class Task7_9_Moving : public ::testing::TestWithParam<std::string> {
 protected:
  const Golden golden = Golden(GetParam());
};

TEST_P(Task7_9_Moving, ExpertsAnswerWhatOneRankAnswers) {
  const auto alone = engine_with(golden.one_rank)->generate(golden.requests);
  Turns turns;
  int grids = 0;
  for (const Grid grid : {Grid{2, 1}, Grid{4, 1}, Grid{2, 2}, Grid{3, 1}}) {
    if (!golden.fits(grid, grid.tp)) continue;
    for (const int64_t redundant : golden.redundant(grid.tp))
      for (const int64_t interval : {1, 5}) {
        const auto outputs = engine_with(balanced(golden.one_rank, grid, redundant, interval, turns))
                                 ->generate(golden.requests);
        for (size_t i = 0; i < outputs.size(); ++i)
          EXPECT_TRUE(testing::equal_or_near_tie(
              alone[i].completions[0], outputs[i].completions[0], 1e-4,
              fmt::format("{}, tensor {} x pipeline {}, {} redundant, every {} steps, prompt {}", GetParam(),
                          grid.tp, grid.pp, redundant, interval, i)));
      }
    ++grids;
  }
  EXPECT_GE(grids, 1);
  EXPECT_GT(turns.layers_moved(), 0);
  for (const ExpertsMoved& turn : turns.all()) {
    EXPECT_LE(turn.mean_after, turn.mean_before);
    EXPECT_LE(turn.worst_after, turn.worst_before);
    EXPECT_EQ(turn.layers_moved > 0, turn.bytes > 0);
  }
}

TEST_P(Task7_9_Moving, ExpertsOfReplicasAnswerWhatOneEngineAnswers) {
  const auto alone = engine_with(golden.one_rank)->generate(golden.requests);
  Turns turns;
  struct Case {
    int replicas;
    Grid grid;
    const char* exchange;
  };
  int cases = 0;
  for (const Case& one : {Case{2, {}, ""}, Case{4, {}, "all_gather"}, Case{2, {2, 1}, ""}}) {
    const int64_t ranks = one.replicas * one.grid.tp;
    if (!golden.fits(one.grid, ranks)) continue;
    EngineOptions options =
        balanced(golden.one_rank, one.grid, golden.redundant(ranks).back(), cases % 2 == 0 ? 1 : 3, turns);
    if (one.exchange[0] != '\0') options.runner.kernels["expert_exchange"] = one.exchange;
    DataParallelClient client(fleet_of(options, one.replicas));
    std::vector<RequestStream> streams;
    for (const Request& request : golden.requests) streams.push_back(client.submit(request));
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_TRUE(testing::equal_or_near_tie(
          alone[i].completions[0], testing::output_of(streams[i]).completions[0], 1e-4,
          fmt::format("{}, {} replicas of {}, prompt {}", GetParam(), one.replicas, one.grid.tp, i)));
    ++cases;
  }
  EXPECT_GE(cases, 1);
  EXPECT_GT(turns.layers_moved(), 0);
}

// Copies of an expert are alike also where nothing was loaded: whichever of them a token goes to, its answer is one engine's.
TEST_P(Task7_9_Moving, ExpertsOfReplicasWithDummyWeightsAnswerWhatOneEngineAnswers) {
  EngineOptions dummy = golden.one_rank;
  dummy.runner.load_format = LoadFormat::dummy;
  const auto alone = engine_with(dummy)->generate(golden.requests);
  Turns turns;
  DataParallelClient client(fleet_of(balanced(dummy, {}, golden.redundant(2).back(), 4, turns), 2));
  std::vector<RequestStream> streams;
  for (const Request& request : golden.requests) streams.push_back(client.submit(request));
  for (size_t i = 0; i < streams.size(); ++i)
    EXPECT_TRUE(testing::equal_or_near_tie(alone[i].completions[0],
                                           testing::output_of(streams[i]).completions[0], 1e-4,
                                           fmt::format("{}, prompt {}", GetParam(), i)));
}

TEST_P(Task7_9_Moving, ExpertsTakeTheMemoryThatIsPlanned) {
  const int ranks = golden.fits({2, 1}, 2) ? 2 : 3;
  const int64_t redundant = golden.redundant(ranks).back();
  RunnerConfig config = golden.one_rank.runner;
  config.dtype = DType::f32;
  config.tensor_parallel_size = ranks;
  config.expert_parallel = config.balance_experts = true;
  config.num_redundant_experts = redundant;
  config.batch.max_model_len = 64;
  run_ranks(ranks, [&](int rank, const ParallelContext& parallel) {
    OpContext ctx;
    ctx.parallel = &parallel;
    ModelOptions options;
    options.max_model_len = 64;
    move_experts_by_load(options.makers, {redundant});
    EXPECT_EQ(load_model(ctx, golden.checkpoint.directory, golden.spec, options)->weight_bytes(),
              predict_rank_memory(golden.spec, config, place_of(config, rank)).weights);
  });
}

INSTANTIATE_TEST_SUITE_P(Goldens, Task7_9_Moving,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder(), true)),
                         [](const auto& info) { return info.param; });

// A model whose router sends each token to expert 0 or 1 first, and then to the first ones that have nothing to say.
void skew_router(ModelMakers& makers) {
  makers.around_decoder = [inner = makers.around_decoder](std::unique_ptr<Model> decoder) {
    for (Parameter* parameter : dynamic_cast<DecoderModel&>(*decoder).parameters()) {
      if (!parameter->name.ends_with(".router.weight")) continue;
      const Tensor& router = parameter->tensor;
      router.fill_bytes(0);
      for (int64_t i = 0; i < router.dim(1); ++i) {
        router.at<float>({0, i}) = i % 3 == 0 ? 4.0f : -2.0f;
        router.at<float>({1, i}) = -router.at<float>({0, i});
      }
    }
    return inner ? inner(std::move(decoder)) : std::move(decoder);
  };
}

TEST(Task7_9_Balanced, RanksAreAfterASkewedRouterHasBeenSeen) {
  Golden golden("qwen3_moe_normed");  // 8 experts
  for (Request& request : golden.requests) request.sampling.max_tokens = 12;
  EngineOptions skewed = golden.one_rank;
  skew_router(skewed.makers.model);
  const auto alone = engine_with(skewed)->generate(golden.requests);
  for (const int64_t redundant : {0, 2}) {
    Turns turns;
    EngineOptions options = balanced(golden.one_rank, {2, 1}, redundant, 6, turns);
    skew_router(options.makers.model);
    const auto outputs = engine_with(options)->generate(golden.requests);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(testing::equal_or_near_tie(alone[i].completions[0], outputs[i].completions[0], 1e-4, ""));
    ASSERT_GE(turns.all().size(), 2u);
    const ExpertsMoved first = turns.all()[0], second = turns.all()[1];
    EXPECT_EQ(first.layers_moved, first.layers);
    EXPECT_LT(first.mean_after, first.mean_before - 0.2);
    EXPECT_LT(first.worst_after, first.worst_before);
    // What was foreseen comes about: tokens that come later meet ranks that share them more evenly.
    EXPECT_LT(second.mean_before, first.mean_before - 0.2);
    EXPECT_THAT(first.str(), HasSubstr(fmt::format("imbalance mean {:.2f}, worst {:.2f} before, mean {:.2f}",
                                                   first.mean_before, first.worst_before, first.mean_after)));
  }
}

// A better placement is taken if the imbalance falls by the share that is asked for: by the first turn's own gain, and not by more.
TEST(Task7_9_Balanced, ALayerStaysAsItIsForASmallGain) {
  const Golden golden("qwen3_moe_normed");
  const auto first_turn = [&](double least_gain) {
    Turns turns;
    EngineOptions options = balanced(golden.one_rank, {2, 1}, 0, 6, turns, least_gain);
    skew_router(options.makers.model);
    engine_with(options)->generate(golden.requests);
    return turns.all().at(0);
  };
  const ExpertsMoved free = first_turn(0);
  ASSERT_EQ(free.layers_moved, free.layers);
  const ExpertsMoved none = first_turn(1);
  EXPECT_EQ(none.layers_moved + none.copies, 0);
  EXPECT_EQ(none.mean_before, free.mean_before);
  EXPECT_EQ(none.mean_after, none.mean_before) << "it is said what they have, not what they might";
  EXPECT_EQ(first_turn(0.01).copies, free.copies) << "it was " << free.str();
}

// Each once, on however many ranks, and none of the warm-up, which has as many rows as a step may have.
TEST(Task7_9_Counts, AreThoseOfTheTokensThatWereServed) {
  const Golden golden("mixtral_top2");
  Request request = golden.requests[0];
  request.prompt_token_ids = {5, 6, 7, 8, 9};
  request.sampling.max_tokens = 6;
  const auto each = [](int64_t tokens) { return Each(tokens); };
  for (const Grid grid : {Grid{2, 1}, Grid{4, 1}}) {
    Turns turns;
    engine_with(balanced(golden.one_rank, grid, 0, 2, turns))->generate({request});
    ASSERT_EQ(turns.all().size(), 2u) << "six steps: turns before the third and the fifth";
    EXPECT_THAT(turns.all()[0].tokens, AllOf(::testing::SizeIs(golden.spec.num_layers), each(5 + 1)));
    EXPECT_THAT(turns.all()[1].tokens, each(2));
  }
  Turns turns;
  DataParallelClient client(fleet_of(balanced(golden.one_rank, {2, 1}, 0, 3, turns), 2));
  RequestStream stream = client.submit(request);
  testing::output_of(stream);
  ASSERT_GE(turns.all().size(), 1u);
  EXPECT_THAT(turns.all()[0].tokens, each(5 + 2));
}

// In the middle of each of the two exchanges, of gate and up and of down.
TEST(Task7_9_Counts, ARankThatDiesWhileExpertsMoveEndsAllWithinFiveSeconds) {
  const Golden golden("mixtral_top2");
  for (const CommunicatorKind& kind : communicator_kinds()) {
    if (kind.device != DeviceType::cpu || kind.run == nullptr || !kind.obstacle(2).empty()) continue;
    const bool is_process = kind.name == "shared_memory";
    for (const int call : {0, 1}) {
      SCOPED_TRACE(fmt::format("{}, call {}", kind.name, call));
      testing::expect_within(std::chrono::seconds(5), [&] {
        const auto begin = std::chrono::steady_clock::now();
        const auto errors = kind.run(2, std::chrono::seconds(20), [&](int rank, Communicator& group) {
          testing::FailingCommunicator failing(
              group, rank == 1 ? call : -1,
              is_process ? [] { ::raise(SIGKILL); } : [] { throw Error("the disk is on fire"); });
          ParallelContext parallel;
          parallel.tp = &failing;
          OpContext ctx;
          ctx.parallel = &parallel;
          BalancedMlp layer(ctx, 0, golden.spec, DType::f32, {}, 0);
          layer.move_to(ctx, settle(layer.placement(), {{{0, 2}, {1, 3}}}));
          group.barrier(ctx);
        });
        const auto took = std::chrono::steady_clock::now() - begin;
        EXPECT_THAT(errors[1], HasSubstr(is_process ? "signal 9" : "the disk is on fire"));
        EXPECT_THAT(errors, Each(Ne("")));
        return took;
      });
    }
  }
}

// The same in an engine: its end is the error, and whoever waits for it goes on.
TEST(Task7_9_Counts, WhatATurnFailsOfIsTheEnginesError) {
  const Golden golden("mixtral_top2");
  EngineOptions options = testing::on_grid(golden.one_rank, {4, 1});
  options.runner.expert_parallel = options.runner.balance_experts = true;
  move_experts_by_load(options.makers.model, {.step_interval = 2, .on_moved = [](const ExpertsMoved&) {
                                                fail("the lamp went out");
                                              }});
  const std::unique_ptr<Engine> engine = engine_with(options);
  try {
    engine->generate(golden.requests);
    FAIL() << "nothing failed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the lamp went out"));
  }
}

TEST(Task7_9_BalanceFlags, WhatDoesNotFitIsNamedWithItsNumbers) {
  const auto error_of = [](const std::string& name, Grid grid, auto change) -> std::string {
    Turns turns;
    EngineOptions options = balanced(
        testing::small_options(testing::golden_folder() / name, DeviceType::cpu, 64), grid, 0, 1, turns);
    change(options.runner);
    try {
      engine_with(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of("mixtral_top2", {2, 1}, [](RunnerConfig&) {}), "no error");
  EXPECT_THAT(error_of("qwen3_tied", {2, 1}, [](RunnerConfig&) {}), HasSubstr("the model has no experts"));
  EXPECT_THAT(error_of("mixtral_top2", {2, 1}, [](RunnerConfig& config) { config.expert_parallel = false; }),
              HasSubstr("--enable-eplb: expected --enable-expert-parallel"));
  EXPECT_THAT(error_of("mixtral_top2", {2, 1},
                       [](RunnerConfig& config) {
                         config.balance_experts = false;
                         config.num_redundant_experts = 2;
                       }),
              HasSubstr("--num-redundant-experts 2: expected --enable-eplb"));
  EXPECT_THAT(
      error_of("mixtral_top2", {2, 1}, [](RunnerConfig& config) { config.num_redundant_experts = 3; }),
      AllOf(HasSubstr("--num-redundant-experts 3: 4 experts"), HasSubstr("expected 0, 2 or 4")));
}

}  // namespace
}  // namespace ladder
