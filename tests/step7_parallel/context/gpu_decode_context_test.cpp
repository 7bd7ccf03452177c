// Task 7.11 on GPUs: what ranks that share a KV head send each other, by every rung, and their attention, as calls and in
// graphs.
#include "step1_layers/core/device.h"
#ifdef LADDER_HAS_CUDA
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "step1_layers/core/device_graph.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/gpu/gpu_ranks.h"
#include "step7_parallel/context/head_exchange.h"
#include "step7_parallel/context/lse_merge.h"
#include "tests/step7_parallel/growing_sequences.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using testing::GrowingSequences;
using testing::GrowingSizes;
using testing::Random;

#define NEEDS_GPUS(count) \
  if (const std::string obstacle = gpu_ranks_obstacle(count); !obstacle.empty()) GTEST_SKIP() << obstacle

// Groups of two of which two share, and, where there are four GPUs, of four of which two or four do.
struct Sharing {
  int ranks, shares;
};
void on_gpus(const std::function<void(const GpuRank& rank, uint64_t seed, int shares)>& fn) {
  for (const auto& [ranks, shares] : {Sharing{2, 2}, {4, 2}, {4, 4}}) {
    if (cuda_device_count() < ranks) continue;
    const uint64_t seed = testing::fresh_seed();
    EXPECT_THAT(run_gpu_ranks(ranks, 120s, [&](const GpuRank& rank) { fn(rank, seed, shares); }), Each(""))
        << ranks << " ranks, " << shares << " of them share, LADDER_TEST_SEED=" << seed;
  }
}

void expect(const ::testing::AssertionResult& result, const std::string& what) {
  LADDER_CHECK(static_cast<bool>(result), "wrong: {}: {}", what, result.message());
}

// All ranks' queries and results, which each of them makes, and one rank's of them on its GPU.
struct Exchanged {
  Neighbours neighbours;
  int64_t rows, heads, dim;
  std::vector<Tensor> q, parts, lse;  // of each neighbour
  Tensor own, own_lse;                // a part of each rank's own, the same for all; or undefined
  GatherHeadsArgs gather;
  MergeHeadsArgs merge;

  Exchanged(const GpuRank& rank, int shares, Random& random, int64_t num_rows, int64_t num_heads,
            int64_t of_dim, DType dtype, bool has_own = false)
      : neighbours{rank.group, shares},
        rows(num_rows),
        heads(num_heads),
        dim(of_dim),
        gather{neighbours, {}, {}, {}},
        merge{neighbours, {}, {}, {}} {
    const Device device = rank.ctx.device;
    const int64_t all = shares * heads;
    if (has_own)
      own = random.normal({rows, heads, dim}, dtype), own_lse = random.normal({rows, heads}, DType::f32);
    renew(random, dtype);
    const auto unset = [&](const Shape& shape, DType of) { return testing::poisoned(shape, of).to(device); };
    // Views into wider rows, as of a qkv projection.
    gather.mine = unset({rows, heads + 2, dim}, dtype).narrow(1, 0, heads);
    gather.all = unset({rows, all, dim}, dtype);
    gather.lse = unset({rows, all}, DType::f32);
    merge.parts = unset({rows, all, dim}, dtype);
    merge.lse = unset({rows, all}, DType::f32);
    merge.out = unset({rows, heads, dim}, dtype);
    if (has_own) merge.own = own.to(device), merge.own_lse = own_lse.to(device);
  }

  // Other values, the same on all ranks. A sixth of the results are of nothing.
  void renew(Random& random, DType dtype) {
    q.clear(), parts.clear(), lse.clear();
    for (int i = 0; i < neighbours.ranks; ++i) {
      q.push_back(random.normal({rows, heads, dim}, dtype));
      parts.push_back(random.normal({rows, neighbours.ranks * heads, dim}, dtype));
      lse.push_back(random.normal({rows, neighbours.ranks * heads}, DType::f32, 3));
      float* numbers = lse.back().data<float>();
      for (int64_t j = 0; j < lse.back().numel(); ++j)
        if (random.integer(0, 5) == 0) numbers[j] = random.one_of<float>({-INFINITY, INFINITY, NAN});
    }
  }
  void send_to(const OpContext& ctx) const {
    const auto mine = static_cast<size_t>(neighbours.mine());
    const Tensor wide = Tensor::zeros({rows, heads + 2, dim}, q[mine].dtype());
    wide.narrow(1, 0, heads).copy_from(q[mine]);
    Tensor::wrap(gather.mine.raw(), wide.shape(), wide.dtype(), ctx.device).copy_from(wide);
    merge.parts.copy_from(parts[mine]);
    merge.lse.copy_from(lse[mine]);
    merge.out.copy_from(testing::poisoned(merge.out.shape(), merge.out.dtype()));
  }
  void expect_gathered(const std::string& what) const {
    const Tensor all = gather.all.to(Device{}), none = gather.lse.to(Device{});
    for (int i = 0; i < neighbours.ranks; ++i)
      expect(testing::close_to(all.narrow(1, i * heads, heads).clone(),
                               testing::to_double(q[static_cast<size_t>(i)])),
             fmt::format("{}: queries of {}", what, i));
    for (int64_t i = 0; i < none.numel(); ++i)
      LADDER_CHECK(!std::isfinite(none.data<float>()[i]) && !(none.data<float>()[i] > 0), "{}: lse {} is {}",
                   what, i, none.data<float>()[i]);
  }
  void expect_merged(const std::string& what) const {
    LseMergeArgs of_cpu;
    const int64_t num_parts = neighbours.ranks + (own.defined() ? 1 : 0);
    of_cpu.parts = Tensor::empty({num_parts, rows, heads, dim}, DType::f32);
    of_cpu.part_lse = Tensor::empty({num_parts, rows, heads}, DType::f32);
    if (own.defined()) {
      of_cpu.parts.select(0, neighbours.ranks).copy_from(own.to(DType::f32));
      of_cpu.part_lse.select(0, neighbours.ranks).copy_from(own_lse);
    }
    of_cpu.out = Tensor::empty({rows, heads, dim}, DType::f32);
    for (int i = 0; i < neighbours.ranks; ++i) {
      const auto s = static_cast<size_t>(i);
      const int64_t first = neighbours.mine() * heads;
      of_cpu.parts.select(0, i).copy_from(parts[s].narrow(1, first, heads).to(DType::f32));
      of_cpu.part_lse.select(0, i).copy_from(lse[s].narrow(1, first, heads));
    }
    merge_parts({}, of_cpu);
    expect(testing::close_to(merge.out.to(Device{}), testing::to_double(of_cpu.out)), what);
  }
};

class Task7_11_GpuExchange : public ::testing::TestWithParam<const char*> {
 protected:
  static OpContext forced(const GpuRank& rank) {
    OpContext ctx = rank.ctx;
    ctx.kernels["gather_heads"] = ctx.kernels["merge_heads"] = GetParam();
    return ctx;
  }
  static bool serves(const GpuRank& rank, const OpContext& ctx, const Exchanged& exchanged) {
    if (std::string_view(GetParam()) == "nccl" && rank.group.nccl_group() == nullptr) return false;
    const auto can = [&](const auto& table, const auto& args) {
      for (const auto& rung : table)
        if (rung.name == GetParam()) return can_run(rung, ctx, args);
      return false;
    };
    return can(gather_heads_variants(), exchanged.gather) && can(merge_heads_variants(), exchanged.merge);
  }
};

// Rows that take one block and all, call after call of other sizes, in the same buffers.
TEST_P(Task7_11_GpuExchange, BringsQueriesAndMergesResults) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t seed, int shares) {
    Random random(seed), delays(seed * 31 + static_cast<uint64_t>(rank.group.rank()));
    const OpContext ctx = forced(rank);
    int served = 0;
    for (int round = 0; round < 60; ++round) {
      const DType dtype = std::array{DType::bf16, DType::f16, DType::f32}[static_cast<size_t>(round % 3)];
      const int64_t rows = random.one_of<int64_t>({1, 1, 2, 3, 7, 33, 64, 130, 256});
      const int64_t heads = random.one_of<int64_t>({1, 2, 5, 16}),
                    dim = random.one_of<int64_t>({8, 64, 128, 256});
      const Exchanged exchanged(rank, shares, random, rows, heads, dim, dtype, round % 4 == 3);
      if (!serves(rank, ctx, exchanged)) continue;
      ++served;
      exchanged.send_to(ctx);
      if (delays.integer(0, 5) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      for (int call = 0; call < 3; ++call) {
        gather_heads(ctx, exchanged.gather);
        if (call != 1) merge_heads(ctx, exchanged.merge);
      }
      device_synchronize(ctx.device, ctx.stream);
      const std::string what =
          fmt::format("round {}, {} rows of {} heads of {}, {}", round, rows, heads, dim, dtype_name(dtype));
      exchanged.expect_gathered(what);
      exchanged.expect_merged(what);
    }
    LADDER_CHECK(served > 20 || rank.group.peer_memory() == nullptr || rank.group.nccl_group() == nullptr,
                 "it took {} of 60 calls", served);
  });
}

// Two layers in one graph, replayed with other values in the same place, while ranks come early and late.
TEST_P(Task7_11_GpuExchange, IsReplayed) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t seed, int shares) {
    Random random(seed), delays(seed * 31 + static_cast<uint64_t>(rank.group.rank()));
    const OpContext ctx = forced(rank);
    Exchanged layers[] = {{rank, shares, random, 3, 4, 128, DType::bf16},
                          {rank, shares, random, 40, 4, 128, DType::bf16}};
    if (!serves(rank, ctx, layers[0]) || !serves(rank, ctx, layers[1])) return;
    const auto calls = [&] {
      for (const Exchanged& layer : layers) {
        gather_heads(ctx, layer.gather);
        merge_heads(ctx, layer.merge);
      }
    };
    calls();
    device_synchronize(ctx.device, ctx.stream);
    rank.host.barrier({});
    DeviceGraph graph;
    graph.capture(ctx, calls);
    for (int replay = 0; replay < 50; ++replay) {
      for (Exchanged& layer : layers) {
        layer.renew(random, DType::bf16);
        layer.send_to(ctx);
      }
      if (delays.integer(0, 2) == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(delays.integer(1, 20)));
      for (int times = replay % 3; times >= 0; --times) graph.replay(ctx);
      device_synchronize(ctx.device, ctx.stream);
      for (const Exchanged& layer : layers) {
        layer.expect_gathered(fmt::format("replay {}", replay));
        layer.expect_merged(fmt::format("replay {}", replay));
      }
    }
    rank.host.barrier({});
  });
}

INSTANTIATE_TEST_SUITE_P(Rungs, Task7_11_GpuExchange, ::testing::Values("nccl", "push"),
                         [](const auto& info) { return std::string(info.param); });

// Every step as calls and replayed from graphs: prompts, chunks behind cached keys, and steps of single rows.
TEST(Task7_11_GpuAttention, IsThatOfOneRankInChunksAndSteps) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t seed, int shares) {
    Random random(seed);
    ParallelContext parallel;
    parallel.tp = &rank.group;
    OpContext ctx = rank.ctx;
    ctx.parallel = &parallel;
    ctx.dependent_launch = true;
    for (int round = 0; round < 12; ++round) {
      const DType dtype = std::array{DType::bf16, DType::f16, DType::f32}[static_cast<size_t>(round % 3)];
      const int tp = rank.group.size();
      const int64_t block = 16 * shares * random.integer(1, 2), run = random.one_of<int64_t>({1, 2, 16});
      // A few of the decode kernels' head sizes, and one that they leave to the others.
      const GrowingSizes sizes{.heads = tp * random.integer(1, 8),
                               .kv_heads = tp / shares,
                               .dim = random.one_of<int64_t>({64, 128, 128, 32}),
                               .block = block,
                               .dtype = dtype,
                               .most_rows = round < 6 ? int64_t{20} : 2 * block};
      const GrowingSequences sequences(random, sizes);
      const std::string difference =
          difference_of_rank(sequences, results_of_one_rank(sequences), ctx, rank.group.rank(), tp, shares,
                             run, [&] { rank.host.barrier({}); });
      LADDER_CHECK(difference.empty(), "round {}: {} heads of {}, blocks of {}: {}", round, sizes.heads,
                   sizes.dim, block, difference);
    }
  });
}

}  // namespace
}  // namespace ladder
#endif
