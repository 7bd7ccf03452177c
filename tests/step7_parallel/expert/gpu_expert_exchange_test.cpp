// Task 7.9 on GPUs: tokens to experts on other GPUs and back, by every rung, as calls and in graphs.
#include "step1_layers/core/device.h"
#include "tests/support/numerics.h"
#ifdef LADDER_HAS_CUDA
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <thread>

#include "step1_layers/core/device_graph.h"
#include "step1_layers/core/error.h"
#include "step4_runner/memory.h"
#include "step7_parallel/communicators/gpu/gpu_ranks.h"
#include "step7_parallel/expert/gpu/gpu_expert_exchange.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/step7_parallel/expert_problem.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using testing::ExpertProblem;
using testing::MoeSizes;
using testing::Random;

#define NEEDS_GPUS(count) \
  if (const std::string obstacle = gpu_ranks_obstacle(count); !obstacle.empty()) GTEST_SKIP() << obstacle

void on_two_gpus(const std::function<void(const GpuRank& rank, uint64_t seed)>& fn) {
  const uint64_t seed = testing::fresh_seed();
  EXPECT_THAT(run_gpu_ranks(2, 90s, [&](const GpuRank& rank) { fn(rank, seed); }), Each(""))
      << "LADDER_TEST_SEED=" << seed;
}

void expect(const ::testing::AssertionResult& result, const std::string& what) {
  LADDER_CHECK(static_cast<bool>(result), "wrong: {}: {}", what, result.message());
}

ExpertExchangeSizes sizes_of(const ExpertProblem& problem, int64_t max_rows) {
  return {.max_rows = max_rows,
          .hidden = problem.sizes.hidden,
          .top_k = problem.sizes.top_k,
          .dtype = problem.scene.x.dtype(),
          .rank_of = problem.rank_of};
}

int64_t most_tokens(const ExpertProblem& problem) {
  int64_t most = 0;
  for (size_t i = 0; i + 1 < problem.begins.size(); ++i)
    most = std::max(most, problem.begins[i + 1] - problem.begins[i]);
  return most;
}

// This rank's part of a problem, on its GPU.
struct Mine {
  int64_t first, count;
  Tensor x, expert_ids, weights, gate_up, down, out;

  Mine(const GpuRank& rank, const ExpertProblem& problem) {
    first = problem.begins[static_cast<size_t>(rank.group.rank())];
    count = problem.begins[static_cast<size_t>(rank.group.rank()) + 1] - first;
    const auto here = [&](const Tensor& all) {
      return all.narrow(0, first, count).clone().to(rank.ctx.device);
    };
    x = here(problem.scene.x), expert_ids = here(problem.scene.expert_ids),
    weights = here(problem.scene.weights);
    gate_up = problem.scene.gate_up.to(rank.ctx.device), down = problem.scene.down.to(rank.ctx.device);
    out = testing::poisoned({count, problem.sizes.hidden}, problem.scene.x.dtype()).to(rank.ctx.device);
  }
  ExpertExchangeArgs args(const GpuExpertExchange& exchange) const {
    return {.x = x,
            .expert_ids = expert_ids,
            .weights = weights,
            .compute =
                [this](const OpContext& ctx, const Tensor& rows, const Tensor& ids, const Tensor& of_ids,
                       const Tensor& parts) {
                  moe_experts(ctx, {rows, ids, of_ids, gate_up, down, parts});
                },
            .out = out,
            .gpu = &exchange,
            .rows = exchange.sizes().max_rows};
  }
  void expect_close(const GpuRank& rank, const ExpertProblem& problem, const std::string& what) const {
    device_synchronize(rank.ctx.device, rank.ctx.stream);
    const std::vector<double> all = problem.expected();
    const auto begin = all.begin() + first * problem.sizes.hidden;
    const std::vector<double> mine(begin, begin + count * problem.sizes.hidden);
    if (count == 0) return;
    // A 16-bit part whose sum in f32 is near the middle of two values may be rounded the other way, and the parts' sum is
    // rounded again: one rounding more than the bound has. Narrow rows have no other elements to hide it.
    const DType dtype = out.dtype();
    const double bound = (dtype == DType::f32 ? 1 : 2) * testing::row_bound(dtype);
    expect(testing::close_to(testing::to_double(out.to(Device{})), mine, out.dim(1), bound,
                             dtype == DType::f16 ? 0x1p-25 : 0),
           what + ": " + problem.str());
  }
};

class Task7_9_GpuExchange : public ::testing::TestWithParam<const GpuExchangeRung*> {
 protected:
  // The rank's context, with the rung forced.
  static OpContext forced(const GpuRank& rank) {
    OpContext ctx = rank.ctx;
    ctx.kernels["expert_exchange"] = GetParam()->name;
    return ctx;
  }
};

// Odd numbers of tokens, none, more than there are blocks; experts that do not divide; ids of -1.
TEST_P(Task7_9_GpuExchange, GivesWhatOneRankGives) {
  NEEDS_GPUS(2);
  on_two_gpus([](const GpuRank& rank, uint64_t seed) {
    Random random(seed);
    for (int round = 0; round < 24; ++round) {
      const DType dtype = std::array{DType::bf16, DType::f16, DType::f32}[static_cast<size_t>(round % 3)];
      const int64_t experts = random.integer(1, 11);
      const MoeSizes sizes{round == 5 ? 700 : random.integer(0, 40),
                           random.integer(1, std::min<int64_t>(experts, 8)), experts,
                           random.one_of<int64_t>({8, 24, 136}), 16};
      const ExpertProblem problem(random, 2, sizes, dtype, round % 2 == 1);
      const GpuExpertExchange exchange(rank.ctx, rank.group, rank.host,
                                       sizes_of(problem, most_tokens(problem) + random.integer(1, 3)));
      if (!GetParam()->supports(exchange)) continue;
      const Mine mine(rank, problem);
      for (int call = 0; call < 3; ++call) expert_exchange(forced(rank), mine.args(exchange));
      mine.expect_close(rank, problem, fmt::format("round {}", round));
    }
  });
}

TEST_P(Task7_9_GpuExchange, TakesTokensOfOneRankAndExpertsOfAnother) {
  NEEDS_GPUS(2);
  on_two_gpus([](const GpuRank& rank, uint64_t seed) {
    Random random(seed);
    for (const int32_t owner : {0, 1}) {
      ExpertProblem problem(random, 2, {133, 2, 4, 64, 16}, DType::bf16, false);
      problem.begins = {0, 133, 133};
      problem.rank_of = {owner, owner, owner, owner};
      const GpuExpertExchange exchange(rank.ctx, rank.group, rank.host, sizes_of(problem, 133));
      if (!GetParam()->supports(exchange)) return;
      const Mine mine(rank, problem);
      expert_exchange(forced(rank), mine.args(exchange));
      mine.expect_close(rank, problem, fmt::format("experts on {}", owner));
    }
  });
}

// Each rank has half of the width of every expert, and sees all tokens.
TEST_P(Task7_9_GpuExchange, AddsUpPartsOfEveryExpert) {
  NEEDS_GPUS(2);
  on_two_gpus([](const GpuRank& rank, uint64_t seed) {
    Random random(seed);
    const MoeSizes sizes{137, 3, 5, 64, 16};
    const ExpertProblem problem(random, 2, sizes, DType::f32, true);
    ExpertExchangeSizes exchanged = sizes_of(problem, most_tokens(problem) + 1);
    exchanged.rank_of.clear();
    const GpuExpertExchange exchange(rank.ctx, rank.group, rank.host, exchanged);
    if (!GetParam()->supports(exchange)) return;
    const int64_t half = sizes.width / 2, begin = rank.group.rank() * half;
    const Tensor gate_up = Tensor::empty({sizes.experts, 2 * half, sizes.hidden}, DType::f32),
                 down = Tensor::empty({sizes.experts, sizes.hidden, half}, DType::f32);
    for (int64_t e = 0; e < sizes.experts; ++e) {
      const Tensor from = problem.scene.gate_up.select(0, e), to = gate_up.select(0, e);
      for (const int64_t part : {0, 1})
        to.narrow(0, part * half, half).copy_from(from.narrow(0, part * sizes.width + begin, half));
      down.select(0, e).copy_from(problem.scene.down.select(0, e).narrow(1, begin, half));
    }
    Mine mine(rank, problem);
    mine.gate_up = gate_up.to(rank.ctx.device), mine.down = down.to(rank.ctx.device);
    for (int call = 0; call < 3; ++call) expert_exchange(forced(rank), mine.args(exchange));
    mine.expect_close(rank, problem, "halves");
  });
}

// Two exchanges in one graph, of two layers, replayed with other tokens in the same place, while ranks come early and late.
// In f32: the many rows of bf16 find the tail of its rounding.
TEST_P(Task7_9_GpuExchange, IsReplayed) {
  NEEDS_GPUS(2);
  on_two_gpus([](const GpuRank& rank, uint64_t seed) {
    Random random(seed), delays(seed * 31 + static_cast<uint64_t>(rank.group.rank()));
    const MoeSizes sizes{150, 4, 9, 64, 16};
    ExpertProblem first(random, 2, sizes, DType::f32, true);
    first.begins = {0, 140, 150};
    first.rank_of = {0, 1, 1, 0, 1, 0, 0, 1, 1};
    const GpuExpertExchange exchange(rank.ctx, rank.group, rank.host, sizes_of(first, 140));
    if (!GetParam()->supports(exchange)) return;
    const Mine mine[] = {{rank, first}, {rank, first}};
    const OpContext ctx = forced(rank);
    const auto calls = [&] {
      for (const Mine& layer : mine) expert_exchange(ctx, layer.args(exchange));
    };
    calls();
    device_synchronize(ctx.device, ctx.stream);
    rank.host.barrier({});
    DeviceGraph graph;
    graph.capture(ctx, calls);
    for (int replay = 0; replay < 50; ++replay) {
      std::vector<ExpertProblem> layers;
      for (const Mine& layer : mine) {
        ExpertProblem& problem = layers.emplace_back(random, 2, sizes, DType::f32, true);
        problem.begins = first.begins, problem.rank_of = first.rank_of;
        problem.scene.gate_up = first.scene.gate_up, problem.scene.down = first.scene.down;
        const Mine now(rank, problem);
        layer.x.copy_from(now.x, ctx.stream);
        layer.expert_ids.copy_from(now.expert_ids, ctx.stream);
        layer.weights.copy_from(now.weights, ctx.stream);
        device_synchronize(ctx.device, ctx.stream);
      }
      if (delays.integer(0, 2) == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(delays.integer(1, 20)));
      graph.replay(ctx);
      if (replay % 3 == 1) graph.replay(ctx);
      for (size_t i = 0; i < layers.size(); ++i)
        mine[i].expect_close(rank, layers[i], fmt::format("replay {}, layer {}", replay, i));
    }
    rank.host.barrier({});
  });
}

// Dispatches alone, one after the other, and combines alone: calls of different sizes, in a graph. Small integers, so that
// what arrives, and the sums, are equal. Every part is the row that came.
TEST_P(Task7_9_GpuExchange, BringsEveryRowAndItsPartsBack) {
  NEEDS_GPUS(2);
  on_two_gpus([](const GpuRank& rank, uint64_t seed) {
    constexpr int64_t kHidden = 2048, kTopK = 8, kExperts = 16;
    Random random(seed), delays(seed * 31 + static_cast<uint64_t>(rank.group.rank()));
    ExpertExchangeSizes sizes{.max_rows = 512, .hidden = kHidden, .top_k = kTopK, .dtype = DType::bf16};
    for (int32_t expert = 0; expert < kExperts; ++expert) {
      sizes.rank_of.push_back(expert % 2);
      sizes.number_of.push_back(expert / 2);
    }
    const GpuExpertExchange exchange(rank.ctx, rank.group, rank.host, sizes);
    if (!GetParam()->supports(exchange)) return;
    const int me = rank.group.rank();
    struct Call {
      int64_t rows;
      std::vector<Tensor> x, ids;  // of all ranks, on the CPU
      Tensor mine, my_ids, weights, parts, out;
      DispatchedTokens tokens;
    };
    std::vector<Call> all;
    for (const int64_t rows : {1, 512, 3, 128, 129}) {
      Call& call = all.emplace_back();
      call.rows = rows;
      for (int r = 0; r < 2; ++r) {
        call.x.push_back(random.exact({rows, kHidden}, DType::bf16));
        const Tensor ids = Tensor::empty({rows, kTopK}, DType::i32);
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t kind = random.integer(0, 4);  // experts of nobody, of one rank, of both
          for (int64_t j = 0; j < kTopK; ++j)
            ids.at<int32_t>({row, j}) = static_cast<int32_t>(kind == 0   ? -1
                                                             : kind <= 2 ? 2 * j + kind - 1
                                                                         : (row + j) % kExperts);
        }
        call.ids.push_back(ids);
      }
      call.mine = call.x[static_cast<size_t>(me)].to(rank.ctx.device);
      call.my_ids = call.ids[static_cast<size_t>(me)].to(rank.ctx.device);
      call.weights = Tensor::zeros({rows, kTopK}, DType::f32, rank.ctx.device);
      call.tokens = exchange.take(*rank.ctx.arena, rows);
      call.parts = Tensor::zeros(call.tokens.x.shape(), DType::bf16, rank.ctx.device);
      call.out = testing::poisoned({rows, kHidden}, DType::bf16).to(rank.ctx.device);
    }
    const auto owner = [](int32_t expert) { return expert < 0 ? -1 : expert % 2; };
    const auto has = [&](const Call& call, int from, int64_t row, int to) {
      for (int64_t j = 0; j < kTopK; ++j)
        if (owner(call.ids[static_cast<size_t>(from)].at<int32_t>({row, j})) == to) return true;
      return false;
    };
    const auto replayed = [&](const std::function<void()>& calls) {
      calls();
      device_synchronize(rank.ctx.device, rank.ctx.stream);
      rank.host.barrier({});
      DeviceGraph graph;
      graph.capture(rank.ctx, calls);
      for (int replay = 0; replay < 30; ++replay) {
        if (delays.integer(0, 4) == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(delays.integer(1, 3000)));
        graph.replay(rank.ctx);
      }
      device_synchronize(rank.ctx.device, rank.ctx.stream);
      rank.host.barrier({});
    };
    replayed([&] {
      for (const Call& call : all)
        GetParam()->dispatch(rank.ctx, {&exchange, call.mine, call.my_ids, call.weights, call.tokens});
    });
    for (const Call& call : all) {
      const Tensor x = call.tokens.x.to(Device{}), ids = call.tokens.expert_ids.to(Device{});
      const Tensor parts = Tensor::zeros(x.shape(), DType::bf16);
      for (int from = 0; from < 2; ++from)
        for (int64_t row = 0; row < call.rows; ++row) {
          const int64_t place = from * call.rows + row;
          const std::string what = fmt::format("row {} of {} of rank {}", row, call.rows, from);
          for (int64_t j = 0; j < kTopK; ++j) {
            const int32_t id = call.ids[static_cast<size_t>(from)].at<int32_t>({row, j});
            LADDER_CHECK(ids.at<int32_t>({place, j}) == (owner(id) == me ? id / 2 : -1), "wrong: an id of {}",
                         what);
          }
          if (!has(call, from, row, me)) continue;
          const Tensor came = x.narrow(0, place, 1),
                       sent = call.x[static_cast<size_t>(from)].narrow(0, row, 1);
          LADDER_CHECK(testing::to_double(came) == testing::to_double(sent), "wrong: {}", what);
          parts.narrow(0, place, 1).copy_from(came);
        }
      call.parts.copy_from(parts.to(rank.ctx.device), rank.ctx.stream);
    }
    replayed([&] {
      for (const Call& call : all)
        GetParam()->combine(rank.ctx, {&exchange, call.parts, call.tokens, call.out});
    });
    for (const Call& call : all) {
      const std::vector<double> out = testing::to_double(call.out.to(Device{})),
                                x = testing::to_double(call.x[static_cast<size_t>(me)]);
      for (int64_t row = 0; row < call.rows; ++row) {
        const int ranks = (has(call, me, row, 0) ? 1 : 0) + (has(call, me, row, 1) ? 1 : 0);
        for (int64_t i = row * kHidden; i < (row + 1) * kHidden; ++i)
          LADDER_CHECK(out[static_cast<size_t>(i)] == ranks * x[static_cast<size_t>(i)],
                       "wrong: sum {} of row {} of {}", i % kHidden, row, call.rows);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Rungs, Task7_9_GpuExchange,
                         ::testing::Values(&gpu_exchange_rungs()[0], &gpu_exchange_rungs()[1]),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(GpuExpertExchange, NamesWhatItCannotTake) {
  NEEDS_GPUS(2);
  on_two_gpus([](const GpuRank& rank, uint64_t) {
    const auto fails = [&](ExpertExchangeSizes sizes) {
      try {
        GpuExpertExchange(rank.ctx, rank.group, rank.host, std::move(sizes));
      } catch (const Error&) {
        return true;
      }
      return false;
    };
    LADDER_CHECK(fails({.max_rows = 0, .hidden = 8, .top_k = 1, .rank_of = {0}}), "no rows");
    LADDER_CHECK(fails({.max_rows = 4, .hidden = 8, .top_k = 1, .rank_of = {2}}), "no rank 2");
    LADDER_CHECK(fails({.max_rows = 4, .hidden = 8, .top_k = 1, .rank_of = {0, 1}, .number_of = {0}}),
                 "numbers");
  });
}

// Needs no GPU: the parts of the memory lie one behind the other, in whole packs.
TEST(ExpertLayout, HoldsTwoHalvesOfEveryRank) {
  for (int size = 2; size <= kMaxPeers; ++size)
    for (const int64_t rows : {1, 129, 512})
      for (const int64_t top_k : {1, 3, 8}) {
        const ExpertLayout layout = expert_layout(size, rows, top_k, 4096);
        EXPECT_GE(layout.tokens, ExpertLayout::kNotes + 2 * size * rows * top_k * 8);
        EXPECT_EQ(layout.parts - layout.tokens, 2 * size * rows * 4096);
        EXPECT_EQ(layout.total - layout.parts, 2 * size * rows * 4096);
        EXPECT_EQ(layout.tokens % 16 + layout.parts % 16 + layout.total % 16, 0);
      }
}

// Needs no GPU either: what is planned for a rank has room for it.
TEST(ExpertLayout, IsInTheMemoryThatIsPlanned) {
  const DecoderSpec spec = load_decoder_spec(testing::golden_folder() / "qwen3_moe_normed");
  for (const int tensor_ranks : {1, 2}) {
    RunnerConfig config;
    config.device = {DeviceType::cuda, 0};
    config.dtype = DType::bf16;
    config.expert_parallel = true;
    config.tensor_parallel_size = tensor_ranks;
    config.batch = {.max_num_seqs = 4, .max_num_batched_tokens = 301, .max_model_len = 64};
    const MemoryPlan alone = predict_rank_memory(spec, config, {});
    config.expert_replicas = 2;
    const MemoryPlan shared = predict_rank_memory(spec, config, {});
    const ExpertLayout layout = expert_layout(2 * tensor_ranks, (301 + tensor_ranks - 1) / tensor_ranks,
                                              spec.experts.rule.top_k, spec.hidden_size * 2);
    EXPECT_NEAR(static_cast<double>(shared.other - alone.other),
                static_cast<double>(layout.total - ExpertLayout::kNotes), 16);
    EXPECT_GT(shared.activations, alone.activations);
  }
}

}  // namespace
}  // namespace ladder

#else

TEST(GpuExpertExchange, IsNotInThisBuild) {
  GTEST_SKIP() << "CUDA was not found, or LADDER_CUDA=OFF";
}

#endif
