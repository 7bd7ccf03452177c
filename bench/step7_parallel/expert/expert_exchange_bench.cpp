// Tokens to their experts on other ranks and back, by every method, over threads with a core each: hidden size 2048, 8 of 128
// experts, f32, the experts themselves doing nothing. sent_KiB is what a rank sends, in both directions together.
#include <benchmark/benchmark.h>

#include <chrono>
#include <random>
#include <stdexcept>
#include <string>

#include "step1_layers/distributed/counting_communicator.h"
#include "step4_runner/rank_grid.h"
#include "step7_parallel/communicators/kinds.h"
#include "step7_parallel/expert/expert_exchange.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;

struct Measured {
  double seconds = 0;
  int64_t sent_bytes = 0;
};

Measured measure(const Variant<ExpertExchangeArgs>& method, int ranks, int64_t tokens) {
  constexpr int64_t kHidden = 2048, kTopK = 8, kExperts = 128;
  constexpr int kCalls = 8;
  Measured measured;
  const auto errors = communicator_kind("threads").run(ranks, 120s, [&](int rank, Communicator& group) {
    std::mt19937 random(static_cast<unsigned>(rank));
    CountingCommunicator counting(group);
    ExpertExchangeArgs args;
    args.ranks = &counting;
    args.x = Tensor::zeros({tokens, kHidden}, DType::f32);
    args.expert_ids = Tensor::empty({tokens, kTopK}, DType::i32);
    args.weights = Tensor::zeros({tokens, kTopK}, DType::f32);
    args.out = Tensor::empty(args.x.shape(), DType::f32);
    for (int64_t i = 0; i < args.x.numel(); ++i) args.x.data<float>()[i] = static_cast<float>(i % 17 - 8) / 8;
    for (int64_t token = 0; token < tokens; ++token)
      for (int64_t j = 0; j < kTopK; ++j)  // one of each sixteen: never the same twice
        args.expert_ids.at<int32_t>({token, j}) =
            static_cast<int32_t>(j * (kExperts / kTopK) + random() % (kExperts / kTopK));
    for (int owner = 0; owner < ranks; ++owner)
      args.rank_of.insert(args.rank_of.end(),
                          static_cast<size_t>(experts_of_rank(kExperts, ranks, owner).size()), owner);
    args.compute = [](const OpContext&, const Tensor&, const Tensor&, const Tensor&, const Tensor& out) {
      out.fill_bytes(0);
    };
    group.barrier({});
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call) method.run({}, args);
    group.barrier({});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (rank == 0) measured = {took.count() / kCalls, counting.sent_bytes() / kCalls};
  });
  for (const std::string& error : errors)
    if (!error.empty()) throw std::runtime_error(error);
  return measured;
}

const bool kRegistered = [] {
  for (const auto& method : expert_exchange_variants()) {
    if (method.device != DeviceType::cpu) continue;
    for (const int64_t ranks : {2, 4, 8})
      for (const int64_t tokens : {1, 16, 128}) {
        benchmark::RegisterBenchmark(
            ("ExpertExchange/" + std::string(method.name)).c_str(),
            [&method](benchmark::State& state) {
              for (auto _ : state) {
                const Measured measured = measure(method, static_cast<int>(state.range(0)), state.range(1));
                state.SetIterationTime(measured.seconds);
                state.counters["sent_KiB"] = static_cast<double>(measured.sent_bytes) / 1024;
              }
            })
            ->Args({ranks, tokens})
            ->ArgNames({"ranks", "tokens"})
            ->Iterations(1)
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond);
      }
  }
  return true;
}();

}  // namespace
}  // namespace ladder
