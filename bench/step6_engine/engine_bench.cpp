// What the engine adds to a step, with an executor that computes nothing: scheduling, update, text-free
// bookkeeping. And stop strings, per byte of text.
#include <benchmark/benchmark.h>

#include "bench/step6_engine/instant_executor.h"
#include "step6_engine/engine.h"
#include "step6_engine/text/stop_strings.h"

namespace ladder {
namespace {

void BM_EngineStep(benchmark::State& state) {
  const int64_t num_sequences = state.range(0);
  SchedulerConfig config;
  config.batch.max_num_seqs = num_sequences;
  config.batch.max_num_batched_tokens = 64 * num_sequences;
  config.batch.max_model_len = int64_t{1} << 20;
  config.vocab_size = 1000;
  config.batch.num_kv_blocks = int64_t{1} << 20;
  Engine engine(std::make_unique<InstantExecutor>(), config, nullptr);
  for (int64_t i = 0; i < num_sequences; ++i) {
    Request request;
    request.prompt_token_ids.assign(32, static_cast<int32_t>(i));
    request.sampling.max_tokens = int64_t{1} << 19;
    request.sampling.temperature = 0.0;
    engine.add_request(request);
  }
  engine.step();
  for (auto _ : state) benchmark::DoNotOptimize(engine.step());
  state.SetItemsProcessed(state.iterations() * num_sequences);
}
// The iterations are bounded so that no sequence ends and no block runs out.
BENCHMARK(BM_EngineStep)->Arg(1)->Arg(16)->Arg(256)->Iterations(20000)->Unit(benchmark::kMicrosecond);

void BM_StopStrings(benchmark::State& state) {
  std::vector<std::string> stops;
  for (int64_t i = 0; i < state.range(0); ++i) stops.push_back("\n\nQuestion " + std::to_string(i));
  StopStrings stream(stops);
  const std::string piece = " lives in";  // a token's worth of text
  for (auto _ : state) benchmark::DoNotOptimize(stream.append(piece));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(piece.size()));
}
BENCHMARK(BM_StopStrings)->Arg(1)->Arg(4)->Arg(16);

}  // namespace
}  // namespace ladder
