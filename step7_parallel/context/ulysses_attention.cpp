#include "step7_parallel/context/ulysses_attention.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/context/copy_runs.h"
#include "step7_parallel/context/ring_attention.h"
#include "step7_parallel/context/row_order.h"

namespace ladder {

std::string ulysses_obstacle(int64_t kv_heads, int ranks) {
  if (kv_heads % ranks == 0) return {};
  return fmt::format("{} KV heads cannot be shared out to {} ranks", kv_heads, ranks);
}

namespace {

// One of a group that exchanges heads: all its ranks' rows of some heads, and back.
struct HeadExchange {
  Communicator& group;
  std::vector<int64_t> rows;  // by rank

  int64_t all_rows() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

  // [rows of this rank, heads, dim] into [rows of all, one rank's after another's, heads / ranks, dim].
  void to_heads(const OpContext& ctx, const Tensor& mine, const Tensor& all) const {
    const ArenaScope scope(*ctx.arena);
    const int64_t parts = group.size(), heads = mine.dim(1) / parts, dim = mine.dim(2);
    const Tensor sent = ctx.arena->take({parts, mine.dim(0), heads, dim}, mine.dtype());
    split_rows(ctx, mine, sent);  // the heads that go to one rank lie together
    const std::vector<int64_t> same(rows.size(), mine.dim(0));
    group.all_to_all(ctx, sent.view({parts * mine.dim(0), heads, dim}), same, all, rows);
  }
  void to_rows(const OpContext& ctx, const Tensor& all, const Tensor& mine) const {
    const ArenaScope scope(*ctx.arena);
    const int64_t parts = group.size(), heads = mine.dim(1) / parts, dim = mine.dim(2);
    const Tensor received = ctx.arena->take({parts, mine.dim(0), heads, dim}, mine.dtype());
    const std::vector<int64_t> same(rows.size(), mine.dim(0));
    group.all_to_all(ctx, all, rows, received.view({parts * mine.dim(0), heads, dim}), same);
    join_rows(ctx, received, mine);
  }
};

std::vector<int64_t> begins_of(const std::vector<int64_t>& counts) {
  std::vector<int64_t> begins(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), int64_t{0});
  return begins;
}

void exchange_heads(const OpContext& ctx, const ContextAttentionArgs& args, Communicator& inner,
                    Communicator& outer) {
  const int ranks = args.group->size(), width = inner.size(), first = outer.rank() * width;
  const std::string obstacle = ulysses_obstacle(args.k.dim(1), width);
  LADDER_CHECK(obstacle.empty(), "attention by heads over ranks: {}", obstacle);
  HeadExchange queries{inner, {}}, keys{inner, {}};
  for (int rank = first; rank < first + width; ++rank) {
    queries.rows.push_back(context_rows(args.prompts, ranks, rank));
    keys.rows.push_back(context_keys(args.prompts, ranks, rank));
  }
  const std::vector<RowRun> query_order =
      row_order(args.prompts, ranks, first, begins_of(queries.rows), false);
  const std::vector<RowRun> key_order = row_order(args.prompts, ranks, first, begins_of(keys.rows), true);

  ContextAttentionArgs of_heads = args;
  of_heads.group = &outer;
  for (ContextPrompt& prompt : of_heads.prompts) {
    if (prompt.cached.empty()) continue;
    std::vector<int64_t> cached(static_cast<size_t>(outer.size()));
    for (int rank = 0; rank < ranks; ++rank)
      cached[static_cast<size_t>(rank / width)] += prompt.cached_of(rank);
    prompt.cached = cached;
  }
  const ArenaScope scope(*ctx.arena);
  auto of_some_heads = [&](const HeadExchange& exchange, const Tensor& mine) {
    return ctx.arena->take({exchange.all_rows(), mine.dim(1) / width, mine.dim(2)}, mine.dtype());
  };
  auto brought = [&](const HeadExchange& exchange, const std::vector<RowRun>& order, const Tensor& mine) {
    const Tensor ordered = of_some_heads(exchange, mine);
    const ArenaScope until_ordered(*ctx.arena);
    const Tensor came = of_some_heads(exchange, mine);
    exchange.to_heads(ctx, mine, came);
    put_in_order(ctx, order, came, ordered);
    return ordered;
  };
  of_heads.q = brought(queries, query_order, args.q);
  of_heads.k = brought(keys, key_order, args.k);
  of_heads.v = brought(keys, key_order, args.v);
  of_heads.out = of_some_heads(queries, args.q);
  ring_attention(ctx, of_heads);
  const Tensor all = of_some_heads(queries, args.q);
  put_back(ctx, query_order, of_heads.out, all);
  queries.to_rows(ctx, all, args.out);
}

}  // namespace

void ulysses_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  check_context_attention(ctx, args);
  exchange_heads(ctx, args, *args.group, single_rank());
}

void ulysses_ring_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  check_context_attention(ctx, args);
  Communicator &group = *args.group, &inner = *args.inner, &outer = *args.outer;
  LADDER_CHECK(inner.size() * outer.size() == group.size() && group.rank() % inner.size() == inner.rank() &&
                   group.rank() / inner.size() == outer.rank(),
               "rank {} of {} is {} of {} in its inner group and {} of {} in its outer one", group.rank(),
               group.size(), inner.rank(), inner.size(), outer.rank(), outer.size());
  exchange_heads(ctx, args, inner, outer);
}

}  // namespace ladder
