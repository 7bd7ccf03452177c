// Task 4.3: the sampling pipeline over the vocabulary of Qwen3, for what requests commonly ask.
#include "step4_runner/sampler.h"

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>

#include "bench/support/bench_support.h"

namespace ladder {
namespace {

constexpr int64_t kVocab = 151936;

enum Kind { kGreedy, kPlain, kTopKTopP, kTopP, kPenalties, kLogprobs, kLogitBias, kAllowed };

SamplingParams params_of(Kind kind) {
  SamplingParams params;
  params.temperature = kind == kGreedy ? 0.0 : 0.6;
  if (kind == kTopKTopP) params.top_k = 20;
  if (kind == kTopKTopP || kind == kTopP) params.top_p = 0.95;
  if (kind == kPenalties) params.repetition_penalty = 1.1;
  if (kind == kLogprobs) params.logprobs = 5;
  if (kind == kLogitBias)
    for (int32_t i = 0; i < 300; ++i) params.logit_bias[i * 503] = 1.0;
  if (kind == kAllowed)
    for (int32_t i = 0; i < 300; ++i) params.allowed_token_ids.push_back(i * 503);
  params.seed = 1;
  return params;
}

void sampler(benchmark::State& state, Kind kind) {
  const int64_t rows = state.range(0);
  // Logits as a language model's: a few large ones before a long tail. The pipeline overwrites them, so every
  // call gets a fresh copy; the copies rotate, so that they come from memory.
  const Tensor source = bench::random_tensor({rows, kVocab}, DType::f32);
  for (int64_t i = 0; i < source.numel(); ++i) {
    float& x = source.data<float>()[i];
    x = -3.0f * std::log(1.0000001f - std::abs(x)) - 4.0f;
  }
  const int64_t copies = bench::rotation_bytes() / source.nbytes() + 1;
  std::vector<Tensor> logits(static_cast<size_t>(copies));
  for (Tensor& copy : logits) copy = Tensor::empty(source.shape(), DType::f32);

  std::vector<BatchSequence> sequences(static_cast<size_t>(rows));
  std::vector<BatchSequence*> pointers;
  for (BatchSequence& sequence : sequences) {
    sequence.sampling = params_of(kind);
    sequence.num_prompt_tokens = 512;
    for (int32_t token = 0; token < 768; ++token) sequence.token_ids.push_back(token * 131);
    pointers.push_back(&sequence);
  }
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  const Tensor ids = Tensor::empty({rows}, DType::i32);
  const Sampler pipeline(kVocab);
  StepUpload upload;
  StepDownload download;
  size_t next = 0;
  double seconds = 0;
  for (auto _ : state) {
    if (next == 0)
      for (Tensor& copy : logits) copy.copy_from(source);
    const auto start = std::chrono::steady_clock::now();
    {
      ArenaScope scope(arena);
      SamplingPlan plan = pipeline.plan(pointers);
      upload.begin(ctx, plan.upload_bytes());
      plan.stage(upload);
      pipeline.sample(ctx, logits[next], plan, ids, download);
    }
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(elapsed);
    seconds += elapsed;
    next = (next + 1) % logits.size();
  }
  // What one pass over the logits reads.
  bench::set_counters(state, seconds, static_cast<double>(state.iterations() * source.nbytes()), 0,
                      DType::f32);
  state.counters["rows_per_second"] = static_cast<double>(rows * state.iterations()) / seconds;
}

void add(benchmark::internal::Benchmark* benchmark) {
  benchmark->Arg(1)->Arg(16)->Arg(256)->UseManualTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(sampler, greedy, kGreedy)->Apply(add);
BENCHMARK_CAPTURE(sampler, temperature, kPlain)->Apply(add);
BENCHMARK_CAPTURE(sampler, top_k_top_p, kTopKTopP)->Apply(add);
BENCHMARK_CAPTURE(sampler, top_p, kTopP)->Apply(add);
BENCHMARK_CAPTURE(sampler, repetition_penalty, kPenalties)->Apply(add);
BENCHMARK_CAPTURE(sampler, logprobs, kLogprobs)->Apply(add);
BENCHMARK_CAPTURE(sampler, logit_bias, kLogitBias)->Apply(add);
BENCHMARK_CAPTURE(sampler, allowed_token_ids, kAllowed)->Apply(add);

}  // namespace
}  // namespace ladder
