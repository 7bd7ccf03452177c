#pragma once
// What the tests of two engines ask them, and how the answers are compared.
#include <string>
#include <vector>

#include "step7_parallel/pipeline/split_layers.h"
#include "tests/step7_parallel/engine_on_grid.h"
#include "tests/support/narrow_model.h"

namespace ladder::testing {

inline EngineOptions with_ranks(EngineOptions options, Grid grid) {
  options.runner.tensor_parallel_size = grid.tp;
  options.runner.pipeline_parallel_size = grid.pp;
  options.makers.split_layers = split_layers;
  return options;
}

// A model whose tokens are text, in blocks of 4.
inline EngineOptions tiny_options() {
  EngineOptions options = small_options(narrow_model(), DeviceType::cpu, 128);
  options.runner.load_format = LoadFormat::dummy;
  options.runner.batch.block_size = 4;
  options.runner.kv_memory = int64_t{1} << 20;  // room to keep all prompts of a test
  return options;
}

inline std::vector<Request> random_requests(Random& random, int count) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request;
    for (int64_t length = random.integer(2, 60); length > 0; --length)
      request.prompt_token_ids.push_back(static_cast<int32_t>(random.integer(300, 2000)));
    request.sampling.max_tokens = random.integer(1, 12);
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 3;
    request.sampling.temperature = i % 2 == 0 ? 0.8 : 0.0;
    request.sampling.seed = i;
    if (i % 4 == 1) request.sampling.repetition_penalty = 1.2;
    if (i % 3 == 2) request.sampling.n = 2;
    if (i % 5 == 3) request.sampling.stop = {"a"};
    requests.push_back(request);
  }
  return requests;
}

inline void expect_same(const std::vector<RequestOutput>& outputs,
                        const std::vector<RequestOutput>& expected) {
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(same_bits(outputs[i], expected[i])) << "request " << i;
    for (size_t c = 0; c < std::min(outputs[i].completions.size(), expected[i].completions.size()); ++c) {
      EXPECT_EQ(outputs[i].completions[c].text, expected[i].completions[c].text) << "request " << i;
      EXPECT_EQ(outputs[i].completions[c].finish_reason, expected[i].completions[c].finish_reason);
    }
  }
}

}  // namespace ladder::testing
