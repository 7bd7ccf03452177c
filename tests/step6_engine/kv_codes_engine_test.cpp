// Task 8.6: the engine with a KV cache of codes. A token's codes are its own, so that nothing around a request changes a bit
// of it, as with a cache of numbers.
#include <gtest/gtest.h>

#include <tuple>

#include "step1_layers/attention/kv_codes.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::GoldenCheckpoint;
using testing::same_bits;

class Task8_6_Engine : public ::testing::TestWithParam<std::tuple<std::string, KvCacheDType>> {
 protected:
  const GoldenCheckpoint checkpoint =
      testing::load_golden(testing::golden_folder() / std::get<0>(GetParam()));

  EngineOptions options() const {
    EngineOptions options =
        testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
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

INSTANTIATE_TEST_SUITE_P(Goldens, Task8_6_Engine,
                         ::testing::Combine(::testing::Values("qwen3_tied", "llama_2_f16", "opt_pre_norm"),
                                            ::testing::Values(KvCacheDType::fp8, KvCacheDType::int8,
                                                              KvCacheDType::int4)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  std::string(kv_cache_dtype_name(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace ladder
