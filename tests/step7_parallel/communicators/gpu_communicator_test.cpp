// The communicator of GPU ranks, and every rung of its all-reduce, on all GPUs of the machine.
#include "step1_layers/core/device.h"
#include "tests/support/numerics.h"
#ifdef LADDER_HAS_CUDA
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/device_graph.h"
#include "step1_layers/core/error.h"
#include "step1_layers/norm/rms_norm.h"
#include "step7_parallel/communicators/forked_ranks.h"
#include "step7_parallel/communicators/gpu/gpu_ranks.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Random;

constexpr auto kDeadline = 90s;
constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

#define NEEDS_GPUS(count) \
  if (const std::string obstacle = gpu_ranks_obstacle(count); !obstacle.empty()) GTEST_SKIP() << obstacle

// Groups of two, and of all GPUs there are.
void on_gpus(const std::function<void(const GpuRank& rank, uint64_t seed)>& fn,
             std::chrono::seconds deadline = kDeadline) {
  std::vector<int> sizes = {2};
  if (const int all = std::min(cuda_device_count(), kMaxPeers); all > 2) sizes.push_back(all);
  for (const int size : sizes) {
    const uint64_t seed = testing::fresh_seed();
    EXPECT_THAT(run_gpu_ranks(size, deadline, [&](const GpuRank& rank) { fn(rank, seed); }), Each(""))
        << size << " ranks, LADDER_TEST_SEED=" << seed;
  }
}

void expect(const ::testing::AssertionResult& result, const std::string& what) {
  LADDER_CHECK(static_cast<bool>(result), "wrong: {}: {}", what, result.message());
}

// All ranks' inputs, which each of them makes; [ranks, count].
Tensor inputs_of_all(const GpuRank& rank, Random& random, int64_t count, DType dtype) {
  return random.normal({rank.group.size(), count}, dtype, 10);
}

// In f32, in rank order, rounded once: [count] of [ranks, count].
Tensor sum_in_rank_order(const Tensor& inputs) {
  const int64_t count = inputs.dim(1);
  const Tensor sum = Tensor::empty({count}, inputs.dtype());
  with_float_type(sum.dtype(), "sum", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < count; ++i) {
      float value = 0;
      for (int64_t r = 0; r < inputs.dim(0); ++r)
        value += static_cast<float>(inputs.data<T>()[r * count + i]);
      sum.data<T>()[i] = T(value);
    }
  });
  return sum;
}

std::vector<double> sum_in_double(const std::vector<double>& values, int64_t count) {
  std::vector<double> sum(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) sum[i % sum.size()] += values[i];
  return sum;
}
std::vector<double> sum_in_double(const Tensor& inputs) {
  return sum_in_double(testing::to_double(inputs), inputs.dim(1));
}
std::vector<double> sum_of_magnitudes(const Tensor& inputs) {
  std::vector<double> values = testing::to_double(inputs);
  for (double& value : values) value = std::abs(value);
  return sum_in_double(values, inputs.dim(1));
}

void synchronize(const GpuRank& rank) {
  device_synchronize(rank.ctx.device, rank.ctx.stream);
}
Tensor on_cpu(const GpuRank& rank, const Tensor& tensor) {
  synchronize(rank);
  return tensor.to(Device{});
}

// Every rank has the same bits.
void expect_same_everywhere(const GpuRank& rank, const Tensor& mine) {
  const Tensor bytes = Tensor::wrap(mine.raw(), {1, mine.nbytes()}, DType::u8);
  const Tensor all = Tensor::empty({rank.group.size(), mine.nbytes()}, DType::u8);
  rank.host.all_gather({}, bytes, all);
  for (int other = 0; other < rank.group.size(); ++other)
    expect(testing::bitwise_equal(all.narrow(0, other, 1), bytes),
           fmt::format("rank {} has other bits", other));
}

// The window [offset, offset + count) of a larger tensor, whose first element may so lie anywhere.
struct Window {
  Tensor whole, window;

  Window(const GpuRank& rank, const Tensor& values, int64_t offset)
      : whole(testing::poisoned({values.numel() + offset + 5}, values.dtype()).to(rank.ctx.device)),
        window(whole.narrow(0, offset, values.numel())) {
    window.copy_from(values.to(rank.ctx.device), rank.ctx.stream);
  }
  // Nothing around it was written.
  void expect_untouched(const GpuRank& rank, int64_t offset) const {
    const Tensor now = on_cpu(rank, whole), before = testing::poisoned(now.shape(), now.dtype());
    const int64_t behind = offset + window.numel();
    expect(testing::bitwise_equal(now.narrow(0, 0, offset), before.narrow(0, 0, offset)),
           "before the window");
    expect(testing::bitwise_equal(now.narrow(0, behind, 5), before.narrow(0, behind, 5)),
           "behind the window");
  }
};

class Task7_3_AllReduce : public ::testing::TestWithParam<const Variant<PeerAllReduceArgs>*> {
 protected:
  static bool is_ours() { return GetParam()->name != "nccl"; }
  // False: the rung does not take it.
  static bool run(const GpuRank& rank, const Tensor& tensor) {
    const PeerAllReduceArgs args = rank.group.peer_args(tensor);
    if (!can_run(*GetParam(), rank.ctx, args)) return false;
    GetParam()->run(rank.ctx, args);
    return true;
  }
};

// Odd sizes, none, one, some that many blocks and many chunks take, at any alignment.
TEST_P(Task7_3_AllReduce, Sums) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t seed) {
    Random random(seed);
    for (const DType dtype : kDTypes)
      for (const int64_t count : {0, 1, 2, 3, 7, 8, 9, 64, 1000, 4097, 65536, 300007, 1500003})
        for (const int64_t offset : {0, 1}) {
          const Tensor inputs = inputs_of_all(rank, random, count, dtype);
          const Window mine(rank, inputs.select(0, rank.group.rank()), offset);
          if (!run(rank, mine.window)) {
            LADDER_CHECK(count > 300007, "it does not take {}", mine.window.str());
            continue;
          }
          const std::string what = fmt::format("{} at {}", mine.window.str(), offset);
          const Tensor result = on_cpu(rank, mine.window);
          if (is_ours()) expect(testing::bitwise_equal(result, sum_in_rank_order(inputs)), what);
          if (count >= 1000) expect(testing::close_to(result, sum_in_double(inputs)), what + " in double");
          expect_same_everywhere(rank, result);
          mine.expect_untouched(rank, offset);
        }
  });
}

TEST_P(Task7_3_AllReduce, IsExactForIntegers) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t seed) {
    Random random(seed);
    for (const DType dtype : kDTypes)
      for (const int64_t count : {5, 2049, 131073}) {
        const Tensor inputs = random.exact({rank.group.size(), count}, dtype);
        const Tensor mine = inputs.select(0, rank.group.rank()).to(rank.ctx.device);
        LADDER_CHECK(run(rank, mine), "it does not take {}", mine.str());
        LADDER_CHECK(testing::to_double(on_cpu(rank, mine)) == sum_in_double(inputs), "wrong: {}",
                     mine.str());
      }
  });
}

// Values that look like what an empty buffer holds, zeros of both signs in every neighbourhood, infinity, NaN.
TEST_P(Task7_3_AllReduce, PassesEveryValue) {
  NEEDS_GPUS(2);
  if (!is_ours()) GTEST_SKIP() << "the order of NCCL's sums, and so their zeros' signs, are its own";
  on_gpus([](const GpuRank& rank, uint64_t seed) {
    Random random(seed);
    const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> some = {0.f,  -0.f, 0.f,  -0.f, -0.f,   0.f,         1.f,
                                     -1.f, inf,  -inf, nan,  1e-41f, -4.5918e-41f};
    for (const DType dtype : kDTypes)
      for (int repeat = 0; repeat < 20; ++repeat) {
        const Tensor values = Tensor::empty({rank.group.size(), 4099}, DType::f32);
        for (int64_t i = 0; i < values.numel(); ++i) values.data<float>()[i] = random.one_of(some);
        const Tensor inputs =
            repeat == 0
                ? Tensor::from<float>(std::vector<float>(values.numel(), -0.f), values.shape()).to(dtype)
            : dtype == DType::f32 ? values
                                  : values.to(dtype);
        const Tensor mine = inputs.select(0, rank.group.rank()).to(rank.ctx.device);
        LADDER_CHECK(run(rank, mine), "it does not take {}", mine.str());
        const Tensor result = on_cpu(rank, mine), sum = sum_in_rank_order(inputs);
        const std::vector<double> is = testing::to_double(result), ought = testing::to_double(sum);
        for (size_t i = 0; i < is.size(); ++i)
          LADDER_CHECK(std::isnan(ought[i])
                           ? std::isnan(is[i])
                           : is[i] == ought[i] && std::signbit(is[i]) == std::signbit(ought[i]),
                       "wrong: {}: element {}: {} and not {}", mine.str(), i, is[i], ought[i]);
        expect_same_everywhere(rank, result);
      }
  });
}

// Of a sum of bf16 values that is rounded at every rank that it passes, in any order: each rounding, that of
// `ought` too, errs by at most half a unit in the last of the eight bits of what has been added up so far. `magnitudes`: of
// each element's addends together.
void expect_rounded_on_the_way(const Tensor& result, const Tensor& ought,
                               const std::vector<double>& magnitudes, int ranks, const std::string& what) {
  const std::vector<double> is = testing::to_double(result), should = testing::to_double(ought);
  for (size_t i = 0; i < is.size(); ++i)
    LADDER_CHECK(std::abs(is[i] - should[i]) <= ranks * 0x1p-8 * magnitudes[i],
                 "wrong: {}: element {}: {} instead of {}", what, i, is[i], should[i]);
}

// A captured call is replayed with other inputs in the same place, while ranks come early and late.
TEST_P(Task7_3_AllReduce, IsReplayed) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t seed) {
    Random random(seed), delays(seed * 31 + static_cast<uint64_t>(rank.group.rank()));
    const std::vector<int64_t> counts = {4096, 1, 100003, 333, 16384, 4096};
    std::vector<Tensor> mine;
    for (const int64_t count : counts) mine.push_back(Tensor::zeros({count}, DType::bf16, rank.ctx.device));
    const auto calls = [&] {
      for (const Tensor& tensor : mine) LADDER_CHECK(run(rank, tensor), "it does not take {}", tensor.str());
    };
    calls();
    synchronize(rank);
    rank.host.barrier({});
    DeviceGraph graph;
    graph.capture(rank.ctx, calls);
    for (int replay = 0; replay < 20; ++replay) {
      std::vector<Tensor> inputs;
      for (size_t i = 0; i < counts.size(); ++i) {
        inputs.push_back(inputs_of_all(rank, random, counts[i], DType::bf16));
        mine[i].copy_from(inputs[i].select(0, rank.group.rank()).to(rank.ctx.device), rank.ctx.stream);
      }
      if (delays.integer(0, 2) == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(delays.integer(1, 20)));
      graph.replay(rank.ctx);
      if (replay % 3 == 1) graph.replay(rank.ctx);  // one behind the other: a sum of sums
      for (size_t i = 0; i < counts.size(); ++i) {
        const Tensor result = on_cpu(rank, mine[i]);
        Tensor ought = sum_in_rank_order(inputs[i]);
        std::vector<double> magnitudes = sum_of_magnitudes(inputs[i]);
        if (replay % 3 == 1) {
          const Tensor again = Tensor::empty(inputs[i].shape(), DType::bf16);
          for (int r = 0; r < rank.group.size(); ++r) again.select(0, r).copy_from(ought);
          ought = sum_in_rank_order(again);
          for (double& magnitude : magnitudes) magnitude *= 2 * rank.group.size();
        }
        const std::string what = fmt::format("replay {}: {}", replay, mine[i].str());
        if (is_ours())
          expect(testing::bitwise_equal(result, ought), what);
        else
          expect_rounded_on_the_way(result, ought, magnitudes, rank.group.size(), what);
        expect_same_everywhere(rank, result);
      }
    }
    rank.host.barrier({});
  });
}

std::vector<const Variant<PeerAllReduceArgs>*> rungs() {
  std::vector<const Variant<PeerAllReduceArgs>*> rungs;
  for (const auto& rung : peer_all_reduce_variants()) rungs.push_back(&rung);
  return rungs;
}
INSTANTIATE_TEST_SUITE_P(Table, Task7_3_AllReduce, ::testing::ValuesIn(rungs()),
                         [](const auto& info) { return std::string(info.param->name); });

// Needs no GPU: every group's buffers lie one behind the other, in whole packs, and take what the choice gives them.
TEST(PeerLayout, TakesWhatIsPushed) {
  for (int size = 2; size <= kMaxPeers; ++size) {
    PeerGroup group;
    group.layout = peer_layout(size);
    const PeerLayout& layout = group.layout;
    EXPECT_EQ(PeerLayout::kPull % 16 + layout.slices % 16 + layout.push % 16 + layout.slice_bytes % 16 +
                  layout.exchange % 16 + layout.exchange_bytes % 16,
              0)
        << size;
    EXPECT_EQ(layout.slices - PeerLayout::kPull, 2 * kMaxPeerBlocks * layout.pull_bytes);
    EXPECT_EQ(layout.push - layout.slices, 2 * kMaxPeerBlocks * size * layout.slice_bytes);
    EXPECT_EQ(layout.exchange - layout.push, 2 * kMaxPeerBlocks * size * layout.push_bytes);
    EXPECT_EQ(layout.total - layout.exchange, 2 * kMaxPeerBlocks * size * layout.exchange_bytes);
    EXPECT_LE(layout.total, int64_t{64} << 20);
    int word = 0;
    for (int64_t bytes = 2; fastest_all_reduce(size, bytes) == "push"; bytes = bytes * 5 / 4 / 2 * 2 + 2)
      EXPECT_TRUE(fits_push({&group, nullptr, Tensor::wrap(&word, {bytes / 2}, DType::bf16)})) << bytes;
    EXPECT_FALSE(fits_push({&group, nullptr, Tensor::wrap(&word, {int64_t{1} << 24}, DType::f32)}));
    const Tensor x = Tensor::wrap(&word, {3, 100}, DType::bf16);  // rows of twelve packs and a half
    EXPECT_FALSE(fits_all_reduce_norm(group, {x, x, x.select(0, 0), 1e-6, x}));
  }
}

// The rungs share counters, flags and memory: all of them in one graph, in any order, of any size, with the fused call
// among them.
// Field bug vLLM 28334 (FIELD_BUGS.md).
TEST(GpuCommunicator, TenThousandRandomCallsInOneGraph) {
  NEEDS_GPUS(2);
  on_gpus(
      [](const GpuRank& rank, uint64_t seed) {
        constexpr int kCalls = 10'000, kReplays = 1'000;
        Random random(seed), delays(seed * 31 + static_cast<uint64_t>(rank.group.rank()));
        struct Call {
          const Variant<PeerAllReduceArgs>* rung;
          int64_t first, count;
        };
        std::vector<Call> calls;
        int64_t total = 0;
        const auto table = peer_all_reduce_variants();
        for (int i = 0; i < kCalls; ++i) {
          const int64_t most =
              random.integer(0, 199) == 0 ? 200'000 : random.one_of<int64_t>({1, 40, 600, 5000});
          const bool uses_nccl = random.integer(0, 49) == 0 && rank.group.without_nccl().empty();
          const auto& rung = uses_nccl ? table[0] : table[static_cast<size_t>(random.integer(1, 3))];
          calls.push_back({&rung, total, random.integer(1, most)});
          total += calls.back().count;
        }
        const Tensor source = Tensor::zeros({total}, DType::bf16, rank.ctx.device), work = source.clone();
        const Tensor rows = Tensor::zeros({3, 4096}, DType::bf16, rank.ctx.device), residual = rows.clone();
        const Tensor weight = Tensor::zeros({4096}, DType::bf16, rank.ctx.device), out = rows.clone();
        const auto all = [&] {
          work.copy_from(source, rank.ctx.stream);
          for (size_t i = 0; i < calls.size(); ++i) {
            const Tensor part = work.narrow(0, calls[i].first, calls[i].count);
            calls[i].rung->run(rank.ctx, rank.group.peer_args(part));
            if (i % 11 == 0) rank.group.all_reduce_add_norm(rank.ctx, {rows, residual, weight, 1e-6, out});
          }
        };
        all();
        synchronize(rank);
        rank.host.barrier({});
        DeviceGraph graph;
        graph.capture(rank.ctx, all);
        rank.host.barrier({});
        Tensor sum;
        for (int replay = 0; replay < kReplays; ++replay) {
          if (replay % 250 == 0) {  // integers, so that NCCL's order is no matter
            const Tensor inputs = random.exact({rank.group.size(), total}, DType::bf16);
            source.copy_from(inputs.select(0, rank.group.rank()).to(rank.ctx.device), rank.ctx.stream);
            sum = sum_in_rank_order(inputs);
          }
          if (delays.integer(0, 3) == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(delays.integer(1, 3000)));
          graph.replay(rank.ctx);
          if (replay % 10 == 9)
            expect(testing::bitwise_equal(on_cpu(rank, work), sum), fmt::format("replay {}", replay));
        }
        synchronize(rank);
        rank.host.barrier({});
      },
      600s);
}

// Calls take their halves in turns, or a fast rank writes where a slow one has not read: too rarely to be seen in sums.
TEST(GpuCommunicator, EveryPushCountsInTheBlocksThatItHas) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t) {
    if (!rank.group.without_peers().empty()) return;
    const Tensor rows = Tensor::zeros({3, 4096}, DType::bf16, rank.ctx.device), residual = rows.clone();
    const PeerAllReduceArgs args = rank.group.peer_args(rows);
    const auto pushes = [&] {
      synchronize(rank);
      std::array<PeerCounters, kMaxPeerBlocks> counters;
      device_copy(counters.data(), {}, args.group->memory[rank.group.rank()] + PeerLayout::kCounters,
                  rank.ctx.device, sizeof counters);
      std::vector<uint32_t> pushes;
      for (const PeerCounters& block : counters) pushes.push_back(block.pushes);
      return pushes;
    };
    const auto expect_one_more = [&](std::vector<uint32_t> before, size_t blocks, const char* what) {
      for (size_t block = 0; block < blocks; ++block) ++before[block];
      LADDER_CHECK(pushes() == before, "wrong: the counters after {}", what);
    };
    const std::vector<uint32_t> first = pushes();
    rank.group.all_reduce_add_norm(rank.ctx, {rows, residual, rows.select(0, 0), 1e-6, rows});
    expect_one_more(first, 3, "three rows with their norm, a block each");
    const std::vector<uint32_t> second = pushes();
    all_reduce_push(rank.ctx, args);
    expect_one_more(second, 12, "1536 packs, 128 in a block");
  });
}

// In one kernel where it fits, by the operators where it does not, with the same bits.
TEST(GpuCommunicator, AllReduceAddNormIsTheOperatorsOneAfterTheOther) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t seed) {
    Random random(seed);
    for (const DType dtype : kDTypes)
      for (const int64_t width : {100, 128, 768, 1024, 2048, 4096, 5120, 7168, 8192, 16384})
        for (const int64_t rows : {0, 1, 2, 7, 130, 300}) {
          const Tensor partials = inputs_of_all(rank, random, rows * width, dtype);
          const Tensor residual = random.normal({rows, width + 16}, dtype).to(rank.ctx.device);
          const Tensor weight = random.normal({width}, dtype).to(rank.ctx.device);
          const Tensor partial =
              partials.select(0, rank.group.rank()).view({rows, width}).to(rank.ctx.device);
          const Tensor out = testing::poisoned({rows, width}, dtype).to(rank.ctx.device);
          const Tensor ought_residual = residual.clone();
          const Tensor ought = sum_in_rank_order(partials).view({rows, width}).to(rank.ctx.device);
          const std::string what = fmt::format("{} of {} rows", partial.str(), rows);
          fused_add_rms_norm(rank.ctx, ought, ought_residual.narrow(1, 0, width), weight, 1e-6, ought);
          const bool in_place = random.integer(0, 1) == 0;
          rank.group.all_reduce_add_norm(
              rank.ctx, {partial, residual.narrow(1, 0, width), weight, 1e-6, in_place ? partial : out});
          const Tensor result = on_cpu(rank, in_place ? partial : out), left = on_cpu(rank, residual);
          const bool is_ours = rank.group.without_peers().empty() &&
                               fastest_all_reduce(rank.group.size(), partial.nbytes()) != "nccl";
          if (is_ours) {
            expect(testing::bitwise_equal(left, on_cpu(rank, ought_residual)), what + ": the residual");
            expect(testing::bitwise_equal(result, on_cpu(rank, ought)), what);
          }
          expect(testing::close_to(result, testing::to_double(on_cpu(rank, ought))), what);
          expect_same_everywhere(rank, result);
        }
  });
}

TEST(GpuCommunicator, TheFusedKernelTakesWhatADecodeStepHas) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t) {
    if (!rank.group.without_peers().empty()) return;
    for (const int64_t rows : {1, 64, 128}) {
      const Tensor x = Tensor::zeros({rows, 4096}, DType::bf16, rank.ctx.device);
      const AllReduceNormArgs args{x, x, x.select(0, 0), 1e-6, x};
      LADDER_CHECK(rank.group.size() > 2 || fits_all_reduce_norm(*rank.group.peer_args(x).group, args),
                   "{} rows of 4096 do not fit", rows);
    }
  });
}

// Ours add in one order whatever the size. f32 asks for that, so NCCL does not serve it, but where it is all there is.
TEST(GpuCommunicator, LargeSumsThatMayNotDependOnTheSizeAreOurs) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t) {
    OpContext ctx = rank.ctx;
    ctx.batch_invariant = true;
    const int64_t count = int64_t{20} << 20;
    const auto rung = [&](const PeerAllReduceArgs& args) {
      return choose_variant<PeerAllReduceArgs>("all_reduce", peer_all_reduce_variants(), ctx, args, "nccl")
          .variant->name;
    };
    const Tensor value = Tensor::zeros({count}, DType::f32, ctx.device);
    if (rank.group.without_peers().empty())
      LADDER_CHECK(rung(rank.group.peer_args(value)) == "two_shot", "by NCCL");
    if (!rank.group.without_nccl().empty()) return;
    PeerAllReduceArgs alone = rank.group.peer_args(Tensor::zeros({4}, DType::f32, ctx.device));
    alone.group = nullptr;
    peer_all_reduce(ctx, alone);
    synchronize(rank);
  });
}

// What moves values, eager and captured.
TEST(GpuCommunicator, RowsGoWhereTheyShould) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t seed) {
    if (!rank.group.without_nccl().empty()) return;
    Random random(seed);
    const int me = rank.group.rank(), size = rank.group.size(), next = (me + 1) % size,
              previous = (me + size - 1) % size;
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int64_t rows : {0, 1, 3, 1111}) {
        const Shape shape = {rows, 37};
        const auto gpu = [&](const Shape& of) { return testing::poisoned(of, dtype).to(rank.ctx.device); };
        std::vector<Tensor> inputs;
        for (int r = 0; r < size; ++r) inputs.push_back(random.exact({size * rows, 37}, dtype));
        const Tensor mine = inputs[static_cast<size_t>(me)].to(rank.ctx.device);
        const Tensor mine_part = mine.narrow(0, 0, rows), all = gpu({size * rows, 37}), part = gpu(shape);
        const Tensor received = gpu({size * rows, 37}), message = gpu(shape),
                     gathered = gpu({size * rows, 37});
        std::vector<Tensor> said;
        for (int r = 0; r < size; ++r) said.push_back(gpu(shape));
        const std::vector<int64_t> counts(static_cast<size_t>(size), rows);
        const auto calls = [&] {
          rank.group.all_gather(rank.ctx, mine_part, all);
          rank.group.reduce_scatter(rank.ctx, mine, part);
          for (int root = 0; root < size; ++root) {
            const Tensor& value = said[static_cast<size_t>(root)];
            if (root == me) value.copy_from(mine_part, rank.ctx.stream);
            rank.group.broadcast(rank.ctx, value, root);
          }
          rank.group.all_to_all(rank.ctx, mine, counts, received, counts);
          rank.group.barrier(rank.ctx);
          if (me == 0) rank.group.send(rank.ctx, mine_part, next);
          rank.group.recv(rank.ctx, message, previous);
          if (me != 0) rank.group.send(rank.ctx, mine_part, next);
          rank.group.gather(rank.ctx, mine_part, gathered, size - 1);
        };
        const auto check = [&] {
          const auto values = [&](const Tensor& tensor) { return on_cpu(rank, tensor); };
          for (int r = 0; r < size; ++r) {
            const Tensor& theirs = inputs[static_cast<size_t>(r)];
            const Tensor head = theirs.narrow(0, 0, rows);
            expect(testing::bitwise_equal(values(all).narrow(0, r * rows, rows), head), "all_gather");
            expect(testing::bitwise_equal(values(said[static_cast<size_t>(r)]), head), "broadcast");
            expect(testing::bitwise_equal(values(received).narrow(0, r * rows, rows),
                                          theirs.narrow(0, me * rows, rows)),
                   "all_to_all");
            if (me == size - 1)
              expect(testing::bitwise_equal(values(gathered).narrow(0, r * rows, rows), head), "gather");
          }
          const Tensor theirs = inputs[static_cast<size_t>(previous)].narrow(0, 0, rows);
          expect(testing::bitwise_equal(values(message), theirs), "a message");
          std::vector<double> sum(static_cast<size_t>(rows * 37));
          for (const Tensor& input : inputs) {
            const std::vector<double> from = testing::to_double(input.narrow(0, me * rows, rows).clone());
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += from[i];
          }
          LADDER_CHECK(testing::to_double(values(part)) == sum, "wrong: reduce_scatter");
        };
        calls();
        check();
        rank.host.barrier({});
        DeviceGraph graph;
        graph.capture(rank.ctx, calls);
        for (const Tensor& tensor : {all, part, received, message}) tensor.fill_bytes(0xff);
        synchronize(rank);
        rank.host.barrier({});
        for (int replay = 0; replay < 3; ++replay) graph.replay(rank.ctx);
        check();
        rank.host.barrier({});
      }
    rank.group.check();
  });
}

TEST(GpuCommunicator, NamesWhatItCannotTake) {
  NEEDS_GPUS(2);
  on_gpus([](const GpuRank& rank, uint64_t) {
    const auto error_of = [](const std::function<void()>& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        return error.what();
      }
      return "none";
    };
    const auto names = [](const std::string& text, std::string_view name) {
      LADDER_CHECK(text.find(name) != std::string::npos, "the error \"{}\" does not name {}", text, name);
    };
    const Tensor host = Tensor::zeros({4}, DType::f32),
                 ints = Tensor::zeros({4}, DType::i32, rank.ctx.device);
    const Tensor gaps = Tensor::zeros({4, 4}, DType::f32, rank.ctx.device).narrow(1, 0, 2);
    names(error_of([&] { rank.group.all_reduce(rank.ctx, host); }), "on cpu");
    names(error_of([&] { rank.group.all_reduce(rank.ctx, gaps); }), "contiguous");
    names(error_of([&] { rank.group.all_reduce(rank.ctx, ints); }), "i32");
    const Tensor rows = Tensor::zeros({2, 64}, DType::f32, rank.ctx.device), row = rows.select(0, 0);
    const Tensor narrow = Tensor::zeros({2, 32}, DType::f32, rank.ctx.device);
    names(error_of([&] {
            rank.group.all_reduce_add_norm(rank.ctx, {rows, narrow, row, 1e-6, rows});
          }),
          "residual");
    names(error_of([&] { rank.group.all_reduce_add_norm(rank.ctx, {rows, rows, row, 1e-6, row}); }), "out");
    names(error_of([&] {
            rank.group.all_reduce_add_norm(rank.ctx, {rows, rows, narrow.select(0, 0), 1e-6, rows});
          }),
          "weight");
    if (!rank.group.without_nccl().empty()) return;
    const Tensor four = Tensor::zeros({4}, DType::f32, rank.ctx.device);
    names(error_of([&] { rank.group.send(rank.ctx, four, rank.group.rank()); }), "another rank");
    names(error_of([&] { rank.group.all_gather(rank.ctx, four, four); }), "all_gather: output");
  });
}

// The others' kernels wait for it, and are released.
// Field bugs NCCL 279 and 863 (FIELD_BUGS.md).
TEST(GpuCommunicator, ARankThatThrowsReleasesTheOthers) {
  NEEDS_GPUS(2);
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run_gpu_ranks(2, kDeadline, [](const GpuRank& rank) {
    const Tensor value = Tensor::zeros({4096}, DType::f32, rank.ctx.device);
    rank.group.all_reduce(rank.ctx, value);
    if (rank.group.rank() == 1) {
      synchronize(rank);
      throw std::runtime_error("the disk is on fire");
    }
    rank.group.all_reduce(rank.ctx, value);
    synchronize(rank);
  });
  EXPECT_EQ(errors[1], "the disk is on fire");
  EXPECT_THAT(errors[0], HasSubstr("rank 1"));
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 30);
}

// A process each, as in serving: their memory is opened by handles. Needs a process that has not used a GPU yet, since
// a GPU's context does not survive a fork: as ctest runs it.
// Field bug vLLM 42609 (FIELD_BUGS.md).
TEST(GpuCommunicatorOfProcesses, SumsThroughHandles) {
  const auto errors =
      run_forked_ranks({.shape = {.size = 2}, .patience = {.timeout = 60s}, .deadline = 60s},
                       [](int rank, Communicator& host) {
                         std::string reason;
                         if (const int count = cuda_device_count(&reason); count < 2)
                           fail("left out: two GPUs are needed and there are {}: {}", count, reason);
                         CudaContext cuda(rank);
                         Arena arena{{DeviceType::cuda, rank}};
                         OpContext ctx = cuda.op_context();
                         ctx.arena = &arena;
                         GpuCommunicator group(ctx, host);
                         LADDER_CHECK(group.without_peers().empty(), "{}", group.without_peers());
                         for (const auto& rung : peer_all_reduce_variants())
                           for (int64_t count : {1, 5000, 700001}) {
                             const Tensor ones = Tensor::empty({count}, DType::f32);
                             for (int64_t i = 0; i < count; ++i)
                               ones.data<float>()[i] = static_cast<float>(rank + i % 7);
                             const Tensor mine = ones.to(ctx.device);
                             if (!can_run(rung, ctx, group.peer_args(mine))) continue;
                             rung.run(ctx, group.peer_args(mine));
                             device_synchronize(ctx.device, ctx.stream);
                             const Tensor sum = mine.to(Device{});
                             for (int64_t i = 0; i < count; ++i)
                               LADDER_CHECK(sum.data<float>()[i] == static_cast<float>(1 + i % 7 * 2),
                                            "wrong: {} of {}", rung.name, mine.str());
                           }
                       });
  if (errors[0].find("left out") != std::string::npos) GTEST_SKIP() << errors[0];
  if (errors[0].find("initialization error") != std::string::npos)
    GTEST_SKIP() << "this process has used a GPU";
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace ladder

#else

TEST(GpuCommunicator, IsNotInThisBuild) {
  GTEST_SKIP() << "CUDA was not found, or LADDER_CUDA=OFF";
}

#endif
