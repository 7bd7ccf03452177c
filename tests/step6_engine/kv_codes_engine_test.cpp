// Task 8.6: the engine with a KV cache of codes. A token's codes are its own, so that nothing around a request changes a bit
// of it, as with a cache of numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "step1_layers/attention/kv_codes.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::GoldenCheckpoint;
using testing::same_bits;

class Task8_6_Engine : public ::testing::TestWithParam<std::tuple<std::string, KvCacheDType, DeviceType>> {
 protected:
  void SetUp() override { testing::need_device(std::get<2>(GetParam())); }

  const GoldenCheckpoint checkpoint =
      testing::load_golden(testing::golden_folder() / std::get<0>(GetParam()));

  EngineOptions options() const { return options(std::get<2>(GetParam())); }
  EngineOptions options(DeviceType device) const {
    EngineOptions options = testing::small_options(checkpoint.directory, device, checkpoint.max_model_len);
    options.runner.kv_cache_dtype = std::get<1>(GetParam());
    options.enable_prefix_caching = false;
    return options;
  }
};

TEST_P(Task8_6_Engine, NothingAroundARequestChangesABitOfIt) {
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  std::vector<RequestOutput> alone;
  {
    const std::unique_ptr<Engine> engine = engine_with(options());
    for (const Request& request : requests) alone.push_back(engine->generate({request})[0]);
  }
  const auto expect_same = [&](const std::vector<RequestOutput>& outputs, const std::string& how) {
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(same_bits(outputs[i], alone[i % alone.size()])) << how << ", prompt " << i;
  };
  for (const int64_t chunk : {3, 64}) {
    EngineOptions chunked = options();
    chunked.runner.batch.max_num_batched_tokens = chunk;
    expect_same(engine_with(chunked)->generate(requests), "in a batch");
  }
  EngineOptions cached = options();
  cached.enable_prefix_caching = true;
  cached.runner.batch.block_size = 4;
  const std::unique_ptr<Engine> engine = engine_with(cached);
  expect_same(engine->generate(requests), "cold prefix cache");
  expect_same(engine->generate(requests), "warm prefix cache");
  // Less room than for all of them twice: what the preempted had stored is computed, and rounded, once more.
  int64_t longest = 0;
  for (const Request& request : requests)
    longest = std::max(longest, std::ssize(request.prompt_token_ids) + *request.sampling.max_tokens);
  EngineOptions cramped = cached;
  cramped.runner.kv_memory = 0;
  cramped.runner.batch.num_kv_blocks = std::max(longest, checkpoint.max_model_len) / 4 + 2;
  if (checkpoint.max_model_len == 0) cramped.runner.batch.max_model_len = longest;
  std::vector<Request> crowd = requests;
  crowd.insert(crowd.end(), requests.begin(), requests.end());
  for (const bool prefix_caching : {false, true}) {
    cramped.enable_prefix_caching = prefix_caching;
    const std::unique_ptr<Engine> small = engine_with(cramped);
    expect_same(small->generate(crowd), "preempted");
    EXPECT_GT(small->metrics().num_preemptions, 0);
  }
}

TEST_P(Task8_6_Engine, RoundsWhatItKeeps) {
  EngineOptions plain = options();
  plain.runner.kv_cache_dtype = KvCacheDType::automatic;
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const std::unique_ptr<Engine> with_codes = engine_with(options()), without = engine_with(plain);
  const auto outputs = with_codes->generate(requests), exact = without->generate(requests);
  bool all_same = true;
  for (size_t i = 0; i < outputs.size(); ++i) all_same &= static_cast<bool>(same_bits(outputs[i], exact[i]));
  EXPECT_FALSE(all_same) << "nothing was rounded";
}

// A number that lies between two codes may become the other one on a GPU, which is a step of that number: no more than near ties
// are decided by it.
TEST_P(Task8_6_Engine, GivesTheTokensOfTheCpu) {
  if (std::get<2>(GetParam()) == DeviceType::cpu) GTEST_SKIP() << "this is the CPU";
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto ours = engine_with(options())->generate(requests),
             theirs = engine_with(options(DeviceType::cpu))->generate(requests);
  for (size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(testing::equal_or_near_tie(theirs[i].completions[0], ours[i].completions[0], 1e-2,
                                           "prompt " + std::to_string(i)));
}

INSTANTIATE_TEST_SUITE_P(Goldens, Task8_6_Engine,
                         ::testing::Combine(::testing::Values("qwen3_tied", "llama_2_f16", "opt_pre_norm"),
                                            ::testing::Values(KvCacheDType::fp8, KvCacheDType::int8,
                                                              KvCacheDType::int4),
                                            testing::both_devices()),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  std::string(kv_cache_dtype_name(std::get<1>(info.param))) + "_" +
                                  testing::device_word(std::get<2>(info.param));
                         });

// The trained model, whose heads the kernels on tensor cores take, in the types that they serve.
class Task8_6_GpuEngine : public ::testing::TestWithParam<std::tuple<DType, KvCacheDType>> {
 protected:
  void SetUp() override { testing::need_device(DeviceType::cuda); }

  static EngineOptions options(DeviceType device) {
    EngineOptions options = testing::small_options(testing::tiny_model(), device, 1024);
    options.runner.kv_memory = int64_t{64} << 20;
    options.runner.batch.max_num_batched_tokens = 256;
    options.dtype = std::get<0>(GetParam());
    options.runner.kv_cache_dtype = std::get<1>(GetParam());
    return options;
  }
  static std::vector<Request> requests() {
    std::vector<Request> requests;
    std::ifstream lines(testing::tiny_model() / "demo_prompts.jsonl");
    for (std::string line; std::getline(lines, line);) {
      Request& request = requests.emplace_back();
      request.prompt = nlohmann::json::parse(line).at("prompt").get<std::string>();
      request.sampling.temperature = 0.0;
      request.sampling.max_tokens = 24;
      request.sampling.logprobs = 4;
    }
    return requests;
  }
};

TEST_P(Task8_6_GpuEngine, GivesTheAnswersOfTheCpuHoweverItIsServed) {
  const std::vector<RequestOutput> cpu = engine_with(options(DeviceType::cpu))->generate(requests());
  ASSERT_GE(cpu.size(), 8u);
  std::vector<std::vector<int32_t>> texts;
  for (const RequestOutput& output : cpu) texts.push_back(output.prompt_token_ids);
  const double near_tie = testing::type_cost(options(DeviceType::cpu), texts).near_tie;
  // A number that a 16-bit sum has moved over the middle between two codes gets the other one: of int4 a fifteenth of what its
  // head spans, so that gaps between words are no longer near ties.
  const bool is_coarse =
      std::get<1>(GetParam()) == KvCacheDType::int4 && std::get<0>(GetParam()) != DType::f32;
  const int most_different = is_coarse ? static_cast<int>(cpu.size()) / 2 : 2;
  const auto expect_close = [&](const std::vector<RequestOutput>& gpu, const std::string& how) {
    int different = 0;
    for (size_t i = 0; i < cpu.size(); ++i) {
      const CompletionOutput &theirs = cpu[i].completions[0], &ours = gpu[i].completions[0];
      EXPECT_TRUE(testing::equal_or_near_tie(theirs, ours, near_tie, how + ", prompt " + std::to_string(i)));
      different += ours.token_ids != theirs.token_ids ? 1 : 0;
    }
    EXPECT_LE(different, most_different) << how;
  };
  expect_close(engine_with(options(DeviceType::cuda))->generate(requests()), "graphs");
  EngineOptions eager = options(DeviceType::cuda);
  eager.runner.cuda_graphs = false;
  eager.runner.batch.max_num_batched_tokens = 19;  // chunks
  expect_close(engine_with(eager)->generate(requests()), "eager, in chunks");
  EngineOptions cached = options(DeviceType::cuda);
  cached.enable_prefix_caching = true;
  const std::unique_ptr<Engine> engine = engine_with(cached);
  expect_close(engine->generate(requests()), "cold prefix cache");
  expect_close(engine->generate(requests()), "warm prefix cache");
}

INSTANTIATE_TEST_SUITE_P(Types, Task8_6_GpuEngine,
                         ::testing::Combine(::testing::Values(DType::bf16, DType::f16),
                                            ::testing::Values(KvCacheDType::fp8, KvCacheDType::int8,
                                                              KvCacheDType::int4)),
                         [](const auto& info) {
                           return std::string(dtype_name(std::get<0>(info.param))) + "_" +
                                  std::string(kv_cache_dtype_name(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace ladder
