// Tokens to their experts by collectives of equal sizes: what a graph can hold, and little more than an exchange brings where
// a token has as many experts as there are ranks.
#include <algorithm>

#include "step7_parallel/expert/expert_exchange.h"

namespace ladder {

void expert_exchange_all_gather(const OpContext& ctx, const ExpertExchangeArgs& args) {
  Communicator& ranks = *args.ranks;
  const int64_t size = ranks.size(), tokens = args.x.dim(0), top_k = args.expert_ids.dim(1);
  // All ranks agree on the most tokens that one of them has: the others fill up with tokens of no expert.
  const Tensor mine = Tensor::from<int32_t>(std::vector<int32_t>{static_cast<int32_t>(tokens)}, {1});
  const Tensor counts = Tensor::empty({size}, DType::i32);
  ranks.all_gather(ctx, mine, counts);
  const int64_t most = *std::max_element(counts.data<int32_t>(), counts.data<int32_t>() + size);
  if (most == 0) return args.compute(ctx, args.x, args.expert_ids, args.weights, args.out);

  const auto of_all = [&](const Tensor& rows, int fill) {
    const Tensor padded = Tensor::empty({most, rows.dim(1)}, rows.dtype());
    padded.fill_bytes(static_cast<uint8_t>(fill));
    if (tokens > 0) padded.rows(tokens).copy_from(rows);
    const Tensor all = Tensor::empty({size * most, rows.dim(1)}, rows.dtype());
    ranks.all_gather(ctx, padded, all);
    return all;
  };
  const Tensor x = of_all(args.x, 0), expert_ids = of_all(args.expert_ids, 0xff),
               weights = of_all(args.weights, 0);
  for (int64_t i = 0; i < size * most * top_k && !args.rank_of.empty(); ++i)
    if (int32_t& expert = expert_ids.data<int32_t>()[i]; expert >= 0)
      expert = args.rank_of[static_cast<size_t>(expert)] == ranks.rank() ? expert : -1;

  const Tensor parts = Tensor::empty(x.shape(), x.dtype()), sums = Tensor::empty({most, x.dim(1)}, x.dtype());
  args.compute(ctx, x, expert_ids, weights, parts);
  ranks.reduce_scatter(ctx, parts, sums);
  if (tokens > 0) args.out.copy_from(sums.rows(tokens));
}

}  // namespace ladder
