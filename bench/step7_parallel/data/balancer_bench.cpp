// What a decision costs: 64 replicas, 100,000 cached prefixes, a prompt that continues one of them.
#include <benchmark/benchmark.h>

#include <random>

#include "step7_parallel/data/balancer.h"

namespace ladder {
namespace {

constexpr int kReplicas = 64;
constexpr int kPrefixes = 100'000;
constexpr int64_t kPrefixLength = 512;

// Sessions begin with one of a few system prompts.
std::vector<std::vector<int32_t>> make_prefixes(std::mt19937& random) {
  std::vector<std::vector<int32_t>> systems(8), prefixes(kPrefixes);
  for (auto& system : systems)
    for (int i = 0; i < 128; ++i) system.push_back(static_cast<int32_t>(random() % 100'000));
  for (auto& prefix : prefixes) {
    prefix = systems[random() % systems.size()];
    while (std::ssize(prefix) < kPrefixLength) prefix.push_back(static_cast<int32_t>(random() % 100'000));
  }
  return prefixes;
}

// Its first tokens are those of a prefix, the rest is new. Prompts differ from one decision to the next.
void BM_BalancerDecision(benchmark::State& state, const BalancerRow& row) {
  const auto length = static_cast<size_t>(state.range(0));
  std::mt19937 random(0);
  const std::vector<std::vector<int32_t>> prefixes = make_prefixes(random);
  const auto balancer = row.make({.num_replicas = kReplicas, .cache_tokens = 4 << 20});
  std::vector<ReplicaLoad> loads(kReplicas);
  for (ReplicaLoad& load : loads) load.num_in_flight = load.num_running = static_cast<int64_t>(random() % 50);
  for (const auto& prefix : prefixes) balancer->choose({prefix, 1}, loads);
  std::vector<std::vector<int32_t>> prompts(512);
  for (auto& prompt : prompts) {
    prompt = prefixes[random() % prefixes.size()];
    prompt.resize(length);
    for (size_t i = kPrefixLength / 2 * 2; i < length; ++i)
      prompt[i] = static_cast<int32_t>(random() % 100'000);
  }
  size_t next = 0;
  for (auto _ : state) {
    // A session's next turn: the same beginning, another end.
    std::vector<int32_t>& prompt = prompts[next++ % prompts.size()];
    prompt.back() = static_cast<int32_t>(next);
    benchmark::DoNotOptimize(balancer->choose({prompt, 1}, loads));
  }
  state.counters["prefixes"] = kPrefixes;
  state.counters["replicas"] = kReplicas;
}

const bool registered = [] {
  for (const BalancerRow& row : balancers())
    benchmark::RegisterBenchmark(("BM_BalancerDecision/" + std::string(row.name)).c_str(),
                                 [&row](benchmark::State& state) { BM_BalancerDecision(state, row); })
        ->Arg(512)
        ->Arg(2048)
        ->Arg(8192)
        ->Unit(benchmark::kMicrosecond);
  return true;
}();

}  // namespace
}  // namespace ladder
