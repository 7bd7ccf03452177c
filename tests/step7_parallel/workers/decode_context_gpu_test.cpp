// Task 7.11 on GPUs: worker processes that share out the keys of a head answer what one rank answers.
#include <gtest/gtest.h>

#include "tests/step7_parallel/workers/worker_program.h"

namespace ladder {
namespace {

// Prompts whole and in chunks, cold and with prefix hits, decoding replayed from
// graphs, and cramped, so that sequences are preempted; f32, on kernels for any head size.
class Task7_11_GpuGoldens : public ::testing::TestWithParam<std::string> {};

TEST_P(Task7_11_GpuGoldens, GiveTheTokensOfOneRankOrPartAtANearTie) {
  std::string reason;
  const int gpus = cuda_device_count(&reason);
  if (gpus < 2) GTEST_SKIP() << "two GPUs are needed and there are " << gpus << ": " << reason;
  const auto checkpoint = testing::load_golden(testing::golden_folder() / GetParam());
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const EngineOptions one =
      testing::small_options(checkpoint.directory, DeviceType::cuda, checkpoint.max_model_len);
  const auto alone = testing::engine_with(one)->generate(requests);
  for (const auto& [tp, shares] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
    if (gpus < tp || !testing::fits(spec, {tp, 1}) || tp / spec.num_kv_heads % shares != 0 ||
        tp <= spec.num_kv_heads)
      continue;
    for (const int64_t chunk : {64, 5}) {
      EngineOptions options = testing::on_grid(one, {tp, 1});
      options.runner.decode_context_parallel_size = shares;
      options.runner.kv_interleave_size = chunk == 5 ? 2 : 1;
      options.runner.batch.max_num_batched_tokens = chunk;
      if (chunk == 5) {
        options.runner.kv_memory = 0;
        options.runner.batch.num_kv_blocks =
            (checkpoint.max_model_len - 1) / options.runner.batch.block_size + 2;
      }
      const std::unique_ptr<Engine> engine = testing::engine_with(testing::on_workers(options));
      for (const char* cache : {"cold", "warm"}) {
        const auto outputs = engine->generate(requests);
        for (size_t i = 0; i < outputs.size(); ++i)
          EXPECT_TRUE(testing::answers_as_one_rank(
              alone[i], outputs[i], {tp, 1},
              fmt::format("{}, {} ranks, {} share keys, chunks of {}, {} cache, prompt {}", checkpoint.name,
                          tp, shares, chunk, cache, i)));
      }
    }
  }
}

std::vector<std::string> goldens_that_can_share() {
  std::vector<std::string> names;
  for (const std::string& name : testing::golden_names(testing::golden_folder())) {
    const DecoderSpec spec = load_decoder_spec(testing::golden_folder() / name);
    if (spec.num_kv_heads <= 2 && testing::fits(spec, {2 * static_cast<int>(spec.num_kv_heads), 1}))
      names.push_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Task7_11_GpuGoldens, ::testing::ValuesIn(goldens_that_can_share()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ladder
