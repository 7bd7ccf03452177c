// The watch over ranks (watched_executor.h) itself: that it barks, and where.
#include "tests/step7_parallel/watched_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "tests/step4_runner/fake_model.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::FakeModel;
using testing::WatchedExecutor;

RunnerConfig small_grid(int tensor, int stages) {
  RunnerConfig config;
  config.batch.max_num_seqs = 4;
  config.batch.max_num_batched_tokens = 16;
  config.batch.block_size = 4;
  config.batch.num_kv_blocks = 16;
  config.tensor_parallel_size = tensor;
  config.pipeline_parallel_size = stages;
  config.threads = tensor * stages;
  config.check_batches = false;  // which are calls, too
  return resolve_runner_config(testing::fake_spec(), config);
}

// Fake models, each of which does more than it should at its second forward pass: the first one is the warm-up's.
ModelFactory models_that(const RunnerConfig& config, std::function<void(const ParallelContext& rank)> also) {
  return [config, also = std::move(also)](const OpContext& ctx) {
    auto model = std::make_unique<FakeModel>(ctx, testing::fake_spec(), config);
    model->on_forward = [also, groups = *ctx.parallel, pass = 0](int) mutable {
      if (++pass == 2) also(groups);
    };
    return model;
  };
}

SchedulerOutput a_step() {
  SchedulerOutput step;
  NewSequence sequence;
  sequence.id = 3;
  sequence.num_prompt_tokens = 2;
  sequence.token_ids = {5, 6};
  sequence.block_table = {9};
  sequence.sampling.seed = 11;
  step.scheduled = {{3, 2, {}}};
  step.total_num_tokens = 2;
  step.new_sequences = {std::move(sequence)};
  return step;
}

// Tensor rank 1 waits for a message while the other sums; the stages wait for both.
void deadlock() {
  const RunnerConfig config = small_grid(2, 2);
  WatchedExecutor executor(testing::fake_spec(), config,
                           models_that(config,
                                       [](const ParallelContext& rank) {
                                         if (rank.tp->rank() == 1 && rank.pp->rank() == 0)
                                           rank.tp->recv({}, Tensor::zeros({7}, DType::f32), 0);
                                       }),
                           3s);
  executor.collect(executor.submit(a_step()));
}

TEST(WatchedExecutor, ADeadlockEndsWithWhereEachRankStands) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto after = [](const char* name) { return ::testing::HasSubstr(name); };
  EXPECT_DEATH(deadlock(),
               ::testing::AllOf(after("ticket 1: not done within 3000 ms:\ntensor ranks of stage 0:\n"
                                      "rank 0: in call 2, all_reduce f32[2, 4]"),
                                after("rank 1: in call 2, recv f32[7] from 0"),
                                after("stages of tensor rank 0:\nrank 0: after call 1, send"),
                                after("rank 1: in call 2, recv f32[2, 4] from 0")));
}

// What nobody waits for is found in the calls alone.
TEST(WatchedExecutor, RanksThatPartAreFoundAtItsEnd) {
  const RunnerConfig config = small_grid(1, 2);
  EXPECT_NONFATAL_FAILURE(
      {
        WatchedExecutor executor(testing::fake_spec(), config,
                                 models_that(config, [](const ParallelContext& rank) {
                                   if (rank.pp->rank() == 1)
                                     rank.pp->send({}, Tensor::zeros({7}, DType::f32), 0);
                                 }));
        executor.collect(executor.submit(a_step()));
      },
      "stages of tensor rank 0: message 1 of rank 1 to rank 0: send f32[7] to 0, no call");
}

}  // namespace
}  // namespace ladder
