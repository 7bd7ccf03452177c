// Task 7.6: engines over worker processes: random grids and requests, answers in their order, and ranks that fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step7_parallel/workers/worker_program.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using namespace ladder::testing;
using ::testing::HasSubstr;

EngineOptions random_options(Random& random, Grid grid) {
  EngineOptions options = on_grid(small_options(tiny_model(), DeviceType::cpu, 64), grid);
  options.runner.batch.block_size = random.integer(3, 9);
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = random.integer(40, 80);
  options.runner.batch.max_num_seqs = random.integer(3, 9);
  options.runner.batch.max_num_batched_tokens = random.integer(12, 40);
  return options;
}

std::vector<Request> random_requests(Random& random) {
  std::vector<Request> requests(static_cast<size_t>(random.integer(6, 12)));
  for (Request& request : requests) {
    request.prompt_token_ids.resize(static_cast<size_t>(random.integer(1, 30)));
    for (int32_t& id : request.prompt_token_ids) id = static_cast<int32_t>(random.integer(300, 303));
    request.sampling.max_tokens = random.integer(1, 18);
    request.sampling.ignore_eos = true;
    request.sampling.temperature = random.integer(0, 2) == 0 ? 0.0 : 0.8;
    request.sampling.seed = random.integer(0, 1000);
    request.sampling.logprobs = random.integer(0, 3);
    if (random.integer(0, 3) == 0) request.sampling.n = 2;
  }
  return requests;
}

TEST(Hidden7_6_Workers, AnswerWhatThreadsAnswer) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (const Grid grid : {Grid{1, 1}, Grid{1, 2}, Grid{1, 3}, Grid{2, 2}}) {
    const EngineOptions options = random_options(random, grid);
    const std::unique_ptr<Engine> threads = engine_with(options), workers = engine_with(on_workers(options));
    for (int round = 0; round < 2; ++round) {
      const std::vector<Request> requests = random_requests(random);
      const auto expected = threads->generate(requests), outputs = workers->generate(requests);
      for (size_t i = 0; i < outputs.size(); ++i)
        EXPECT_TRUE(same_bits(outputs[i], expected[i])) << "tensor " << grid.tp << " x pipeline " << grid.pp
                                                        << ", request " << i << " of round " << round;
    }
  }
}

std::unique_ptr<WorkerExecutor> executor_on(Grid grid, const std::string& fault = "none",
                                            std::chrono::milliseconds patience = 60s) {
  const EngineOptions options = on_grid(small_options(tiny_model(), DeviceType::cpu, 64), grid);
  const ModelFolder folder = open_model_folder(options.model);
  return std::make_unique<WorkerExecutor>(
      executor_options(options, folder, resolved_runner_config(options, folder.spec)),
      worker_program(options.model, fault), patience);
}

// The step in which sequence `id` begins: a prompt of `length` tokens.
SchedulerOutput first_step_of(int64_t id, int64_t length) {
  SchedulerOutput step;
  step.step = id;
  NewSequence sequence;
  sequence.id = id;
  sequence.token_ids.assign(static_cast<size_t>(length), 5);
  sequence.num_prompt_tokens = length;
  sequence.block_table = {static_cast<int32_t>(id)};
  step.new_sequences.push_back(sequence);
  step.scheduled.push_back({id, length, {}});
  step.total_num_tokens = length;
  return step;
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(Hidden7_6_Workers, GiveTheirAnswersInTheOrderOfTheSteps) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (const int stages : {1, 2, 4}) {
    const auto executor = executor_on({1, stages});
    ASSERT_EQ(executor->max_in_flight(), stages);
    std::vector<Ticket> tickets;
    for (int64_t id = 1; id <= stages; ++id)
      tickets.push_back(executor->submit(first_step_of(id, random.integer(1, 9))));
    EXPECT_THAT(error_of([&] { executor->submit(first_step_of(9, 3)); }), HasSubstr(std::to_string(stages)));
    EXPECT_NE(error_of([&] { executor->collect({tickets.back().value + 1}); }), "no error");
    if (stages > 1) {
      EXPECT_NE(error_of([&] { executor->collect(tickets[1]); }), "no error");
    }
    for (int64_t id = 1; id <= stages; ++id) {
      const StepOutput output = executor->collect(tickets[static_cast<size_t>(id - 1)]);
      ASSERT_EQ(output.sequences.size(), 1u);
      EXPECT_EQ(output.sequences[0].id, id);
    }
    EXPECT_NE(error_of([&] { executor->collect(tickets.back()); }), "no error");
    EXPECT_GT(executor->submit(first_step_of(7, 3)).value, tickets.back().value);
  }
}

// The first cause is what every later call says.
TEST(Hidden7_6_Workers, ThatFailStayFailed) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (const char* kind : {"kill", "defect"}) {
    const int rank = static_cast<int>(random.integer(0, 3));
    const auto executor = executor_on({2, 2}, fmt::format("{} {} 2", rank, kind));
    const Ticket ticket = executor->submit(first_step_of(1, random.integer(1, 9)));
    const auto begin = std::chrono::steady_clock::now();
    const std::string first = error_of([&] { executor->collect(ticket); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
    EXPECT_THAT(first, HasSubstr(fmt::format("rank {} of 4", rank)));
    EXPECT_EQ(error_of([&] { executor->submit(first_step_of(2, 3)); }), first);
    EXPECT_EQ(error_of([&] { executor->collect(ticket); }), first);
  }
}

TEST(Hidden7_6_Workers, ThatDoNotAnswerAreGivenUp) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  const auto patience = std::chrono::milliseconds(random.integer(300, 700));
  const auto executor = executor_on({2, 1}, fmt::format("{} hang 2", random.integer(0, 1)), patience);
  const Ticket ticket = executor->submit(first_step_of(1, 3));
  const auto begin = std::chrono::steady_clock::now();
  const std::string error = error_of([&] { executor->collect(ticket); });
  EXPECT_GE(std::chrono::steady_clock::now() - begin, patience);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, patience + 3s);
  EXPECT_THAT(error, HasSubstr(std::to_string(patience.count())));
}

}  // namespace
}  // namespace ladder
