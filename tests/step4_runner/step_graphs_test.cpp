// Task 4.6: a step of prompts and decodes that is replayed from a graph gives what its launches one by one
// give, with every attention kernel that may be in it.
#include "step4_runner/step_graphs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "step1_layers/attention/paged_attention.h"
#include "step4_runner/model_runner.h"
#include "tests/support/devices.h"
#include "tests/support/model_devices.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using ladder::testing::Random;

// Qwen3-0.6B with fewer layers and words.
DecoderSpec small_spec(const std::filesystem::path& directory) {
  DecoderSpec spec = load_decoder_spec(directory);
  spec.num_layers = 2;
  spec.vocab_size = 500;
  return spec;
}

RunnerConfig config_of(DType dtype, bool graphs) {
  RunnerConfig config;
  config.device = {DeviceType::cuda, 0};
  config.dtype = dtype;
  config.load_format = LoadFormat::dummy;
  config.batch.max_num_seqs = 6;
  config.batch.max_num_batched_tokens = 100;
  config.batch.max_model_len = 256;
  config.batch.num_kv_blocks = 80;
  config.cuda_graphs = graphs;
  return config;
}

std::unique_ptr<ModelRunner> make_runner(const OpContext& ctx, const RunnerConfig& config) {
  const std::filesystem::path directory = testing::source_folder() / "models" / "qwen3-0.6b";
  ModelOptions options;
  options.dtype = config.dtype;
  options.load_format = config.load_format;
  options.max_model_len = config.batch.max_model_len;
  auto runner =
      std::make_unique<ModelRunner>(ctx, config, load_model(ctx, directory, small_spec(directory), options));
  runner->warm_up();
  return runner;
}

// The names of the attention rungs that serve a mixed batch of such a model here.
std::vector<std::string> rungs_for(const OpContext& ctx, DType dtype) {
  PagedAttentionArgs args;
  args.q = args.out = Tensor::empty({8, 16, 128}, dtype, ctx.device);
  args.cache.k = args.cache.v = Tensor::empty({4, 16, 8, 128}, dtype, ctx.device);
  args.metadata.num_seqs = 2;
  args.metadata.num_tokens = 8;
  args.metadata.max_query_len = 7;
  args.metadata.max_seq_len = 7;
  std::vector<std::string> names;
  for (const Variant<PagedAttentionArgs>& rung : paged_attention_variants())
    if (can_run(rung, ctx, args) && (rung.batch_invariant || dtype != DType::f32))
      names.emplace_back(rung.name);
  return names;
}

// Steps of six sequences that come one after the other: whole prompts, chunks of prompts, decoded tokens.
class Steps {
 public:
  explicit Steps(Random& random) : random_(random) {}

  // Every sequence computes counts[i] tokens; those that are not known yet are new, with prompts of `prompts`
  // tokens.
  SchedulerOutput next(std::initializer_list<int64_t> counts, std::initializer_list<int64_t> prompts = {}) {
    SchedulerOutput step;
    step.step = number_++;
    SequenceId id = 0;
    auto prompt = prompts.begin();
    for (const int64_t count : counts) {
      if (id == std::ssize(computed_)) {
        NewSequence added;
        added.id = id;
        added.num_prompt_tokens = *prompt++;
        added.token_ids.resize(static_cast<size_t>(added.num_prompt_tokens));
        for (int32_t& token : added.token_ids) token = static_cast<int32_t>(random_.integer(0, 499));
        added.sampling.temperature = 0;
        added.block_table.resize(6);
        std::iota(added.block_table.begin(), added.block_table.end(), static_cast<int32_t>(id) * 7);
        step.new_sequences.push_back(std::move(added));
        computed_.push_back(0);
      } else {
        step.continued.push_back({id, {}, computed_[static_cast<size_t>(id)]});
      }
      step.scheduled.push_back({id, count, {}});
      step.total_num_tokens += count;
      computed_[static_cast<size_t>(id++)] += count;
    }
    return step;
  }

 private:
  Random& random_;
  int64_t number_ = 0;
  std::vector<int64_t> computed_;
};

struct Result {
  std::vector<float> logits;
  StepOutput output;
  GraphSize graph;  // that it was replayed from; 0 rows: none

  bool replayed() const { return graph.rows > 0; }
};
Result run(const OpContext& ctx, ModelRunner& runner, const SchedulerOutput& step) {
  ModelRunner::Step launching = runner.prepare(step);
  runner.run(launching);
  const Tensor host = launching.logits.to(Device{}, ctx.stream);
  device_synchronize(ctx.device, ctx.stream);
  runner.sample(launching);
  return {{host.data<float>(), host.data<float>() + host.numel()},
          launching.launched->collect(),
          launching.graph != nullptr ? launching.graph->size : GraphSize{}};
}

class Task4_6_MixedGraphs : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { ladder::testing::need_device(DeviceType::cuda); }
};

TEST_P(Task4_6_MixedGraphs, GiveTheBitsOfEagerStepsWithEveryAttentionKernel) {
  Random random;
  SCOPED_TRACE(random.describe());
  OpContext ctx = *ladder::testing::cuda_context();
  ctx.batch_invariant = GetParam() == DType::f32;
  const auto rungs = rungs_for(ctx, GetParam());
  ASSERT_GE(rungs.size(), 2u);
  for (const std::string& rung : rungs) {
    SCOPED_TRACE(rung);
    ctx.kernels["paged_attention"] = rung;
    const auto eager = make_runner(ctx, config_of(GetParam(), false));
    const auto graphs = make_runner(ctx, config_of(GetParam(), true));
    Steps steps(random);
    const SchedulerOutput given[] = {
        steps.next({37}, {37}),                    // 37 of 40 rows, one sequence
        steps.next({1, 11}, {30}),                 // 12 rows, of the second prompt a part
        steps.next({1, 19, 2, 41}, {2, 41}),       // 63 of 64 rows, of which one decodes
        steps.next({1, 1, 1, 1, 17, 1}, {17, 1}),  // 22 of 24 rows, and no sequence is spare
    };
    for (const SchedulerOutput& step : given) {
      SCOPED_TRACE("step " + std::to_string(step.step));
      const Result expected = run(ctx, *eager, step), got = run(ctx, *graphs, step);
      EXPECT_FALSE(expected.replayed());
      EXPECT_TRUE(got.replayed());
      ASSERT_EQ(got.logits.size(), expected.logits.size());
      for (const float logit : expected.logits) ASSERT_TRUE(std::isfinite(logit));
      EXPECT_EQ(std::memcmp(got.logits.data(), expected.logits.data(), got.logits.size() * sizeof(float)), 0);
      ASSERT_EQ(got.output.sequences.size(), expected.output.sequences.size());
      for (size_t i = 0; i < got.output.sequences.size(); ++i)
        EXPECT_EQ(got.output.sequences[i].token_ids, expected.output.sequences[i].token_ids)
            << "sequence " << i;
    }
  }
}

TEST_P(Task4_6_MixedGraphs, LongSequencesAndLongStepsAreLaunchedKernelByKernel) {
  OpContext ctx = *ladder::testing::cuda_context();
  ctx.batch_invariant = GetParam() == DType::f32;
  RunnerConfig config = config_of(GetParam(), true);
  config.batch.max_num_batched_tokens = kMaxMixedRows + 100;
  config.batch.max_model_len = kMaxMixedRows + 200;
  config.batch.num_kv_blocks = config.batch.max_blocks_per_seq();
  const auto runner = make_runner(ctx, config);
  SequenceId id = 0;
  const auto replays = [&](int64_t rows, int64_t keys) {
    SchedulerOutput step;
    step.step = id;
    NewSequence added;
    added.id = id;
    added.num_prompt_tokens = keys;
    added.num_computed_tokens = keys - rows;
    added.token_ids.assign(static_cast<size_t>(keys), 7);
    added.block_table.resize(static_cast<size_t>(config.batch.max_blocks_per_seq()));
    std::iota(added.block_table.begin(), added.block_table.end(), 0);
    step.new_sequences = {added};
    step.scheduled = {{id, rows, {}}};
    step.total_num_tokens = rows;
    if (id > 0) step.finished = {id - 1};
    ++id;
    return run(ctx, *runner, step).replayed();
  };
  EXPECT_TRUE(replays(20, kMaxMixedKeys));
  EXPECT_FALSE(replays(20, kMaxMixedKeys + 1));
  EXPECT_TRUE(replays(kMaxMixedKeys, kMaxMixedKeys));
  EXPECT_FALSE(replays(kMaxMixedRows + 1, kMaxMixedRows + 1));
}

class Task4_6_DecodeGraphs : public ::testing::Test {
 protected:
  void SetUp() override { ladder::testing::need_device(DeviceType::cuda); }
};

TEST_F(Task4_6_DecodeGraphs, LongSequencesHaveGraphsOfTheirOwn) {
  const OpContext ctx = *ladder::testing::cuda_context();
  RunnerConfig config = config_of(DType::bf16, true);
  config.batch.max_model_len = kShortDecodeKeys + 100;
  config.batch.num_kv_blocks = config.batch.max_blocks_per_seq();
  const auto graphs = make_runner(ctx, config);
  config.cuda_graphs = false;
  const auto eager = make_runner(ctx, config);
  // Beyond kShortDecodeKeys attention takes another kernel for one sequence, so another graph serves it. Both
  // give what eager steps of the same length give. The last two keys of a sequence, whose others are taken to
  // be cached: zeros, as the cache was made.
  const auto last_two_steps = [&](ModelRunner& runner, int64_t keys) {
    SchedulerOutput first, second;
    NewSequence added;
    added.id = keys;
    added.num_prompt_tokens = keys - 1;
    added.num_computed_tokens = keys - 2;
    added.token_ids.assign(static_cast<size_t>(keys - 1), 7);
    added.sampling.temperature = 0;
    added.block_table.resize(static_cast<size_t>(config.batch.max_blocks_per_seq()));
    std::iota(added.block_table.begin(), added.block_table.end(), 0);
    first.new_sequences = {added};
    first.scheduled = {{keys, 1, {}}};
    second.step = first.total_num_tokens = second.total_num_tokens = 1;
    second.continued = {{keys, {}, keys - 1}};
    second.scheduled = {{keys, 1, {}}};
    run(ctx, runner, first);
    return run(ctx, runner, second);
  };
  for (const int64_t keys : {kShortDecodeKeys, kShortDecodeKeys + 1}) {
    SCOPED_TRACE(keys);
    const Result expected = last_two_steps(*eager, keys), got = last_two_steps(*graphs, keys);
    EXPECT_EQ(got.graph,
              (GraphSize{1, keys > kShortDecodeKeys ? config.batch.max_model_len : kShortDecodeKeys}));
    ASSERT_EQ(got.logits.size(), expected.logits.size());
    EXPECT_EQ(std::memcmp(got.logits.data(), expected.logits.data(), got.logits.size() * sizeof(float)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Task4_6_MixedGraphs, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace ladder
