// What a KV block costs on the host: taking it and giving it back, naming it, finding it.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "step3_sequence/block/block_manager.h"
#include "step3_sequence/prefix/hash_prefix_index.h"

namespace ladder {
namespace {

constexpr int64_t kBlockSize = 16;
constexpr int64_t kNumBlocks = 32768;  // half a million tokens

BlockManager cached_manager() {
  return BlockManager(
      kNumBlocks, kBlockSize,
      std::make_unique<HashPrefixIndex>(kNumBlocks, kBlockSize, std::make_unique<Sha256BlockHasher>(1)));
}

// With --benchmark_repetitions: the best of them, on a machine that others use too.
double minimum(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

std::vector<int32_t> random_tokens(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 150000);
  return ids;
}

// A table of 64 blocks that is filled and given back; nothing is cached.
void allocate_and_free(benchmark::State& state) {
  BlockManager blocks = cached_manager();
  constexpr int64_t kTokens = 64 * kBlockSize;
  BlockTable table;
  table.reserve(64);
  for (auto _ : state) {
    benchmark::DoNotOptimize(blocks.append(table, kTokens));
    blocks.free(table);
  }
  state.counters["time/block"] =
      benchmark::Counter(64 * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(allocate_and_free)->ComputeStatistics("min", minimum);

// The cache is full of free blocks with content: each block taken evicts one, and is given a new name.
// Manual time: the clock runs for taking and giving back alone, not for computing names.
void allocate_and_free_with_eviction(benchmark::State& state) {
  BlockManager blocks = cached_manager();
  constexpr int64_t kTokens = 64 * kBlockSize;
  std::vector<PrefixKey> keys(kNumBlocks / 64 * 2);
  std::vector<std::vector<int32_t>> tokens;
  for (size_t i = 0; i < keys.size(); ++i) tokens.push_back(random_tokens(kTokens, i));
  BlockTable table;
  table.reserve(64);
  size_t next = 0;
  const auto fill = [&] {
    keys[next].forget_table();
    blocks.cache(keys[next], tokens[next], table, kTokens);
    next = (next + 1) % keys.size();
  };
  for (int64_t i = 0; i < kNumBlocks / 64; ++i) {
    blocks.append(table, kTokens);
    fill();
    blocks.free(table);
  }
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(blocks.append(table, kTokens));
    const auto taken = std::chrono::steady_clock::now();
    fill();
    const auto filled = std::chrono::steady_clock::now();
    blocks.free(table);
    const auto end = std::chrono::steady_clock::now();
    state.SetIterationTime(std::chrono::duration<double>((taken - start) + (end - filled)).count());
    if (blocks.num_cached_blocks() != kNumBlocks) state.SkipWithError("the cache is not full");
  }
  state.counters["time/block"] =
      benchmark::Counter(64 * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(allocate_and_free_with_eviction)->UseManualTime()->ComputeStatistics("min", minimum);

// The names of a prompt's blocks, chained; new tokens every time.
void prefix_hashing(benchmark::State& state) {
  Sha256BlockHasher hasher(1);
  const int64_t block_size = state.range(0);
  const std::vector<int32_t> ids = random_tokens(1 << 20, 1);
  BlockHash parent = hasher.root("", "");
  int64_t offset = 0;
  for (auto _ : state) {
    for (int64_t i = 0; i < 64; ++i) {
      parent = hasher.block(parent, std::span(ids).subspan(offset, block_size));
      offset = (offset + block_size) & ((1 << 20) - 1);
    }
    benchmark::DoNotOptimize(parent);
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(state.iterations() * 64 * block_size),
                                                  benchmark::Counter::kIsRate);
}
BENCHMARK(prefix_hashing)->Arg(16)->Arg(32)->Arg(64)->ComputeStatistics("min", minimum);

// Looking up a prompt of 4,096 tokens: all of it cached (names known, names to be computed), or none.
void find_prefix(benchmark::State& state, bool cached, bool names_known) {
  BlockManager blocks = cached_manager();
  const std::vector<int32_t> ids = random_tokens(4097, 1);
  BlockTable table;
  if (cached) {
    PrefixKey key;
    blocks.append(table, 4097);
    blocks.cache(key, ids, table, 4097);
  }
  PrefixKey key;
  BlockTable found;
  for (auto _ : state) {
    if (!names_known) key = {};
    blocks.find_prefix(key, ids, found);
  }
  state.counters["blocks_found"] = static_cast<double>(found.size());
}
BENCHMARK_CAPTURE(find_prefix, all_cached, true, true)->ComputeStatistics("min", minimum);
BENCHMARK_CAPTURE(find_prefix, all_cached_and_hashed, true, false)->ComputeStatistics("min", minimum);
BENCHMARK_CAPTURE(find_prefix, nothing_cached, false, false)->ComputeStatistics("min", minimum);

}  // namespace
}  // namespace ladder
