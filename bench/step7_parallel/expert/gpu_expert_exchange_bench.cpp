// Tokens to their experts on other GPUs (dispatch), the parts back (combine), and both in turn, by every rung, bf16, hidden size
// 2048, 8 of 128 experts, the experts themselves doing nothing, over rotating buffers, a call's time as gpu_call_time.h
// says, on rank 0.
#ifdef LADDER_HAS_CUDA
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>

#include "bench/step7_parallel/communicators/gpu_call_time.h"
#include "step4_runner/rank_grid.h"
#include "step7_parallel/expert/gpu/gpu_expert_exchange.h"

namespace ladder {
namespace {

constexpr int64_t kHidden = 2048, kTopK = 8, kExperts = 128;
constexpr int64_t kTokens[] = {1, 8, 32, 128, 512};
constexpr const char* kForms[] = {"dispatch", "combine", "both"};
constexpr int kCalls = 200;

// What one call works with; a graph has several in turns, so that not all is in the L2 cache.
struct Buffers {
  Tensor x, expert_ids, weights, parts, out;
  DispatchedTokens tokens;
};

Buffers make_buffers(const GpuRank& rank, const GpuExpertExchange& exchange, int64_t tokens, unsigned seed) {
  std::mt19937 random(seed * 8 + static_cast<unsigned>(rank.group.rank()));
  const Tensor x = Tensor::empty({tokens, kHidden}, DType::f32),
               ids = Tensor::empty({tokens, kTopK}, DType::i32);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = static_cast<float>(random() % 255) / 128 - 1;
  for (int64_t i = 0; i < ids.numel(); ++i)  // one of each sixteen: never the same twice
    ids.data<int32_t>()[i] =
        static_cast<int32_t>(i % kTopK * (kExperts / kTopK) + random() % (kExperts / kTopK));
  Buffers buffers;
  buffers.x = x.to(DType::bf16).to(rank.ctx.device);
  buffers.expert_ids = ids.to(rank.ctx.device);
  buffers.weights = Tensor::zeros({tokens, kTopK}, DType::f32, rank.ctx.device);
  buffers.out = Tensor::zeros({tokens, kHidden}, DType::bf16, rank.ctx.device);
  buffers.tokens = exchange.take(*rank.ctx.arena, tokens);
  buffers.parts = Tensor::zeros(buffers.tokens.x.shape(), DType::bf16, rank.ctx.device);
  return buffers;
}

void measure_all(const GpuRank& rank, std::map<std::string, double>& seconds) {
  ExpertExchangeSizes sizes{.max_rows = 512, .hidden = kHidden, .top_k = kTopK, .dtype = DType::bf16};
  for (int owner = 0; owner < rank.group.size(); ++owner) {
    const ExpertRange range = experts_of_rank(kExperts, rank.group.size(), owner);
    for (int64_t expert = range.begin; expert < range.end; ++expert) {
      sizes.rank_of.push_back(owner);
      sizes.number_of.push_back(static_cast<int32_t>(expert - range.begin));
    }
  }
  const GpuExpertExchange exchange(rank.ctx, rank.group, rank.host, sizes);
  for (const int64_t tokens : kTokens) {
    const int sets =
        static_cast<int>(std::clamp<int64_t>((int64_t{64} << 20) / (tokens * kHidden * 12), 2, 20));
    ArenaScope scope(*rank.ctx.arena);
    std::vector<Buffers> buffers;
    for (int i = 0; i < sets; ++i)
      buffers.push_back(make_buffers(rank, exchange, tokens, static_cast<unsigned>(i)));
    for (const GpuExchangeRung& rung : gpu_exchange_rungs()) {
      if (!rung.supports(exchange)) continue;
      const auto dispatch = [&](int i) {
        const Buffers& b = buffers[static_cast<size_t>(i)];
        rung.dispatch(rank.ctx, {&exchange, b.x, b.expert_ids, b.weights, b.tokens});
      };
      const auto combine = [&](int i) {
        const Buffers& b = buffers[static_cast<size_t>(i)];
        rung.combine(rank.ctx, {&exchange, b.parts, b.tokens, b.out});
      };
      const std::function<void(int)> forms[] = {dispatch, combine, [&](int i) { dispatch(i), combine(i); }};
      for (size_t form = 0; form < std::size(forms); ++form) {
        const double took = gpu_call_seconds(rank, kCalls, sets, forms[form]);
        if (rank.group.rank() == 0) seconds[fmt::format("{}_{}/{}", rung.name, kForms[form], tokens)] = took;
      }
    }
    device_synchronize(rank.ctx.device, rank.ctx.stream);
  }
}

const GpuSeconds& measured(int size) {
  static std::map<int, GpuSeconds> of_sizes;
  const auto [at, is_new] = of_sizes.try_emplace(size);
  if (is_new) at->second = measure_on_gpus(size, measure_all);
  return at->second;
}

void report(benchmark::State& state, const std::string& rung_and_form, const std::string& form) {
  const GpuSeconds& all = measured(static_cast<int>(state.range(0)));
  const auto found = all.seconds.find(fmt::format("{}/{}", rung_and_form, state.range(1)));
  const auto nccl = all.seconds.find(fmt::format("nccl_{}/{}", form, state.range(1)));
  if (found == all.seconds.end())
    return state.SkipWithError(all.error.empty() ? "this rung cannot run here" : all.error.c_str());
  for (auto _ : state) state.SetIterationTime(found->second);
  if (nccl != all.seconds.end()) state.counters["of_nccl"] = found->second / nccl->second;
}

const bool kRegistered = [] {
  for (const GpuExchangeRung& rung : gpu_exchange_rungs())
    for (const std::string form : kForms)
      benchmark::RegisterBenchmark(fmt::format("BM_GpuExpertExchange_{}_{}", rung.name, form).c_str(),
                                   [key = fmt::format("{}_{}", rung.name, form),
                                    form](benchmark::State& state) { report(state, key, form); })
          ->ArgNames({"ranks", "tokens"})
          ->ArgsProduct({{2, 4, 8}, {std::begin(kTokens), std::end(kTokens)}})
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
  return true;
}();

}  // namespace
}  // namespace ladder
#endif
