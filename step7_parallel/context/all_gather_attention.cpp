#include "step7_parallel/context/all_gather_attention.h"

#include <algorithm>
#include <numeric>

#include "step1_layers/core/arena.h"
#include "step7_parallel/context/partial_attention.h"
#include "step7_parallel/context/row_order.h"

namespace ladder {

void all_gather_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  check_context_attention(ctx, args);
  Communicator& group = *args.group;
  const int size = group.size(), rank = group.rank();
  int64_t most = 0;
  std::vector<int64_t> begins;
  for (int r = 0; r < size; ++r) most = std::max(most, context_keys(args.prompts, size, r));
  for (int r = 0; r < size; ++r) begins.push_back(r * most);
  const std::vector<RowRun> order = row_order(args.prompts, size, 0, begins, true);
  const int64_t keys = order.empty() ? 0 : order.back().ordered + order.back().count;
  const ArenaScope scope(*ctx.arena);
  auto rows_like = [&](const Tensor& mine, int64_t rows) {
    return ctx.arena->take({rows, mine.dim(1), mine.dim(2)}, mine.dtype());
  };
  auto gathered = [&](const Tensor& mine) {
    const Tensor ordered = rows_like(mine, keys);
    const ArenaScope until_ordered(*ctx.arena);
    const Tensor all = rows_like(mine, size * most);
    Tensor sent = mine;
    if (mine.dim(0) < most) {  // filled up
      sent = rows_like(mine, most);
      sent.rows(mine.dim(0)).copy_from(mine, ctx.stream);
    }
    group.all_gather(ctx, sent, all);
    put_in_order(ctx, order, all, ordered);
    return ordered;
  };
  const Tensor k = gathered(args.k), v = gathered(args.v);
  int64_t row = 0, key = 0;
  for (const ContextPrompt& prompt : args.prompts) {
    const int64_t cached = std::accumulate(prompt.cached.begin(), prompt.cached.end(), int64_t{0});
    const ZigzagShare share = zigzag_share(prompt.length, size, rank);
    for (const TokenSpan& span : {share.early, share.late}) {
      if (span.size() == 0) continue;
      const int64_t seen = cached + span.end;
      causal_attention_of_last(ctx, args.q.narrow(0, row, span.size()), k.narrow(0, key, seen),
                               v.narrow(0, key, seen), args.scale, args.out.narrow(0, row, span.size()));
      row += span.size();
    }
    key += cached + prompt.length;
  }
}

}  // namespace ladder
