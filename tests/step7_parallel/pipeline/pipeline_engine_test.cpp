// The whole engine on grids of ranks, as threads: what N ranks answer is what one rank answers.
#include <gtest/gtest.h>

#include <tuple>

#include "step4_runner/rank_grid.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::fits;
using testing::GoldenCheckpoint;
using testing::Grid;
using testing::on_grid;
using testing::same_bits;

class PipelineGoldens : public ::testing::TestWithParam<std::string> {
 protected:
  const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / GetParam());
  const EngineOptions one_rank =
      testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
};

// A pipeline adds nothing up in another order: not a bit may differ, however the steps are cut.
TEST_P(PipelineGoldens, StagesChangeNoBit) {
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto expected = engine_with(one_rank)->generate(requests);
  for (const int stages : {2, 3}) {
    if (!fits(spec, {1, stages})) continue;
    for (const bool naive : {true, false})
      for (const int64_t chunk : {64, 5}) {
        EngineOptions options = on_grid(one_rank, {1, stages}, naive);
        options.runner.batch.max_num_batched_tokens = chunk;
        const std::unique_ptr<Engine> engine = engine_with(options);
        for (const char* cache : {"cold", "warm"}) {
          const auto outputs = engine->generate(requests);
          for (size_t i = 0; i < outputs.size(); ++i)
            EXPECT_TRUE(same_bits(outputs[i], expected[i]))
                << stages << " stages, chunks of " << chunk << ", " << cache << " cache, prompt " << i;
        }
      }
  }
}

TEST_P(PipelineGoldens, GridsGiveTheTokensOfTransformersOrPartAtANearTie) {
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto alone = engine_with(one_rank)->generate(requests);
  for (const Grid grid : {Grid{2, 1}, Grid{4, 1}, Grid{2, 2}, Grid{4, 2}, Grid{2, 3}}) {
    if (!fits(spec, grid)) continue;
    const auto outputs = engine_with(on_grid(one_rank, grid))->generate(requests);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(testing::equal_or_near_tie(
          alone[i].completions[0], outputs[i].completions[0], 1e-4,
          fmt::format("{}, tensor {} x pipeline {}, prompt {}", checkpoint.name, grid.tp, grid.pp, i)));
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, PipelineGoldens,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder())),
                         [](const auto& info) { return info.param; });

// What requests may ask for, crowded, on every grid that the tiny model takes.
class PipelineRequests : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(PipelineRequests, GetWhatOneRankGivesThem) {
  const Grid grid{std::get<0>(GetParam()), std::get<1>(GetParam())};
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 96);
  options.runner.batch.block_size = 4;
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 60;  // too few for all: some are preempted
  options.runner.batch.max_num_seqs = 6;
  options.runner.batch.max_num_batched_tokens = 24;
  testing::Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests;
  std::vector<int32_t> shared(20);
  for (int32_t& id : shared) id = static_cast<int32_t>(random.integer(300, 2000));
  for (int i = 0; i < 16; ++i) {
    Request request;
    request.prompt_token_ids.assign(shared.begin(), shared.begin() + random.integer(1, 20));
    for (int64_t extra = random.integer(0, 12); extra > 0; --extra)
      request.prompt_token_ids.push_back(static_cast<int32_t>(random.integer(300, 2000)));
    request.sampling.max_tokens = random.integer(1, 30);
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 4;
    request.sampling.temperature = i % 3 == 0 ? 0.7 : 0.0;
    request.sampling.seed = i;
    if (i % 4 == 1) request.sampling.repetition_penalty = 1.2;
    if (i % 5 == 2) request.sampling.prompt_logprobs = 3;
    if (i % 4 == 3) request.sampling.n = 3;
    requests.push_back(request);
  }
  const auto expected = engine_with(options)->generate(requests);
  const std::unique_ptr<Engine> engine = engine_with(on_grid(options, grid));
  const auto outputs = engine->generate(requests);
  for (size_t i = 0; i < outputs.size(); ++i) {
    ASSERT_EQ(outputs[i].completions.size(), expected[i].completions.size());
    if (grid.tp == 1 || requests[i].sampling.temperature == 0.0) {
      EXPECT_TRUE(testing::answers_as_one_rank(expected[i], outputs[i], grid, fmt::format("request {}", i)));
    }
    ASSERT_EQ(outputs[i].prompt_logprobs.size(), expected[i].prompt_logprobs.size());
    for (size_t p = 0; p < outputs[i].prompt_logprobs.size(); ++p) {
      const float mine = outputs[i].prompt_logprobs[p].chosen.logprob,
                  alone = expected[i].prompt_logprobs[p].chosen.logprob;
      if (grid.tp == 1)
        EXPECT_EQ(mine, alone) << "request " << i;
      else
        EXPECT_NEAR(mine, alone, 1e-4) << "request " << i;
    }
  }
  testing::expect_books_closed(engine->scheduler());
}

INSTANTIATE_TEST_SUITE_P(Grids, PipelineRequests,
                         ::testing::Values(std::tuple(1, 2), std::tuple(1, 3), std::tuple(1, 4),
                                           std::tuple(2, 1), std::tuple(2, 2), std::tuple(4, 2),
                                           std::tuple(2, 4)),
                         [](const auto& info) {
                           return fmt::format("tp{}_pp{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

// As many steps in flight as stages, of which none has a sequence of another; each takes its share of those that decode.
TEST(Pipelines, StepsInFlightShareTheSequencesEvenly) {
  EngineOptions options = on_grid(testing::small_options(testing::tiny_model(), DeviceType::cpu, 96), {1, 2});
  const std::unique_ptr<Engine> engine = engine_with(options);
  struct Shares : EngineObserver {
    void on_submit(const Engine& engine, const SchedulerOutput& step) override {
      most_in_flight = std::max(most_in_flight, engine.num_steps_in_flight() + 1);
      if (step.new_sequences.empty()) sizes.push_back(std::ssize(step.scheduled));
    }
    void on_results(const Engine&, const StepResult&) override {}
    int64_t most_in_flight = 0;
    std::vector<int64_t> sizes;
  };
  const auto shares = std::make_shared<Shares>();
  engine->add_observer(shares);
  std::vector<Request> requests(9);
  for (Request& request : requests) {
    request.prompt_token_ids = {5, 6, 7};
    request.sampling.temperature = 0.0;
    request.sampling.max_tokens = 20;
    request.sampling.ignore_eos = true;
  }
  engine->generate(requests);
  EXPECT_EQ(shares->most_in_flight, 2);
  ASSERT_GT(shares->sizes.size(), 30u);
  for (size_t i = 4; i < 30; ++i)
    EXPECT_NEAR(static_cast<double>(shares->sizes[i]), 4.5, 0.5) << "step " << i;
}

TEST(Pipelines, ANaiveOneHasOneStepInFlight) {
  RunnerConfig config;
  config.pipeline_parallel_size = 4;
  EXPECT_EQ(max_steps_in_flight(config), 4);
  config.naive_pipeline = true;
  EXPECT_EQ(max_steps_in_flight(config), 1);
}

// Random requests that come and are aborted at any time, with steps in flight.
class Crowds : public ::testing::TestWithParam<testing::Grid> {};
TEST_P(Crowds, TheBooksBalanceAfterThousandsOfRequestsWithAborts) {
  EngineOptions options = on_grid(
      testing::small_options(testing::golden_folder() / "qwen3_tied", DeviceType::cpu, 40), GetParam());
  options.runner.batch.block_size = 4;
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 50;
  options.runner.batch.max_num_seqs = 8;
  options.runner.batch.max_num_batched_tokens = 32;
  const std::unique_ptr<Engine> engine = engine_with(options);
  testing::Random random;
  SCOPED_TRACE(random.describe());
  constexpr int kRequests = 5000;
  std::vector<RequestId> running;
  int added = 0, ended = 0;
  while (ended < kRequests) {
    while (added < kRequests && std::ssize(running) < 24) {
      Request request;
      request.prompt_token_ids.resize(static_cast<size_t>(random.integer(1, 16)));
      for (int32_t& id : request.prompt_token_ids) id = static_cast<int32_t>(random.integer(0, 3));
      request.sampling.max_tokens = random.integer(1, 8);
      request.sampling.ignore_eos = true;
      request.sampling.n = random.integer(0, 9) == 0 ? 2 : 1;
      running.push_back(engine->add_request(request));
      ++added;
    }
    if (random.integer(0, 3) == 0)
      engine->abort(running[static_cast<size_t>(random.integer(0, std::ssize(running) - 1))]);
    for (const RequestOutput& output : engine->step().finished) {
      std::erase(running, output.request_id);
      ++ended;
    }
  }
  while (engine->has_unfinished()) engine->step();
  EXPECT_EQ(engine->scheduler().blocks().num_used_blocks(), 0);
  testing::expect_books_closed(engine->scheduler());
}
INSTANTIATE_TEST_SUITE_P(Pipelines, Crowds, ::testing::Values(testing::Grid{1, 2}, testing::Grid{2, 2}));

}  // namespace
}  // namespace ladder
