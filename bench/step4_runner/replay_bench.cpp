// Task 4.6: a decode step as the GPU alone would do it: the captured graph and the draw, replayed one after
// the other with no work of the host in between. An engine's step takes longer by what its host costs. The
// weights are random, of the shape of a model under models/; sequences are 96 tokens long, greedy.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <string>

#include "step1_layers/core/error.h"
#include "step4_runner/memory.h"
#include "step4_runner/model_runner.h"
#ifdef LADDER_CUDA
#include "step1_layers/core/device_cuda.h"
#endif

namespace ladder {
namespace {

#ifdef LADDER_CUDA

constexpr int64_t kLength = 96, kBlockSize = 16, kBlocksOfSequence = kLength / kBlockSize + 1;

// All but the last token of every sequence count as computed; the cache holds zeros for them.
SchedulerOutput first_step(int64_t num_seqs) {
  SchedulerOutput step;
  step.total_num_tokens = num_seqs;
  for (int64_t i = 0; i < num_seqs; ++i) {
    NewSequence sequence;
    sequence.id = i;
    for (int64_t token = 0; token < kLength; ++token)
      sequence.token_ids.push_back(static_cast<int32_t>((i * 7919 + token * 104729) % 10000));
    sequence.num_prompt_tokens = kLength;
    sequence.num_computed_tokens = kLength - 1;
    sequence.sampling.temperature = 0.0;
    for (int64_t block = 0; block < kBlocksOfSequence; ++block)
      sequence.block_table.push_back(static_cast<int32_t>(block * num_seqs + i));
    step.scheduled.push_back({i, 1, {}});
    step.new_sequences.push_back(std::move(sequence));
  }
  return step;
}

void decode_step(benchmark::State& state, const std::string& model, int64_t num_seqs) {
  if (cuda_device_count() == 0) {
    state.SkipWithError("no GPU");
    return;
  }
  const std::string folder = std::string(LADDER_SOURCE_DIR) + "/models/" + model;
  RunnerConfig config;
  config.device = {DeviceType::cuda, 0};
  config.dtype = DType::bf16;
  config.load_format = LoadFormat::dummy;
  config.max_num_seqs = num_seqs;
  config.max_num_batched_tokens = std::max<int64_t>(num_seqs, 512);
  config.block_size = kBlockSize;
  config.num_kv_blocks = 4096;
  const DecoderSpec spec = load_decoder_spec(folder);
  config = resolve_runner_config(spec, config);
  CudaContext cuda(0);
  const OpContext ctx = cuda.op_context();
  ModelOptions options;
  options.dtype = config.dtype;
  options.load_format = config.load_format;
  options.max_model_len = config.max_model_len;
  ModelRunner runner(ctx, config, load_model(ctx, folder, spec, options));
  runner.warm_up();
  runner.execute(first_step(num_seqs));
  for (auto _ : state) state.SetIterationTime(runner.replay_last_step(200));
  state.SetLabel("the graph and the draw replayed, no work of the host");
}

const bool kRegistered = [] {
  for (const std::string model : {"qwen3-0.6b", "qwen3-8b"})
    for (int64_t num_seqs : {1, 32, 256})
      benchmark::RegisterBenchmark(
          fmt::format("decode_step/{}/batch:{}/cuda:replay", model, num_seqs).c_str(),
          [=](benchmark::State& state) { decode_step(state, model, num_seqs); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
  return true;
}();

#endif

}  // namespace
}  // namespace ladder
