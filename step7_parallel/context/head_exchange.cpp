#include "step7_parallel/context/head_exchange.h"

#include <algorithm>
#include <vector>

#include "step7_parallel/context/copy_runs.h"
#include "step7_parallel/context/lse_merge.h"

namespace ladder {

int Neighbours::first() const {
  return group.rank() / ranks * ranks;
}
int Neighbours::mine() const {
  return group.rank() - first();
}

void Neighbours::exchange(const OpContext& ctx, const Tensor& sent, const Tensor& received) const {
  std::vector<int64_t> counts(static_cast<size_t>(group.size()));
  std::fill_n(counts.begin() + first(), ranks, 1);
  group.all_to_all(ctx, sent, counts, received, counts);
}

// >>> task 7.11: queries to all neighbours, and results back to the ranks of their heads
namespace {

void gather_by_messages(const OpContext& ctx, const GatherHeadsArgs& args) {
  const ArenaScope scope(*ctx.arena);
  const int64_t ranks = args.neighbours.ranks, rows = args.mine.dim(0), heads = args.mine.dim(1),
                dim = args.mine.dim(2);
  const Tensor sent = ctx.arena->take({ranks, rows, heads, dim}, args.mine.dtype());
  const Tensor received = ctx.arena->take(sent.shape(), sent.dtype());
  rows_to_every_part(ctx, args.mine, sent);
  args.neighbours.exchange(ctx, sent, received);
  join_rows(ctx, received, args.all);
  device_fill(args.lse.raw(), ctx.device, 0xff, args.lse.nbytes(), ctx.stream);  // NaN
}

void merge_by_messages(const OpContext& ctx, const MergeHeadsArgs& args) {
  const ArenaScope scope(*ctx.arena);
  const int64_t ranks = args.neighbours.ranks, rows = args.out.dim(0), heads = args.out.dim(1),
                dim = args.out.dim(2), parts = ranks + (args.own.defined() ? 1 : 0);
  const auto exchanged = [&](const Tensor& of_all, const Tensor& own, const Shape& sent_shape,
                             const Shape& parts_shape) {
    const Tensor sent = ctx.arena->take(sent_shape, of_all.dtype());
    const Tensor received = ctx.arena->take(parts_shape, of_all.dtype());
    split_rows(ctx, of_all, sent);
    args.neighbours.exchange(ctx, sent, received.rows(ranks));
    if (own.defined()) received.select(0, ranks).copy_from(own, ctx.stream);
    return received;
  };
  LseMergeArgs merge;
  merge.parts = exchanged(args.parts, args.own, {ranks, rows, heads, dim}, {parts, rows, heads, dim});
  merge.part_lse = exchanged(args.lse, args.own_lse, {ranks, rows, heads}, {parts, rows, heads});
  merge.out = args.out;
  merge_parts(ctx, merge);
}

}  // namespace
// <<< task 7.11

namespace {

constexpr Variant<GatherHeadsArgs> kGathers[] = {
    {.name = "messages", .idea = "a copy to each rank, put in order", .run = gather_by_messages},
#ifdef LADDER_HAS_CUDA
    {.name = "nccl",
     .device = DeviceType::cuda,
     .idea = "a copy to each rank, put in order: three kernels",
     .run = gather_by_messages},
    {.name = "push",
     .device = DeviceType::cuda,
     .idea = "each value written where every rank looks for it; what came says so itself",
     .supports = gather_heads_can_push,
     .run = gather_heads_push},
#endif
};

constexpr Variant<MergeHeadsArgs> kMerges[] = {
    {.name = "messages", .idea = "results and lse brought back, then merged", .run = merge_by_messages},
#ifdef LADDER_HAS_CUDA
    {.name = "nccl",
     .device = DeviceType::cuda,
     .idea = "results and lse brought back, then merged: five kernels",
     .run = merge_by_messages},
    {.name = "push",
     .device = DeviceType::cuda,
     .idea = "a result and its lse in one message; who waits for them merges them as they come",
     .supports = merge_heads_can_push,
     .run = merge_heads_push},
#endif
};

void expect_lse(const Tensor& lse, const Tensor& of, const char* what) {
  expect_shape(lse, {of.dim(0), of.dim(1)}, what);
  expect_dtype(lse, DType::f32, what);
}

}  // namespace

std::span<const Variant<GatherHeadsArgs>> gather_heads_variants() {
  return kGathers;
}
std::span<const Variant<MergeHeadsArgs>> merge_heads_variants() {
  return kMerges;
}

void gather_heads(const OpContext& ctx, const GatherHeadsArgs& args) {
  const Tensor& mine = args.mine;
  expect_shape(mine, {-1, -1, -1}, "gather_heads: mine");
  LADDER_CHECK(mine.stride(2) == 1 && mine.stride(1) == mine.dim(2),
               "gather_heads: expected a row's heads side by side, got {}", mine.str());
  expect_shape(args.all, {mine.dim(0), mine.dim(1) * args.neighbours.ranks, mine.dim(2)},
               "gather_heads: all");
  expect_dtype(args.all, mine.dtype(), "gather_heads: all");
  expect_lse(args.lse, args.all, "gather_heads: lse");
  if (mine.dim(0) > 0) run_variant("gather_heads", gather_heads_variants(), ctx, args);
}

void merge_heads(const OpContext& ctx, const MergeHeadsArgs& args) {
  const Tensor& out = args.out;
  expect_shape(out, {-1, -1, -1}, "merge_heads: out");
  expect_shape(args.parts, {out.dim(0), out.dim(1) * args.neighbours.ranks, out.dim(2)},
               "merge_heads: parts");
  expect_dtype(args.parts, out.dtype(), "merge_heads: parts");
  expect_lse(args.lse, args.parts, "merge_heads: lse");
  if (args.own.defined()) {
    expect_shape(args.own, {out.dim(0), out.dim(1), out.dim(2)}, "merge_heads: own");
    expect_dtype(args.own, out.dtype(), "merge_heads: own");
    expect_lse(args.own_lse, out, "merge_heads: own_lse");
  }
  if (out.dim(0) > 0) run_variant("merge_heads", merge_heads_variants(), ctx, args);
}

}  // namespace ladder
