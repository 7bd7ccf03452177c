// From a folder and switches to an engine: what is plugged in, and the sizes that scoring needs.
#include "step6_engine/load_engine.h"

#include <gtest/gtest.h>

#include <fstream>

#include "step1_layers/core/error.h"
#include "step6_engine/generation_config.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

EngineOptions fake_options(ExecutorOptions* seen = nullptr) {
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  options.makers.executor = [seen](const ExecutorOptions& given) {
    if (seen != nullptr) *seen = given;
    return MadeExecutor{std::make_unique<testing::FakeExecutor>(testing::mixed), given.config.batch};
  };
  return options;
}

TEST(LoadEngine, TakesTheExecutorThatItIsGiven) {
  ExecutorOptions seen;
  const ModelFolder folder = open_model_folder(testing::tiny_model());
  const std::unique_ptr<Engine> engine = load_engine(fake_options(&seen), folder);
  EXPECT_EQ(seen.model, testing::tiny_model());
  EXPECT_EQ(seen.spec.vocab_size, folder.spec.vocab_size);
  EXPECT_EQ(seen.config.batch.max_model_len, 64);
  EXPECT_GT(seen.config.batch.num_kv_blocks, 0) << "resolved";
  EXPECT_EQ(engine->scheduler().config().batch.num_kv_blocks, seen.config.batch.num_kv_blocks);
  EXPECT_EQ(engine->generate({testing::token_request({1, 2, 3}, 9)})[0].completions[0].token_ids,
            testing::expected_tokens({1, 2, 3}, 9));
}

TEST(LoadEngine, GivesTheSchedulerEveryOption) {
  const ModelFolder folder = open_model_folder(testing::tiny_model());
  EngineOptions options = fake_options();
  options.policy = SchedulingPolicy::priority;
  options.enable_prefix_caching = false;
  options.max_num_partial_prefills = 3;
  options.max_long_partial_prefills = 2;
  options.long_prefill_token_threshold = 7;
  options.watermark = 0.25;
  options.max_logprobs = 4;
  const SchedulerConfig shared = load_engine(options, folder)->scheduler().config();
  EXPECT_EQ(shared.vocab_size, folder.spec.vocab_size);
  EXPECT_EQ(shared.eos_token_ids, folder.spec.eos_token_ids);
  EXPECT_EQ(shared.policy, SchedulingPolicy::priority);
  EXPECT_FALSE(shared.enable_prefix_caching);
  EXPECT_TRUE(shared.enable_chunked_prefill);
  EXPECT_EQ(shared.max_num_partial_prefills, 3);
  EXPECT_EQ(shared.max_long_partial_prefills, 2);
  EXPECT_EQ(shared.long_prefill_token_threshold, 7);
  EXPECT_EQ(shared.watermark, 0.25);
  EXPECT_EQ(shared.max_logprobs, 4);

  options = fake_options();
  options.enable_chunked_prefill = false;
  options.static_batching = true;
  options.recompute_everything = true;
  const SchedulerConfig baseline = load_engine(options, folder)->scheduler().config();
  EXPECT_EQ(baseline.policy, SchedulingPolicy::fcfs);
  EXPECT_TRUE(baseline.enable_prefix_caching);
  EXPECT_FALSE(baseline.enable_chunked_prefill);
  EXPECT_TRUE(baseline.static_batching);
  EXPECT_TRUE(baseline.recompute_everything);
}

TEST(LoadEngine, TheEndTokenOfTheTokenizerEndsToo) {
  const testing::TemporaryFolder folder;
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(testing::tiny_model() / name, folder / name);
  const int32_t end = *open_model_folder(folder.path()).tokenizer->eos_token_id();
  const auto with_config_end = [&](const nlohmann::json& id) {
    nlohmann::json config = nlohmann::json::parse(std::ifstream(testing::tiny_model() / "config.json"));
    config["eos_token_id"] = id;
    std::ofstream(folder / "config.json") << config;
    return open_model_folder(folder.path()).spec.eos_token_ids;
  };
  EXPECT_EQ(with_config_end(nullptr), std::vector<int32_t>{end});
  EXPECT_EQ(with_config_end(1), (std::vector<int32_t>{1, end}));
  EXPECT_EQ(with_config_end(end), std::vector<int32_t>{end});
}

TEST(LoadEngine, TellsHowFarTheWeightsAre) {
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  int64_t last = 0, all = 0;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    last = done, all = total;
  };
  load_engine(options, open_model_folder(testing::tiny_model()));
  EXPECT_GT(all, 0);
  EXPECT_EQ(last, all);
}

TEST(LoadEngine, GivesTheMakersOfTheModelOn) {
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  const ModelFolder folder = open_model_folder(testing::tiny_model());
  const std::vector<Request> requests = {testing::token_request({1, 2, 3}, 3)};
  const auto tokens = [&] {
    return load_engine(options, folder)->generate(requests)[0].completions[0].token_ids;
  };
  const std::vector<int32_t> own = tokens();
  std::vector<std::string> names;
  options.makers.model.linear_method = [&](const OpContext&, const NamedLinear& linear) {
    names.push_back(linear.name);
    return nullptr;  // the model's own
  };
  EXPECT_EQ(tokens(), own);
  EXPECT_EQ(std::ssize(names), 4 * folder.spec.num_layers);
  options.makers.model.linear_method = [](const OpContext&,
                                          const NamedLinear& linear) -> std::shared_ptr<const LinearMethod> {
    throw Error("no method for " + linear.name);
  };
  try {
    load_engine(options, folder);
    FAIL() << "the maker was not asked";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layers.0.qkv_proj"), std::string::npos) << error.what();
  }
}

// Scoring needs max_model_len tokens of prompt and one that is sampled and dropped.
TEST(LoadEngine, FullLengthPromptsFitWithoutChunkedPrefill) {
  EngineOptions options = fake_options();
  options.full_length_prompts = true;
  options.enable_chunked_prefill = false;
  options.runner.batch.max_num_batched_tokens = 0;  // not set
  options.runner.kv_memory = int64_t{1} << 30;
  const ModelFolder folder = open_model_folder(testing::tiny_model());
  for (const int64_t max_model_len : {int64_t{64}, int64_t{600}, int64_t{0}}) {
    options.runner.batch.max_model_len = max_model_len;
    const std::unique_ptr<Engine> engine = load_engine(options, folder);
    const int64_t longest = engine->scheduler().config().batch.max_model_len - 1;
    if (max_model_len > 0) {
      EXPECT_EQ(longest, max_model_len);
    }
    Request text = testing::token_request(std::vector<int32_t>(static_cast<size_t>(longest), 3), 1);
    text.sampling.prompt_logprobs = 0;
    EXPECT_EQ(std::ssize(engine->generate({text})[0].prompt_logprobs), longest - 1);
    EXPECT_EQ(engine->metrics().num_steps, 1);
  }

  options.runner.batch.max_model_len = 64;
  options.runner.batch.max_num_batched_tokens = 65;
  EXPECT_NO_THROW(load_engine(options, folder));
  options.runner.batch.max_num_batched_tokens = 64;
  try {
    load_engine(options, folder);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("65"), std::string::npos) << error.what();
  }
}

class GenerationConfig : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(folder_.path() / "generation_config.json") << text; }
  SamplingParams read(const std::string& which = "auto") const {
    return default_sampling_params(folder_.path(), which);
  }
  testing::TemporaryFolder folder_;
};

TEST_F(GenerationConfig, ItsFieldsAreTheDefaults) {
  EXPECT_EQ(read(), SamplingParams{}) << "there is no such file";
  write(R"({"do_sample":true,"eos_token_id":[1,2],"temperature":0.6,"top_k":20,"top_p":0.95,"min_p":0.05,)"
        R"("repetition_penalty":1.1,"max_new_tokens":512,"transformers_version":"4.51.0"})");
  SamplingParams expected;
  expected.temperature = 0.6;
  expected.top_k = 20;
  expected.top_p = 0.95;
  expected.min_p = 0.05;
  expected.repetition_penalty = 1.1;
  expected.max_tokens = 512;
  EXPECT_EQ(read(), expected);
  EXPECT_EQ(read("vllm"), SamplingParams{});
  EXPECT_EQ(default_sampling_params("elsewhere", folder_.path().string()), expected);
  EXPECT_THROW(read("no such folder"), Error);
  write(R"({"temperature":null,"top_k":null,"max_new_tokens":null})");
  EXPECT_EQ(read(), SamplingParams{});
}

TEST_F(GenerationConfig, WhatMakesNoSenseIsNamedWithItsFile) {
  for (const auto& [text, field] :
       {std::pair(R"({"temperature":"hot"})", "temperature"),
        std::pair(R"({"temperature":-1})", "temperature"), std::pair(R"({"top_k":1.5})", "top_k"),
        std::pair(R"({"top_k":-2})", "top_k"), std::pair(R"({"top_p":0})", "top_p"),
        std::pair(R"({"max_new_tokens":0})", "max_tokens"), std::pair(R"([1])", "object")}) {
    write(text);
    try {
      read();
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("generation_config.json"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
  }
}

TEST_F(GenerationConfig, AModelFolderHasItsDefaults) {
  std::filesystem::copy_file(testing::tiny_model() / "config.json", folder_ / "config.json");
  write(R"({"temperature":0.25})");
  EXPECT_EQ(open_model_folder(folder_.path()).default_sampling.temperature, 0.25);
  EXPECT_EQ(open_model_folder(folder_.path(), "vllm").default_sampling, SamplingParams{});
}

}  // namespace
}  // namespace ladder
