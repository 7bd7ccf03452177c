// Tasks 4.1 to 4.6 in whole steps: caches and steps of other sizes than the public tests', with the model that answers by a
// hash of all tokens before (fake_model.h).
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step4_runner/kv_cache_size.h"
#include "step4_runner/local_executor.h"
#include "tests/step4_runner/ahead_driver.h"
#include "tests/step4_runner/fake_runner.h"
#include "tests/step4_runner/sampler_scene.h"

namespace ladder {
namespace {

using namespace ladder::testing;
using Pace = RecordingStream::Pace;

constexpr int64_t kMiB = int64_t{1} << 20;

// Small vocabularies and blocks of any size; room for twelve sequences of the longest.
struct Sizes {
  explicit Sizes(Random& random, bool graphs = false) : vocab(random.integer(23, 300)) {
    config = recorded_config(graphs);
    config.batch.max_num_seqs = random.integer(8, 12);
    config.batch.max_num_batched_tokens = random.integer(20, 90);
    config.batch.block_size = random.integer(1, 11);
    config.batch.num_kv_blocks = 12 * (config.batch.max_model_len / config.batch.block_size + 2);
  }
  RunnerConfig config;
  int64_t vocab;
};

// A runner on the CPU that has one step after the other.
struct CpuRunner {
  CpuRunner(const Sizes& sizes, Random& random) : config(sizes.config) {
    config.device = {};
    config.cuda_graphs = false;
    ctx.batch_invariant = true;
    auto fake = std::make_unique<FakeModel>(ctx, fake_spec(sizes.vocab), config);
    model = fake.get();
    runner = std::make_unique<ModelRunner>(ctx, config, std::move(fake));
    driver = std::make_unique<StepDriver>(*runner, config, random, ctx);
  }
  std::vector<DrivenResult> run(const std::vector<DrivenRequest>& requests,
                                const DriveOptions& options = {}) {
    return driver->run(requests, options);
  }
  RunnerConfig config;
  OpContext ctx;
  FakeModel* model = nullptr;
  std::unique_ptr<ModelRunner> runner;
  std::unique_ptr<StepDriver> driver;
};

// prompt_step() with tokens and blocks that such a runner has.
SchedulerOutput prompts(const std::vector<SequenceId>& ids, int64_t length, const Sizes& sizes,
                        const SamplingParams& sampling = greedy()) {
  SchedulerOutput step = prompt_step(ids, length, sampling);
  const int64_t blocks = (length + 8) / sizes.config.batch.block_size + 1;
  for (NewSequence& sequence : step.new_sequences) {
    for (int32_t& token : sequence.token_ids) token %= static_cast<int32_t>(sizes.vocab);
    sequence.block_table.resize(static_cast<size_t>(blocks));
    std::iota(sequence.block_table.begin(), sequence.block_table.end(),
              static_cast<int32_t>(sequence.id * blocks));
  }
  return step;
}

std::vector<DrivenRequest> requests_of(Random& random, int64_t count, int64_t vocab, bool scored) {
  auto requests = random_requests(random, count, vocab, random.integer(3, 80));
  if (!scored)
    for (DrivenRequest& request : requests) request.sampling.prompt_logprobs.reset();
  return requests;
}

DriveOptions any_way(Random& random, const RunnerConfig& config, bool shared) {
  const int64_t chunk = random.integer(1, 30);
  return {random.integer(1, config.batch.max_num_seqs),
          chunk,
          random.integer(0, 1) == 1,
          random.uniform(0, 0.3),
          static_cast<double>(chunk) / 500,  // more often, and who computes little at a time has no end
          true,
          shared,
          random.integer(0, 9)};
}

void expect_logits_of_tokens(const std::vector<DrivenRequest>& requests,
                             const std::vector<DrivenResult>& results, int64_t vocab) {
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t> tokens = requests[i].prompt;
    ASSERT_EQ(std::ssize(results[i].token_ids), *requests[i].sampling.max_tokens);
    for (size_t t = 0; t < results[i].token_ids.size(); ++t) {
      ASSERT_EQ(results[i].logits[t], fake_logits(tokens, vocab)) << "request " << i << " token " << t;
      tokens.push_back(results[i].token_ids[t]);
    }
  }
}

TEST(Hidden4_1_Rows, AnswersFollowFromTheTokens) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 6 && !HasFailure(); ++round) {
    const Sizes sizes(random);
    CpuRunner cpu(sizes, random);
    const auto requests = requests_of(random, 14, sizes.vocab, false);
    expect_logits_of_tokens(requests, cpu.run(requests, any_way(random, cpu.config, true)), sizes.vocab);
  }
}

TEST(Hidden4_4_Runner, GivesTheSameHoweverTheStepsAreCut) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 4 && !HasFailure(); ++round) {
    const Sizes sizes(random);
    CpuRunner cpu(sizes, random);
    const auto requests = requests_of(random, 14, sizes.vocab, false);
    const auto alone = cpu.run(requests);
    const auto cut = cpu.run(requests, any_way(random, cpu.config, true));
    for (size_t i = 0; i < requests.size(); ++i) expect_same(alone[i], cut[i]);
  }
}

TEST(Hidden4_4_Runner, AStepTakesAsLongAsItsParts) {
  Random random;
  const Sizes sizes(random);
  CpuRunner cpu(sizes, random);
  const StepOutput output = cpu.runner->execute(prompts({3, 1}, random.integer(2, 9), sizes));
  ASSERT_EQ(output.sequences.size(), 2u);
  EXPECT_NEAR(output.execute_seconds, output.prepare_seconds + output.forward_seconds + output.sample_seconds,
              1e-9);
  EXPECT_GT(output.sample_seconds, 0);
}

TEST(Hidden4_3_PromptLogprobs, AreThoseOfEveryNextToken) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 3 && !HasFailure(); ++round) {
    Sizes sizes(random);
    sizes.config.batch.max_num_batched_tokens = random.integer(20, 2 * ModelRunner::kLogitsRows);
    CpuRunner cpu(sizes, random);
    auto requests = requests_of(random, 10, sizes.vocab, true);
    const auto results = cpu.run(requests, any_way(random, cpu.config, false));
    EXPECT_LE(cpu.model->max_logits_rows_seen, ModelRunner::kLogitsRows);
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::vector<int32_t>& prompt = requests[i].prompt;
      if (!requests[i].sampling.prompt_logprobs) continue;
      ASSERT_EQ(results[i].prompt_logprobs.size() + 1, prompt.size());
      for (size_t p = 0; p + 1 < prompt.size(); ++p) {
        const auto logits = fake_logits(std::span(prompt).first(p + 1), sizes.vocab);
        double sum = 0;
        for (const float x : logits) sum += std::exp(double{x});
        const PositionLogprobs& seen = results[i].prompt_logprobs[p];
        ASSERT_EQ(seen.chosen.token_id, prompt[p + 1]) << "position " << p;
        ASSERT_NEAR(seen.chosen.logprob, logits[prompt[p + 1]] - std::log(sum), 1e-5) << "position " << p;
      }
    }
  }
}

// All prompts in one step, of more rows than the LM head takes at once.
TEST(Hidden4_3_PromptLogprobs, TheHeadTakesAFewRowsAtATime) {
  Random random;
  SCOPED_TRACE(random.describe());
  Sizes sizes(random);
  sizes.config.batch.max_num_batched_tokens = 3 * ModelRunner::kLogitsRows;
  CpuRunner cpu(sizes, random);
  SamplingParams scored = greedy();
  scored.prompt_logprobs = 1;
  const int64_t length = 3 * ModelRunner::kLogitsRows / 8;
  const SchedulerOutput step = prompts({0, 1, 2, 3, 4, 5, 6, 7}, length, sizes, scored);
  ASSERT_GT(8 * (length - 1), ModelRunner::kLogitsRows);
  const StepOutput output = cpu.runner->execute(step);
  EXPECT_LE(cpu.model->max_logits_rows_seen, ModelRunner::kLogitsRows);
  for (const SequenceStepOutput& sequence : output.sequences)
    EXPECT_EQ(std::ssize(sequence.prompt_logprobs), length - 1);
}

// More rows than the sampler takes at once; one token stands out in each, or the rows ask for what leaves one.
TEST(Hidden4_3_Sampler, EveryRowGetsWhatItAsksFor) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 10; ++round) {
    const int64_t vocab = random.integer(4, 200), count = random.integer(1, 3 * Sampler::kRows);
    std::vector<SampledRow> rows(static_cast<size_t>(count));
    std::vector<int32_t> expected;
    for (SampledRow& row : rows) {
      const auto best = static_cast<int32_t>(random.integer(0, vocab - 1)),
                 second = static_cast<int32_t>((best + random.integer(1, vocab - 1)) % vocab);
      row.logits.assign(static_cast<size_t>(vocab), 0.0f);
      row.logits[best] = 10;
      row.logits[second] = 9;
      row.sampling.temperature = random.uniform(0.5, 3);
      row.sampling.seed = random.engine()();
      expected.push_back(best);
      switch (random.integer(0, 7)) {
        case 0:
          row.sampling.temperature = 0;
          break;
        case 1:
          row.sampling.top_k = 1;
          break;
        case 2:
          row.sampling.top_p = 1e-3;
          break;
        case 3:
          row.sampling.min_p = 1;
          break;
        case 4:  // the best stands in the output, so that a penalty of 2 leaves the second
          row.token_ids.push_back(best);
          row.sampling.presence_penalty = 2;
          row.sampling.top_k = 1;
          expected.back() = second;
          break;
        case 5:  // and in the prompt, so that it does not
          row.token_ids = {best};
          row.sampling.frequency_penalty = row.sampling.presence_penalty = 2;
          row.sampling.top_k = 1;
          break;
        case 6:
          row.sampling.allowed_token_ids = {second};
          expected.back() = second;
          break;
        default:
          row.sampling.logit_bias = {{second, 2.0}};
          row.sampling.top_k = 1;
          expected.back() = second;
      }
    }
    EXPECT_EQ(run_sampler(DeviceType::cpu, rows).token_ids, expected) << count << " rows of " << vocab;
  }
}

// A tenth of the tokens that are drawn at random is another one of two.
TEST(Hidden4_3_Sampler, DrawsWhereTheRowIsNotGreedy) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<SampledRow> rows(1000);
  for (SampledRow& row : rows) {
    row.logits = {0, static_cast<float>(std::log(9.0)), -50};
    row.sampling.seed = random.engine()();
  }
  const auto ids = run_sampler(DeviceType::cpu, rows).token_ids;
  EXPECT_NEAR(static_cast<double>(std::ranges::count(ids, 0)), 100, 60);
  EXPECT_EQ(std::ranges::count(ids, 2), 0);
}

TEST(Hidden4_2_WarmUp, TheLargestStepsFitWhatWasMeasured) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Sizes sizes(random);
  CpuRunner cpu(sizes, random);
  cpu.runner->warm_up();
  const int64_t measured = cpu.runner->memory().activations;
  EXPECT_GT(measured, 0);
  EXPECT_EQ(cpu.model->max_rows_seen, sizes.config.batch.max_num_batched_tokens);
  EXPECT_EQ(cpu.runner->batch().num_known_sequences(), 0);
  auto requests = requests_of(random, 25, sizes.vocab, true);
  for (DrivenRequest& request : requests) {
    request.sampling.logprobs = request.sampling.prompt_logprobs = 5;
    request.sampling.temperature = 1;
    request.sampling.frequency_penalty = 0.5;
  }
  cpu.run(requests, {sizes.config.batch.max_num_seqs});  // would throw
  EXPECT_EQ(cpu.runner->memory().activations, measured);
  // The cache is as it was: a token whose prefix is said to be cached reads the zeros of a slot that nobody wrote.
  CpuRunner fresh(sizes, random);
  fresh.runner->warm_up();
  SchedulerOutput step = prompts({0}, 2, sizes);
  step.new_sequences[0].num_computed_tokens = 1;
  step.new_sequences[0].token_ids = {1, 2};
  step.scheduled[0].num_tokens = step.total_num_tokens = 1;
  ModelRunner::Step launching = fresh.runner->prepare(step);
  fresh.runner->run(launching);
  const auto expected = fake_logits(std::vector<int32_t>{0, 2}, sizes.vocab);
  for (int64_t i = 0; i < sizes.vocab; ++i) ASSERT_EQ(launching.logits.at<float>({0, i}), expected[i]);
}

DecoderSpec wide_spec(Random& random) {
  DecoderSpec spec = fake_spec(random.integer(1000, 50000));
  spec.num_layers = random.integer(2, 40);
  spec.num_kv_heads = random.integer(1, 8);
  spec.num_heads = spec.num_kv_heads * random.integer(1, 4);
  spec.head_dim = 2 * random.integer(8, 64);
  spec.rope.rotary_dim = spec.head_dim;
  spec.hidden_size = random.integer(64, 2000);
  spec.intermediate_size = random.integer(64, 4000);
  spec.max_position_embeddings = random.integer(500, 5000);
  return spec;
}

TEST(Hidden4_2_Memory, TheCacheIsAsLargeAsMemoryAndUse) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 60; ++round) {
    const DecoderSpec spec = wide_spec(random);
    RunnerConfig config;
    config.dtype = DType::bf16;
    config.batch.block_size = random.integer(1, 64);
    config.batch.max_num_seqs = random.integer(1, 30);
    const int64_t block = 4 * spec.num_layers * spec.num_kv_heads * spec.head_dim * config.batch.block_size;
    const MachineMemory memory{250'000 * kMiB, 200'000 * kMiB};
    const RunnerConfig open = resolve_runner_config(spec, config, memory);
    EXPECT_EQ(open.batch.max_model_len, spec.max_position_embeddings);
    const int64_t longest =
        (open.batch.max_model_len + config.batch.block_size - 1) / config.batch.block_size;
    EXPECT_EQ(open.batch.num_kv_blocks, std::min(4096 * kMiB / block, config.batch.max_num_seqs * longest));
    // A length that nobody asked for gives way to a small cache; one that was asked for is an error.
    config.kv_memory = random.integer(1, longest) * block;
    const RunnerConfig small = resolve_runner_config(spec, config, memory);
    EXPECT_EQ(small.batch.num_kv_blocks, config.kv_memory / block);
    EXPECT_LE(small.batch.max_model_len, small.batch.num_kv_blocks * config.batch.block_size);
    config.batch.max_model_len = spec.max_position_embeddings;
    if (config.kv_memory / block < longest) {
      EXPECT_THROW(resolve_runner_config(spec, config, memory), Error);
    }
  }
}

TEST(Hidden4_2_Memory, AGpusCacheFillsWhatTheOthersLeave) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 60; ++round) {
    const DecoderSpec spec = wide_spec(random);
    RunnerConfig config;
    config.dtype = DType::bf16;
    config.device = {DeviceType::cuda, 0};
    config.batch.block_size = 16;
    config.batch.max_model_len = random.integer(50, 400);
    config.gpu_memory_utilization = random.uniform(0.3, 1);
    const int64_t total = random.integer(40'000, 140'000) * kMiB, used = random.integer(1000, 9000) * kMiB;
    config = resolve_runner_config(spec, config, {total, total});
    const int64_t blocks = size_kv_cache(spec, config, total, used).batch.num_kv_blocks,
                  left =
                      static_cast<int64_t>(config.gpu_memory_utilization * static_cast<double>(total)) - used;
    // K and V of each layer, each in whole pages of two MiB.
    const auto bytes = [&](int64_t count) {
      const int64_t tensor = count * 2 * spec.num_kv_heads * spec.head_dim * 16;
      return 2 * spec.num_layers * ((tensor + 2 * kMiB - 1) / (2 * kMiB)) * 2 * kMiB;
    };
    EXPECT_LE(bytes(blocks), left);
    EXPECT_GT(bytes(blocks + 1), left);
  }
}

ModelFactory models(const RunnerConfig& config, int64_t vocab, std::function<void(int)> on_forward = {}) {
  const RunnerConfig resolved = resolve_runner_config(fake_spec(vocab), config);
  return [resolved, vocab, on_forward](const OpContext& ctx) {
    auto model = std::make_unique<FakeModel>(ctx, fake_spec(vocab), resolved);
    model->on_forward = on_forward;
    return model;
  };
}

RunnerConfig ranks_config(const Sizes& sizes, int ranks) {
  RunnerConfig config = sizes.config;
  config.device = {};
  config.tensor_parallel_size = config.threads = ranks;
  return config;
}

TEST(Hidden4_4_Executor, RanksAnswerAsOneAndAddUpTheirMemory) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Sizes sizes(random);
  const int64_t length = random.integer(2, 9);
  SamplingParams sampling = greedy();
  sampling.logprobs = random.integer(1, 5);  // which the first rank alone computes
  std::vector<std::vector<int32_t>> tokens;
  int64_t kv = 0;
  for (const int ranks : {1, 2, 4}) {
    const RunnerConfig config = ranks_config(sizes, ranks);
    LocalExecutor executor(fake_spec(sizes.vocab), config, models(config, sizes.vocab));
    tokens.emplace_back();
    for (int64_t number = 0; number < 6; ++number) {
      const SchedulerOutput step = number == 0 ? prompts({2, 1}, length, sizes, sampling)
                                               : decode_step(number, {1, 2}, length - 1 + number);
      const StepOutput output = executor.collect(executor.submit(step));
      EXPECT_EQ(output.step, number);
      for (const SequenceStepOutput& sequence : output.sequences) {
        tokens.back().insert(tokens.back().end(), sequence.token_ids.begin(), sequence.token_ids.end());
        ASSERT_EQ(sequence.logprobs.size(), 1u) << ranks << " ranks";
        EXPECT_EQ(std::ssize(sequence.logprobs[0].top), *sampling.logprobs);
      }
    }
    EXPECT_EQ(tokens.back(), tokens.front()) << ranks << " ranks";
    if (ranks == 1) kv = executor.memory().kv;
    EXPECT_EQ(executor.memory().kv, kv) << ranks << " ranks share the heads";
  }
}

TEST(Hidden4_4_Executor, TheFirstErrorIsTold) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Sizes sizes(random);
  const int culprit = static_cast<int>(random.integer(0, 3));
  const RunnerConfig config = ranks_config(sizes, 4);
  std::atomic<bool> paper = true;  // while the ranks warm up
  LocalExecutor executor(fake_spec(sizes.vocab), config,
                         models(config, sizes.vocab, [&paper, culprit](int rank) {
                           if (rank == culprit && !paper) throw Error("no more paper");
                         }));
  paper = false;
  try {
    executor.collect(executor.submit(prompts({1}, 3, sizes)));
    ADD_FAILURE() << "the error was lost";
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "no more paper") << "the others were released by it, and failed in their turn";
  }
}

// Two steps in flight, and one at a time.
TEST(Hidden4_4_Executor, StepsAheadAreLaunchedInTheirOrder) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Sizes sizes(random);
  const RunnerConfig config = sizes.config;
  const int64_t length = random.integer(2, 9), count = random.integer(4, 8);
  std::vector<std::vector<int32_t>> tokens;
  for (const bool ahead : {true, false}) {
    RecordingStream stream;
    const OpContext ctx = stream.context();
    LocalExecutor executor(fake_spec(sizes.vocab), config, models(config, sizes.vocab), {}, &ctx);
    ASSERT_EQ(executor.max_in_flight(), 2);
    std::vector<Ticket> tickets;
    tokens.emplace_back();
    const auto collect = [&] {
      const StepOutput output = executor.collect(tickets.front());
      tickets.erase(tickets.begin());
      tokens.back().push_back(static_cast<int32_t>(output.step));
      for (const SequenceStepOutput& sequence : output.sequences)
        tokens.back().insert(tokens.back().end(), sequence.token_ids.begin(), sequence.token_ids.end());
    };
    for (int64_t number = 0; number < count; ++number) {
      tickets.push_back(executor.submit(number == 0 ? prompts({2, 5, 1}, length, sizes)
                                                    : decode_step(number, {1, 2, 5}, length - 1 + number)));
      if (!ahead || tickets.size() == 2) collect();
    }
    while (!tickets.empty()) collect();
  }
  EXPECT_EQ(std::ssize(tokens[0]), 4 * count);
  EXPECT_EQ(tokens[0], tokens[1]);
}

class Hidden4_5_Inputs : public ::testing::TestWithParam<Pace> {};
INSTANTIATE_TEST_SUITE_P(Paces, Hidden4_5_Inputs, every_pace(), pace_name);

TEST_P(Hidden4_5_Inputs, StepsAheadGiveWhatTheCpuGives) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 3 && !HasFailure(); ++round) {
    Sizes sizes(random);
    sizes.vocab = 97;  // RecordedRunner's
    auto requests = requests_of(random, 16, sizes.vocab, false);
    CpuRunner cpu(sizes, random);
    auto expected = cpu.run(requests);
    for (DrivenResult& result : expected) result.logits.clear();
    RecordedRunner recorded(sizes.config, GetParam(), random.engine()());
    AheadOptions options;
    options.max_running = sizes.config.batch.max_num_seqs;
    options.max_chunk = random.integer(1, 30);
    options.join_probability = random.uniform(0.3, 1);
    options.skip_probability = random.uniform(0, 0.3);
    const auto results = AheadDriver(*recorded.runner, sizes.config, random).run(requests, options);
    for (size_t i = 0; i < requests.size(); ++i) expect_same(expected[i], results[i]);
  }
}

TEST(Hidden4_5_Inputs, ADecodeIsOneCopyEachWayAndTheHostDoesNotWait) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const bool penalty : {false, true}) {
    RecordedRunner recorded;
    SamplingParams sampling = greedy();
    if (penalty) sampling.frequency_penalty = 0.5;
    const int64_t length = random.integer(2, 9);
    std::vector<SequenceId> ids(static_cast<size_t>(random.integer(1, 5)));
    std::iota(ids.begin(), ids.end(), random.integer(0, 9));
    auto before = recorded.runner->launch(prompt_step(ids, length, sampling));
    for (int64_t number = 1; number < 9; ++number) {
      recorded.stream.clear();
      const auto step = recorded.runner->launch(decode_step(number, ids, length - 1 + number));
      const RecordingStream::Counts counts = recorded.stream.counts();
      EXPECT_EQ(counts.waits, penalty ? 1 : 0) << "penalties need the tokens before";
      EXPECT_EQ(counts.copies_from_host, 1);
      EXPECT_EQ(counts.bytes_to_host, 4 * std::ssize(ids));
      before->collect();
      before = step;
    }
  }
}

// What a graph of more rows and sequences than the step has is given of those that are spare.
TEST(Hidden4_5_Inputs, SpareRowsStandInNoSlotAndSpareSequencesHaveNoKeys) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 20; ++round) {
    const Sizes sizes(random);
    RecordingStream stream;
    const OpContext ctx = stream.context();
    DeviceInputs inputs(ctx.device, sizes.config.batch);
    Batch batch(sizes.config.batch, sizes.vocab);
    std::vector<SequenceId> ids(static_cast<size_t>(random.integer(1, 4)));
    std::iota(ids.begin(), ids.end(), 0);
    const int64_t length = random.integer(1, 4), rows = std::ssize(ids) * length,
                  graph_rows = rows + random.integer(0, 4),
                  graph_seqs = std::ssize(ids) + random.integer(0, 4);
    batch.prepare(prompts(ids, length, sizes));
    StepUpload upload;
    upload.begin(ctx, inputs.upload_bytes(batch, graph_rows, graph_seqs));
    inputs.load_padded(batch, graph_rows, graph_seqs, upload);
    upload.send(ctx);
    inputs.unpack(ctx);
    stream.synchronize();
    inputs.view_padded(graph_rows, graph_seqs, graph_rows, sizes.config.batch.max_model_len);
    const Tensor slots = inputs.attention().slot_mapping.to(Device{}),
                 lengths = inputs.attention().seq_lens.to(Device{});
    for (int64_t row = 0; row < graph_rows; ++row)
      EXPECT_EQ(slots.at<int64_t>({row}) == -1, row >= rows) << "row " << row << " of " << rows;
    for (int64_t i = 0; i < graph_seqs; ++i)
      EXPECT_EQ(lengths.at<int32_t>({i}), i < std::ssize(ids) ? length : 0) << "sequence " << i;
  }
}

// Steps of any size, each read on the device when its turn comes, some of them collected late.
class Hidden4_5_Copies : public ::testing::TestWithParam<Pace> {};
INSTANTIATE_TEST_SUITE_P(Paces, Hidden4_5_Copies, every_pace(), pace_name);

TEST_P(Hidden4_5_Copies, ArriveWholeAndInTheirOrder) {
  Random random;
  SCOPED_TRACE(random.describe());
  RecordingStream stream(GetParam(), random.engine()());
  const OpContext ctx = stream.context();
  StepUpload upload;
  StepDownload download;
  constexpr int kSteps = 40;
  std::vector<std::vector<int64_t>> sent(kSteps), seen(kSteps);
  std::vector<Tensor> results;
  std::vector<std::shared_ptr<DeviceEvent>> done;
  const Tensor token = Tensor::zeros({3}, DType::i32, ctx.device);
  for (int step = 0; step < kSteps; ++step) {
    if (step >= 2) {
      done[static_cast<size_t>(step) - 2]->wait();
      EXPECT_EQ(results[static_cast<size_t>(step) - 2].data<int32_t>()[1], step - 2);
    }
    const int64_t small = random.integer(1, 30),
                  large = random.integer(1, random.one_of<int64_t>({100, 60000}));
    upload.begin(ctx, StepUpload::bytes_of<int32_t>(small) + StepUpload::bytes_of<int64_t>(large));
    const auto first = upload.take<int32_t>(small);
    const auto second = upload.take<int64_t>(large);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(second.device.raw()) % 16, 0u);
    for (int64_t i = 0; i < small; ++i)
      sent[step].push_back(first.host[i] = static_cast<int32_t>(random.integer(0, 999)));
    for (int64_t i = 0; i < large; ++i) sent[step].push_back(second.host[i] = random.integer(0, 999));
    stream.clear();
    upload.send(ctx);
    EXPECT_EQ(stream.counts().copies_from_host, 1);
    // Addresses, as a kernel has them: they keep no memory.
    stream.launch({"read", 0,
                   [a = first.device.data<int32_t>(), b = second.device.data<int64_t>(), small, large,
                    &to = seen[step]] {
                     to.assign(a, a + small);
                     to.insert(to.end(), b, b + large);
                   }});
    stream.launch({"sample", 0, [token, step] { std::fill_n(token.data<int32_t>(), 3, step); }});
    download.begin(ctx, StepUpload::bytes_of<int32_t>(3));
    stream.clear();
    results.push_back(download.take(ctx, token));
    done.push_back(std::make_shared<DeviceEvent>());
    done.back()->record(ctx);
    upload.keep_until(done.back());
    download.keep_until(done.back());
    EXPECT_EQ(stream.counts().waits, 0) << "results are not waited for";
  }
  stream.synchronize();
  EXPECT_TRUE(seen == sent);
}

// The host is up to four steps ahead: a slot is waited for when all are taken, and no other is.
TEST(Hidden4_5_Copies, OneSlotIsWaitedForAtATime) {
  Random random;
  RecordingStream stream;
  const OpContext ctx = stream.context();
  StepUpload upload;
  std::vector<std::vector<int32_t>> sent, seen(20);
  for (int step = 0; step < 20; ++step) {
    const int64_t pending = stream.num_pending();
    upload.begin(ctx, StepUpload::bytes_of<int32_t>(7));
    const auto piece = upload.take<int32_t>(7);
    if (step >= PinnedRing::kNumSlots) {
      EXPECT_GT(stream.num_pending(), 0) << "of " << pending << " launches none is left";
    }
    sent.emplace_back();
    for (int i = 0; i < 7; ++i)
      sent.back().push_back(piece.host[i] = static_cast<int32_t>(random.integer(0, 99)));
    upload.send(ctx);
    stream.launch({"read", 0, [from = piece.device, &to = seen[step]] {
                     to.assign(from.data<int32_t>(), from.data<int32_t>() + 7);
                   }});
    auto done = std::make_shared<DeviceEvent>();
    done->record(ctx);
    upload.keep_until(done);
  }
  stream.synchronize();
  EXPECT_EQ(seen, sent);
}

class Hidden4_6_Graphs : public ::testing::TestWithParam<Pace> {};
INSTANTIATE_TEST_SUITE_P(Paces, Hidden4_6_Graphs, every_pace(), pace_name);

TEST_P(Hidden4_6_Graphs, ReplaysGiveWhatTheCpuGives) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 3 && !HasFailure(); ++round) {
    Sizes sizes(random, true);
    sizes.vocab = 97;
    const auto requests = requests_of(random, 16, sizes.vocab, false);
    CpuRunner cpu(sizes, random);
    auto expected = cpu.run(requests);
    for (DrivenResult& result : expected) result.logits.clear();
    RecordedRunner recorded(sizes.config, GetParam(), random.engine()());
    AheadOptions options;
    options.max_running = random.integer(1, sizes.config.batch.max_num_seqs);
    options.max_chunk = random.integer(1, 30);
    options.join_probability = random.uniform(0.3, 1);
    const auto results = AheadDriver(*recorded.runner, sizes.config, random).run(requests, options);
    EXPECT_GT(recorded.stream.counts().replays, 0);
    for (size_t i = 0; i < requests.size(); ++i) expect_same(expected[i], results[i]);
  }
}

// Chunks of prompts, of one token or of more, and prompts of one token, which are as good as decodes.
TEST(Hidden4_6_Graphs, HaveLogitsWhereEachRowYieldsAToken) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 40; ++round) {
    Sizes sizes(random, true);
    sizes.vocab = 97;
    RecordedRunner recorded(sizes.config);
    std::vector<SequenceId> ids(static_cast<size_t>(random.integer(1, 4)));
    std::iota(ids.begin(), ids.end(), 0);
    SchedulerOutput given = prompts(ids, 3, sizes);
    const bool chunks_of_one = random.integer(0, 3) > 0;
    bool each_yields = true;
    int64_t longest = 0;
    given.total_num_tokens = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      NewSequence& sequence = given.new_sequences[i];
      sequence.num_prompt_tokens = random.integer(0, 2) > 0 ? 1 : random.integer(1, 3);
      sequence.token_ids.resize(static_cast<size_t>(sequence.num_prompt_tokens));
      int64_t& rows = given.scheduled[i].num_tokens;
      rows = chunks_of_one ? 1 : random.integer(1, sequence.num_prompt_tokens);
      given.total_num_tokens += rows;
      each_yields &= rows == sequence.num_prompt_tokens;
      longest = std::max(longest, rows);
    }
    ModelRunner::Step step = recorded.runner->prepare(given);
    EXPECT_EQ(step.graph_has_logits, longest == 1 && each_yields) << "round " << round;
    EXPECT_EQ(step.graph != nullptr, longest > 1 || each_yields) << "round " << round;
    if (step.graph != nullptr) EXPECT_GE(step.graph->size.rows, given.total_num_tokens);
    recorded.runner->run(step);
    recorded.runner->sample(step);
    step.launched->collect();
  }
}

TEST(Hidden4_6_Graphs, HaveRoomForWhatTheyServeAndNoMoreThanNeeded) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200; ++round) {
    std::vector<GraphSize> sizes;
    for (int64_t i = random.integer(1, 9); i > 0; --i)
      sizes.push_back({random.integer(1, 50), random.integer(1, 50)});
    std::ranges::sort(sizes, [](const GraphSize& a, const GraphSize& b) {
      return std::pair(a.rows, a.max_seq_len) < std::pair(b.rows, b.max_seq_len);
    });
    const GraphSize wanted{random.integer(1, 55), random.integer(1, 55)};
    const auto fits = [&](const GraphSize& size) {
      return size.rows >= wanted.rows && size.max_seq_len >= wanted.max_seq_len;
    };
    const size_t expected = static_cast<size_t>(std::ranges::find_if(sizes, fits) - sizes.begin());
    EXPECT_EQ(find_graph_size(sizes, wanted), expected);
  }
}

TEST(Hidden4_6_Graphs, AreCapturedFromTheLargestAfterARun) {
  Random random;
  SCOPED_TRACE(random.describe());
  RecordingStream stream;
  OpContext ctx = stream.context();
  Arena arena(ctx.device);
  ctx.arena = &arena;
  std::vector<GraphSize> sizes{
      {random.integer(1, 3), 9}, {random.integer(4, 9), 9}, {random.integer(10, 20), 9}};
  std::vector<int64_t> calls, expected;
  for (size_t i = sizes.size(); i-- > 0;) expected.insert(expected.end(), 2, sizes[i].rows);
  StepGraphs graphs;
  graphs.capture(ctx, sizes, [&](GraphSize size) {
    calls.push_back(size.rows);
    stream.launch({"step", 0, [] {}}, {size.rows});
    return ctx.arena->take({size.rows, 7}, DType::f32);
  });
  EXPECT_EQ(calls, expected) << "each size runs once and is captured, the largest first";
}

}  // namespace
}  // namespace ladder
