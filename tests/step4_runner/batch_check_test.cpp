// Ranks that do not compute the same batch find it out (RunnerConfig::check_batches, which is on in debug builds).
#include "step4_runner/batch_check.h"

#include <gtest/gtest.h>

#include <functional>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step4_runner/model_runner.h"
#include "tests/step4_runner/fake_model.h"

namespace ladder {
namespace {

using ladder::testing::fake_spec;
using ladder::testing::FakeModel;

RunnerConfig config_of(int tensor, int stages) {
  RunnerConfig config;
  config.batch.max_num_seqs = 4;
  config.batch.max_num_batched_tokens = 16;
  config.batch.max_model_len = 64;
  config.batch.block_size = 4;
  config.batch.num_kv_blocks = 16;
  config.tensor_parallel_size = tensor;
  config.pipeline_parallel_size = stages;
  config.check_batches = true;
  return config;
}

// Two sequences, of which the second has its first block in the cache.
SchedulerOutput some_step() {
  SchedulerOutput step;
  step.step = 41;
  for (const SequenceId id : {3, 8}) {
    NewSequence sequence;
    sequence.id = id;
    sequence.token_ids = {5, 6, 7, 8, 9, 10};
    sequence.num_prompt_tokens = 6;
    sequence.num_computed_tokens = id == 8 ? 4 : 0;
    sequence.block_table = {static_cast<int32_t>(id), 4};
    sequence.sampling.seed = 11;
    step.scheduled.push_back({id, 6 - sequence.num_computed_tokens, {}});
    step.total_num_tokens += step.scheduled.back().num_tokens;
    step.new_sequences.push_back(std::move(sequence));
  }
  return step;
}

struct Change {
  std::string_view what;  // of the message
  std::function<void(SchedulerOutput& step)> make;
};

// Each leaves a step that the batch takes, of as many rows.
const std::vector<Change> kChanges = {
    {"the steps are 41 and 42", [](SchedulerOutput& step) { step.step = 42; }},
    {"the sequences differ", [](SchedulerOutput& step) { std::swap(step.scheduled[0], step.scheduled[1]); }},
    {"the sequences differ",
     [](SchedulerOutput& step) {  // 6 and 2 tokens become 5 and 3
       step.new_sequences[1].num_computed_tokens = 3;
       step.scheduled[0].num_tokens = 5;
       step.scheduled[1].num_tokens = 3;
     }},
    {"the tokens differ", [](SchedulerOutput& step) { step.new_sequences[1].token_ids[5] = 2; }},
    {"the block tables differ", [](SchedulerOutput& step) { step.new_sequences[0].block_table[1] = 9; }},
    {"the sampling parameters differ",
     [](SchedulerOutput& step) { step.new_sequences[1].sampling.seed = 12; }},
    {"the sampling parameters differ",
     [](SchedulerOutput& step) { step.new_sequences[0].sampling.temperature = 0.5; }},
};

// What each rank of a tensor group, or each stage of a pipeline, ends with if the last one gets another step.
std::vector<std::string> errors_of(const RunnerConfig& config, const Change& change) {
  const int ranks = config.tensor_parallel_size * config.pipeline_parallel_size;
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, const ParallelContext& group) {
    const ParallelContext stages{.tp = &single_rank(), .pp = group.tp};
    OpContext ctx;
    ctx.parallel = config.pipeline_parallel_size > 1 ? &stages : &group;
    ModelRunner runner(ctx, config, std::make_unique<FakeModel>(ctx, fake_spec(), config));
    runner.warm_up();
    SchedulerOutput step = some_step();
    if (rank == ranks - 1) change.make(step);
    try {
      const auto launched = runner.launch(step);
      if (runner.samples()) launched->collect();
    } catch (const Error& error) {
      errors[static_cast<size_t>(rank)] = error.what();
    }
  });
  return errors;
}

TEST(BatchCheck, RanksWithTheSameStepPass) {
  const Change none{"", [](SchedulerOutput&) {}};
  EXPECT_EQ(errors_of(config_of(3, 1), none), (std::vector<std::string>(3)));
  EXPECT_EQ(errors_of(config_of(1, 3), none), (std::vector<std::string>(3)));
}

TEST(BatchCheck, ATensorRankWithAnotherStepIsTheErrorOfAllOfThem) {
  for (const Change& change : kChanges) {
    const std::string expected = fmt::format(
        "step 41: tensor ranks 0 and 2 of stage 0 do not compute the same batch: {}", change.what);
    EXPECT_EQ(errors_of(config_of(3, 1), change), (std::vector<std::string>(3, expected)));
  }
}

TEST(BatchCheck, AStageWithAnotherStepSaysSo) {
  for (const Change& change : kChanges) {
    // Those before it have sent it what they had, or learn that it is gone.
    EXPECT_EQ(errors_of(config_of(1, 3), change)[2],
              fmt::format("step 41: stages 1 and 2 do not compute the same batch (tensor rank 0): {}",
                          change.what));
  }
}

// Why there is the check: without it such a step is computed.
TEST(BatchCheck, IsWhatNoticesIt) {
  RunnerConfig config = config_of(2, 1);
  config.check_batches = false;
  EXPECT_EQ(errors_of(config, kChanges[3]), (std::vector<std::string>(2)));
}

}  // namespace
}  // namespace ladder
