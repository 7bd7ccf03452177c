// Task 4.1: what it costs to bring the batch up to date and lay out a step, without a model.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>

#include "step4_runner/batch.h"

namespace ladder {
namespace {

constexpr int64_t kVocab = 151936;

BatchConfig bench_config(int64_t num_seqs, int64_t tokens) {
  BatchConfig config;
  config.max_num_seqs = num_seqs;
  config.max_num_batched_tokens = tokens;
  config.max_model_len = 4096;
  config.num_kv_blocks = num_seqs * 257;
  return config;
}

// Sequences of `length` tokens whose K and V count as cached; sequence i owns blocks [257 i, 257 (i + 1)).
SchedulerOutput first_step(int64_t num_seqs, int64_t length, int64_t num_computed) {
  SchedulerOutput step;
  for (int64_t i = 0; i < num_seqs; ++i) {
    NewSequence sequence;
    sequence.id = i;
    sequence.token_ids.assign(static_cast<size_t>(length), static_cast<int32_t>(i));
    sequence.num_prompt_tokens = length;
    sequence.num_computed_tokens = num_computed;
    for (int64_t block = 0; block <= length / 16; ++block)
      sequence.block_table.push_back(static_cast<int32_t>(i * 257 + block));
    step.scheduled.push_back({i, length - num_computed, {}});
    step.total_num_tokens += length - num_computed;
    step.new_sequences.push_back(std::move(sequence));
  }
  return step;
}

// A steady decode: one token each, a new block for every sixteenth sequence. Every 1,000 steps it starts
// over.
void batch_decode(benchmark::State& state) {
  const int64_t num_seqs = state.range(0);
  const BatchConfig config = bench_config(num_seqs, num_seqs);
  constexpr int64_t kStart = 1024, kSteps = 1000;
  const std::vector<int32_t> sampled(static_cast<size_t>(num_seqs), 7);
  const SchedulerOutput first = first_step(num_seqs, kStart, kStart - 1);
  std::unique_ptr<Batch> batch;
  SchedulerOutput step;
  for (int64_t i = 0; i < num_seqs; ++i) {
    step.scheduled.push_back({i, 1, {}});
    step.continued.push_back({i, {}, 0});
  }
  step.total_num_tokens = num_seqs;
  int64_t length = kStart + kSteps;
  for (auto _ : state) {
    if (length == kStart + kSteps) {
      batch = std::make_unique<Batch>(config, kVocab);
      batch->prepare(first);
      batch->fill(batch->advance(), sampled);
      length = kStart;
    }
    for (int64_t i = 0; i < num_seqs; ++i) {
      ContinuedSequence& continued = step.continued[static_cast<size_t>(i)];
      continued.num_computed_tokens = length;
      continued.new_block_ids.clear();
      if (length % 16 == 0 && length > kStart)
        continued.new_block_ids = {static_cast<int32_t>(i * 257 + length / 16)};
    }
    ++length;
    const auto start = std::chrono::steady_clock::now();
    batch->prepare(step);
    batch->fill(batch->advance(), sampled);
    benchmark::DoNotOptimize(batch->attention().max_seq_len);
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  state.counters["sequences_per_second"] =
      benchmark::Counter(static_cast<double>(num_seqs), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(batch_decode)->Arg(1)->Arg(32)->Arg(256)->UseManualTime()->Unit(benchmark::kMicrosecond);

// A whole prompt, a new sequence in every step.
void batch_prefill(benchmark::State& state) {
  const int64_t length = state.range(0);
  Batch batch(bench_config(1, length), kVocab);
  SchedulerOutput step = first_step(1, length, 0);
  const std::vector<int32_t> sampled(1, 7);
  for (auto _ : state) {
    batch.prepare(step);
    batch.fill(batch.advance(), sampled);
    step.finished = {0};
  }
  state.counters["tokens_per_second"] =
      benchmark::Counter(static_cast<double>(length), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(batch_prefill)->Arg(128)->Arg(2048)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ladder
