#include "step7_parallel/context/all_gather_attention.h"

#include <algorithm>
#include <numeric>

#include "step7_parallel/context/partial_attention.h"
#include "step7_parallel/context/row_order.h"

namespace ladder {

void all_gather_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  check_context_attention(args);
  Communicator& group = *args.group;
  const int size = group.size(), rank = group.rank();
  int64_t most = 0;
  std::vector<int64_t> begins;
  for (int r = 0; r < size; ++r) most = std::max(most, context_keys(args.prompts, size, r));
  for (int r = 0; r < size; ++r) begins.push_back(r * most);
  const std::vector<int64_t> order = row_order(args.prompts, size, 0, begins, true);
  auto gathered = [&](const Tensor& mine) {
    const Tensor padded = Tensor::zeros({most, mine.dim(1), mine.dim(2)}, DType::f32);
    padded.rows(mine.dim(0)).copy_from(mine);
    const Tensor all = Tensor::empty({size * most, mine.dim(1), mine.dim(2)}, DType::f32);
    group.all_gather(ctx, padded, all);
    return rows_in_order(all, order);
  };
  const Tensor k = gathered(args.k), v = gathered(args.v);
  int64_t row = 0, key = 0;
  for (const ContextPrompt& prompt : args.prompts) {
    const int64_t cached = std::accumulate(prompt.cached.begin(), prompt.cached.end(), int64_t{0});
    const ZigzagShare share = zigzag_share(prompt.length, size, rank);
    for (const TokenSpan& span : {share.early, share.late}) {
      if (span.size() == 0) continue;
      const int64_t keys = cached + span.end;
      causal_attention_of_last(ctx, args.q.narrow(0, row, span.size()), k.narrow(0, key, keys),
                               v.narrow(0, key, keys), args.scale, args.out.narrow(0, row, span.size()));
      row += span.size();
    }
    key += cached + prompt.length;
  }
}

}  // namespace ladder
