// Task 6.1 on a GPU: what its switches may change (nothing), and how its types agree with the CPU's.
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::equal_or_near_tie;
using testing::GoldenCheckpoint;
using testing::same_bits;

// A bit of everything: greedy and drawn, filters, penalties, several completions, end tokens, log
// probabilities.
std::vector<Request> mixed_requests(const GoldenCheckpoint& checkpoint) {
  std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const size_t count = requests.size();
  for (size_t i = 0; i < count; ++i) {
    Request request = requests[i];
    request.sampling.seed = 100 + i;
    request.sampling.temperature = 0.9;
    if (i % 2 == 1) {
      request.sampling.top_k = 20;
      request.sampling.top_p = 0.9;
      request.sampling.min_p = 0.01;
    }
    if (i % 3 == 1) {
      request.sampling.repetition_penalty = 1.3;
      request.sampling.presence_penalty = 0.5;
      request.sampling.frequency_penalty = -0.5;
    }
    if (i % 3 == 2) request.sampling.n = 3;
    if (i % 4 == 3) request.sampling.stop_token_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    requests.push_back(request);
  }
  return requests;
}

class GpuSwitches : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { testing::need_device(DeviceType::cuda); }
  const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / GetParam());

  std::vector<RequestOutput> run(bool graphs, bool async, bool dependent, int64_t max_num_seqs = 16) const {
    EngineOptions options =
        testing::small_options(checkpoint.directory, DeviceType::cuda, checkpoint.max_model_len);
    options.runner.cuda_graphs = graphs;
    options.runner.async_scheduling = async;
    options.runner.dependent_launch = dependent;
    options.runner.batch.max_num_seqs = max_num_seqs;
    const std::unique_ptr<Engine> engine = engine_with(options);
    std::vector<RequestOutput> outputs = engine->generate(mixed_requests(checkpoint));
    EXPECT_EQ(engine->scheduler().blocks().num_used_blocks(), 0);
    EXPECT_EQ(engine->scheduler().num_steps_in_flight(), 0);
    return outputs;
  }
  static void expect_same(const std::vector<RequestOutput>& outputs, const std::vector<RequestOutput>& plain,
                          const char* what) {
    ASSERT_EQ(outputs.size(), plain.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(same_bits(outputs[i], plain[i])) << what << ", request " << i;
      for (size_t c = 0; c < plain[i].completions.size(); ++c)
        EXPECT_EQ(outputs[i].completions[c].finish_reason, plain[i].completions[c].finish_reason);
    }
  }
};

TEST_P(GpuSwitches, GraphsAsynchronyAndDependentLaunchChangeNoBitInF32) {
  const auto plain = run(false, false, false);
  expect_same(run(false, false, true), plain, "dependent launch");
  expect_same(run(true, false, false), plain, "graphs");
  expect_same(run(false, true, false), plain, "asynchronous");
  expect_same(run(true, true, true), plain, "everything");
  expect_same(run(true, true, true, 5), plain, "everything, five at a time: graphs with padding rows");
}

INSTANTIATE_TEST_SUITE_P(Goldens, GpuSwitches,
                         ::testing::Values("qwen3_tied", "qwen2_bias", "llama_one_kv_head", "qwen3_odd_sizes",
                                           "qwen3_dynamic_ntk"),
                         [](const auto& info) { return info.param; });

// The drawn tokens of a request are those of the CPU: the noise is the same function on both.
TEST(GpuEngine, DrawsTheTokensThatTheCpuDraws) {
  testing::need_device(DeviceType::cuda);
  if (::testing::Test::IsSkipped()) return;
  for (const char* name : {"qwen3_tied", "llama_biases"}) {
    const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / name);
    const auto run = [&](DeviceType device) {
      return engine_with(testing::small_options(checkpoint.directory, device, checkpoint.max_model_len))
          ->generate(mixed_requests(checkpoint));
    };
    const auto cpu = run(DeviceType::cpu), gpu = run(DeviceType::cuda);
    for (size_t i = 0; i < cpu.size(); ++i) {
      ASSERT_EQ(cpu[i].completions.size(), gpu[i].completions.size());
      for (size_t c = 0; c < cpu[i].completions.size(); ++c) {
        const CompletionOutput &theirs = cpu[i].completions[c], &ours = gpu[i].completions[c];
        EXPECT_EQ(ours.token_ids, theirs.token_ids) << name << ", request " << i << ", completion " << c;
        if (ours.token_ids != theirs.token_ids) continue;
        std::vector<double> a, b;
        for (const PositionLogprobs& position : ours.logprobs) a.push_back(position.chosen.logprob);
        for (const PositionLogprobs& position : theirs.logprobs) b.push_back(position.chosen.logprob);
        EXPECT_TRUE(testing::close_to(a, b, static_cast<int64_t>(b.size()), 1e-4))
            << name << ", request " << i;
      }
    }
  }
}

class GpuTypes : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { testing::need_device(DeviceType::cuda); }
};

std::vector<std::vector<int32_t>> texts_of(const GoldenCheckpoint& checkpoint) {
  std::vector<std::vector<int32_t>> texts;
  for (const testing::GoldenPrompt& prompt : checkpoint.prompts) {
    texts.push_back(prompt.token_ids);
    texts.back().insert(texts.back().end(), prompt.greedy_token_ids.begin(), prompt.greedy_token_ids.end());
  }
  return texts;
}

// The same text on both devices: a GPU's log probabilities are no further from f32's than the CPU's in the
// same type. And left to choose: random small models find many tokens about as likely, so most answers part
// somewhere, where the difference is no more than what the type costs.
TEST_P(GpuTypes, SmallModelsRoundAsTheCpuDoesAndPartAtNearTies) {
  for (const std::string& name : testing::golden_names(testing::golden_folder())) {
    const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / name);
    EngineOptions options =
        testing::small_options(checkpoint.directory, DeviceType::cuda, checkpoint.max_model_len);
    options.dtype = GetParam();
    const testing::TypeCost cost = testing::type_cost(options, texts_of(checkpoint));
    const testing::Deviation gpu =
        testing::deviation(testing::score(options, texts_of(checkpoint)), cost.exact);
    std::printf("%s: rms error of log probabilities %.2e, on the CPU %.2e\n", name.c_str(), gpu.rms,
                cost.cpu.rms);
    EXPECT_LE(gpu.rms, GetParam() == DType::f32 ? 1e-5 : 1.5 * cost.cpu.rms) << name;

    const auto ours = engine_with(options)->generate(testing::greedy_requests(checkpoint));
    options.runner.device = {};
    const auto theirs = engine_with(options)->generate(testing::greedy_requests(checkpoint));
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(equal_or_near_tie(theirs[i].completions[0], ours[i].completions[0], cost.near_tie,
                                    name + ", prompt " + std::to_string(i)));
  }
}

// The trained model is sure of its answers, so few of them may part; text and stop strings included.
TEST_P(GpuTypes, TheTinyModelGivesTheCpusAnswers) {
  const std::filesystem::path model = testing::tiny_model();
  std::vector<Request> requests;
  std::ifstream lines(model / "demo_prompts.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    Request& request = requests.emplace_back();
    request.prompt = json.at("prompt").get<std::string>();
    request.sampling.temperature = 0.0;
    request.sampling.max_tokens = json.value("max_tokens", int64_t{16});
    if (json.contains("stop")) request.sampling.stop = json.at("stop").get<std::vector<std::string>>();
    request.sampling.logprobs = 4;
  }
  ASSERT_GE(requests.size(), 8u);
  const auto options_for = [&](DeviceType device) {
    EngineOptions options = testing::small_options(model, device, 1024);
    options.runner.kv_memory = int64_t{64} << 20;
    options.runner.batch.max_num_batched_tokens = 256;
    options.dtype = GetParam();
    return options;
  };
  const auto run = [&](DeviceType device) { return engine_with(options_for(device))->generate(requests); };
  const auto cpu = run(DeviceType::cpu), gpu = run(DeviceType::cuda);
  std::vector<std::vector<int32_t>> texts;
  for (const RequestOutput& output : cpu) texts.push_back(output.prompt_token_ids);
  const double near_tie = testing::type_cost(options_for(DeviceType::cpu), texts).near_tie;
  size_t different = 0;
  for (size_t i = 0; i < cpu.size(); ++i) {
    const CompletionOutput &theirs = cpu[i].completions[0], &ours = gpu[i].completions[0];
    EXPECT_TRUE(equal_or_near_tie(theirs, ours, near_tie, "demo prompt " + std::to_string(i)));
    if (ours.token_ids != theirs.token_ids) {
      ++different;
      continue;
    }
    EXPECT_EQ(ours.text, theirs.text) << "demo prompt " << i;
    EXPECT_EQ(ours.finish_reason, theirs.finish_reason) << "demo prompt " << i;
  }
  EXPECT_LE(different, GetParam() == DType::f32 ? 0u : 2u);
}

// What f32 promises to the bit (GoldenEngine), the narrower types promise up to a near tie: kernels
// are chosen by the number of rows, and each sums in an order of its own.
TEST_P(GpuTypes, BatchesChunksCacheAndPreemptionMoveAnAnswerNoFurtherThanANearTie) {
  for (const char* name : {"qwen3_tied", "llama_biases", "qwen2_mha_f16"}) {
    const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / name);
    const std::vector<Request> requests = testing::greedy_requests(checkpoint);
    EngineOptions plain = testing::small_options(checkpoint.directory, DeviceType::cuda, 128);
    plain.dtype = GetParam();
    const double near_tie = testing::type_cost(plain, texts_of(checkpoint)).near_tie;
    plain.enable_prefix_caching = false;
    std::vector<RequestOutput> alone;
    {
      const std::unique_ptr<Engine> engine = engine_with(plain);
      for (const Request& request : requests) alone.push_back(engine->generate({request})[0]);
    }
    const auto compare = [&](const std::vector<RequestOutput>& outputs, const std::string& how) {
      for (size_t i = 0; i < outputs.size(); ++i)
        EXPECT_TRUE(equal_or_near_tie(alone[i].completions[0], outputs[i].completions[0], near_tie,
                                      name + (", prompt " + std::to_string(i)) + ", " + how));
    };
    for (int64_t chunk : {5, 64}) {
      EngineOptions options = plain;
      options.runner.batch.max_num_batched_tokens = chunk;
      compare(engine_with(options)->generate(requests), "chunks of " + std::to_string(chunk));
    }
    EngineOptions cached = plain;
    cached.enable_prefix_caching = true;
    const std::unique_ptr<Engine> engine = engine_with(cached);
    engine->generate(requests);
    compare(engine->generate(requests), "warm prefix cache");
    EngineOptions cramped = plain;
    cramped.runner.kv_memory = 0;
    cramped.runner.batch.block_size = 4;
    cramped.runner.batch.num_kv_blocks = 33;
    const std::unique_ptr<Engine> small = engine_with(cramped);
    compare(small->generate(requests), "preempted");
    EXPECT_GT(small->metrics().num_preemptions, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuTypes, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace ladder
