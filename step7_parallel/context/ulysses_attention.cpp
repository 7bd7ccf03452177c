#include "step7_parallel/context/ulysses_attention.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "step1_layers/core/error.h"
#include "step7_parallel/context/ring_attention.h"
#include "step7_parallel/context/row_order.h"

namespace ladder {

std::string ulysses_obstacle(int64_t kv_heads, int ranks) {
  if (kv_heads % ranks == 0) return {};
  return fmt::format("{} KV heads cannot be shared out to {} ranks", kv_heads, ranks);
}

namespace {

// [rows, parts * heads, dim] and [parts, rows, heads, dim]: the heads that go to one rank lie together.
void split_heads(const Tensor& whole, const Tensor& parts, bool back) {
  const int64_t count = parts.dim(0), rows = parts.dim(1), run = parts.dim(2) * parts.dim(3);
  float *w = whole.data<float>(), *p = parts.data<float>();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t part = 0; part < count; ++part) {
      float *in_whole = w + (row * count + part) * run, *in_part = p + (part * rows + row) * run;
      std::memcpy(back ? in_whole : in_part, back ? in_part : in_whole,
                  static_cast<size_t>(run) * sizeof(float));
    }
}

// One of a group that exchanges heads: all its ranks' rows of some heads, and back.
struct HeadExchange {
  Communicator& group;
  std::vector<int64_t> rows;  // by rank

  // [rows of this rank, heads, dim] into [rows of all, one rank's after another's, heads / ranks, dim].
  Tensor to_heads(const OpContext& ctx, const Tensor& mine) const {
    const int64_t parts = group.size(), heads = mine.dim(1) / parts, dim = mine.dim(2);
    const Tensor sent = Tensor::empty({parts, mine.dim(0), heads, dim}, DType::f32);
    split_heads(mine, sent, false);
    const Tensor all =
        Tensor::empty({std::accumulate(rows.begin(), rows.end(), int64_t{0}), heads, dim}, DType::f32);
    const std::vector<int64_t> same(rows.size(), mine.dim(0));
    group.all_to_all(ctx, sent.view({parts * mine.dim(0), heads, dim}), same, all, rows);
    return all;
  }
  void to_rows(const OpContext& ctx, const Tensor& all, const Tensor& mine) const {
    const int64_t parts = group.size(), heads = mine.dim(1) / parts, dim = mine.dim(2);
    const Tensor received = Tensor::empty({parts, mine.dim(0), heads, dim}, DType::f32);
    const std::vector<int64_t> same(rows.size(), mine.dim(0));
    group.all_to_all(ctx, all, rows, received.view({parts * mine.dim(0), heads, dim}), same);
    split_heads(mine, received, true);
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
  const std::vector<int64_t> query_order =
      row_order(args.prompts, ranks, first, begins_of(queries.rows), false);
  const std::vector<int64_t> key_order = row_order(args.prompts, ranks, first, begins_of(keys.rows), true);

  ContextAttentionArgs of_heads = args;
  of_heads.group = &outer;
  for (ContextPrompt& prompt : of_heads.prompts) {
    if (prompt.cached.empty()) continue;
    std::vector<int64_t> cached(static_cast<size_t>(outer.size()));
    for (int rank = 0; rank < ranks; ++rank)
      cached[static_cast<size_t>(rank / width)] += prompt.cached_of(rank);
    prompt.cached = cached;
  }
  of_heads.q = rows_in_order(queries.to_heads(ctx, args.q), query_order);
  of_heads.k = rows_in_order(keys.to_heads(ctx, args.k), key_order);
  of_heads.v = rows_in_order(keys.to_heads(ctx, args.v), key_order);
  of_heads.out = Tensor::empty(of_heads.q.shape(), DType::f32);
  ring_attention(ctx, of_heads);
  const Tensor all = Tensor::empty(of_heads.out.shape(), DType::f32);
  put_rows_back(of_heads.out, query_order, all);
  queries.to_rows(ctx, all, args.out);
}

}  // namespace

void ulysses_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  check_context_attention(args);
  exchange_heads(ctx, args, *args.group, single_rank());
}

void ulysses_ring_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  check_context_attention(args);
  Communicator &group = *args.group, &inner = *args.inner, &outer = *args.outer;
  LADDER_CHECK(inner.size() * outer.size() == group.size() && group.rank() % inner.size() == inner.rank() &&
                   group.rank() / inner.size() == outer.rank(),
               "rank {} of {} is {} of {} in its inner group and {} of {} in its outer one", group.rank(),
               group.size(), inner.rank(), inner.size(), outer.rank(), outer.size());
  exchange_heads(ctx, args, inner, outer);
}

}  // namespace ladder
