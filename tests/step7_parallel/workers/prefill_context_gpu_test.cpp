// Engines whose ranks are two GPUs and share out the rows of every step: what they answer is what one GPU answers.
#include <gtest/gtest.h>

#include "tests/step7_parallel/workers/worker_program.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::on_grid;
using testing::on_workers;

class TwoContextGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (const int count = cuda_device_count(&reason); count < 2)
      GTEST_SKIP() << "2 GPUs are needed and there are " << count << ": " << reason;
  }

  // Cold, then with prefix hits.
  static void expect_the_answers_of_one(const EngineOptions& options, const std::vector<Request>& requests,
                                        const std::string& what) {
    const auto expected = engine_with(options)->generate(requests);
    EngineOptions shared = on_workers(on_grid(options, {1, 1, 2}));
    const std::unique_ptr<Engine> engine = engine_with(shared);
    for (const char* cache : {"cold", "warm"}) {
      const auto outputs = engine->generate(requests);
      for (size_t i = 0; i < outputs.size(); ++i)
        EXPECT_TRUE(testing::equal_or_near_tie(expected[i].completions[0], outputs[i].completions[0], 1e-4,
                                               fmt::format("{}, {} cache, prompt {}", what, cache, i)));
    }
  }
};

EngineOptions on_gpu(const std::filesystem::path& model, int64_t max_model_len) {
  return testing::small_options(model, DeviceType::cuda, max_model_len);
}

using Task7_12_TwoGpusTogether = TwoContextGpus;
class Task7_12_TwoGpus : public TwoContextGpus, public ::testing::WithParamInterface<std::string> {};

TEST_P(Task7_12_TwoGpus, GiveTheGoldenOfOne) {
  const auto checkpoint = testing::load_golden(testing::golden_folder() / GetParam());
  for (const int64_t chunk : {64, 5}) {
    EngineOptions options = on_gpu(checkpoint.directory, checkpoint.max_model_len);
    options.runner.batch.max_num_seqs = chunk == 5 ? 4 : 16;
    options.runner.batch.max_num_batched_tokens = chunk;
    expect_the_answers_of_one(options, testing::greedy_requests(checkpoint),
                              fmt::format("{}, chunks of {}", GetParam(), chunk));
  }
}
INSTANTIATE_TEST_SUITE_P(Goldens, Task7_12_TwoGpus,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder())),
                         [](const auto& info) { return info.param; });

// Unequal prompts, one of them many chunks long, and decodes afterwards; with graphs and without.
TEST_F(Task7_12_TwoGpusTogether, ServeLongAndShortPromptsTogether) {
  EngineOptions options = on_gpu(testing::tiny_model(), 256);
  options.runner.kv_memory = int64_t{32} << 20;
  testing::Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests;
  for (const int64_t length : {200, 1, 2, 3, 4, 5, 33, 64, 65, 127}) {
    Request& request = requests.emplace_back();
    for (int64_t i = 0; i < length; ++i)
      request.prompt_token_ids.push_back(static_cast<int32_t>(random.integer(300, 2000)));
    request.sampling.temperature = 0.0;
    request.sampling.max_tokens = 16;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 4;
  }
  for (const bool graphs : {false, true}) {
    options.runner.cuda_graphs = graphs;
    expect_the_answers_of_one(options, requests, graphs ? "graphs" : "eager");
    for (const Request& request : {requests[0], requests[1], requests[4]})
      expect_the_answers_of_one(options, {request}, "by itself");
  }
}

}  // namespace
}  // namespace ladder
