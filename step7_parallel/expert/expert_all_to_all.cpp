// Tokens to their experts and nowhere else.
#include <cstring>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step7_parallel/expert/expert_exchange.h"

namespace ladder {

// >>> task 7.9: each token to the ranks that have one of its experts, and the parts back into one sum
namespace {

// Which tokens go where: those for rank 0, then those for rank 1, ... A token whose experts are on three ranks stands there three
// times, one with two experts on a rank once.
struct Dispatch {
  std::vector<int64_t> tokens;          // of this rank, in the order in which they are sent
  std::vector<int64_t> sent, received;  // rows, by rank
};

Dispatch plan_dispatch(const OpContext& ctx, const ExpertExchangeArgs& args) {
  const int size = args.ranks->size();
  const int64_t top_k = args.expert_ids.dim(1);
  Dispatch dispatch;
  for (int rank = 0; rank < size; ++rank) {
    const size_t before = dispatch.tokens.size();
    for (int64_t token = 0; token < args.x.dim(0); ++token)
      for (int64_t j = 0; j < top_k; ++j) {
        const int32_t expert = args.expert_ids.data<int32_t>()[token * top_k + j];
        if (expert < 0 || args.rank_of[static_cast<size_t>(expert)] != rank) continue;
        dispatch.tokens.push_back(token);
        break;
      }
    dispatch.sent.push_back(static_cast<int64_t>(dispatch.tokens.size() - before));
  }
  // Everybody learns how much comes from whom.
  const std::vector<int32_t> mine(dispatch.sent.begin(), dispatch.sent.end());
  const Tensor counts = Tensor::empty({size, size}, DType::i32);
  args.ranks->all_gather(ctx, Tensor::from<int32_t>(mine, {1, size}), counts);
  for (int rank = 0; rank < size; ++rank)
    dispatch.received.push_back(counts.at<int32_t>({rank, args.ranks->rank()}));
  return dispatch;
}

int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Tensor exchange_rows(const OpContext& ctx, const ExpertExchangeArgs& args, const Tensor& rows,
                     const std::vector<int64_t>& sent, const std::vector<int64_t>& received) {
  const Tensor came = Tensor::empty({total(received), rows.dim(1)}, rows.dtype());
  args.ranks->all_to_all(ctx, rows, sent, came, received);
  return came;
}

// The rows of the tokens that are sent.
Tensor rows_to_send(const Tensor& rows, const Dispatch& dispatch) {
  const Tensor chosen = Tensor::empty({std::ssize(dispatch.tokens), rows.dim(1)}, rows.dtype());
  const int64_t row_bytes = rows.dim(1) * dtype_size(rows.dtype());
  for (size_t i = 0; i < dispatch.tokens.size(); ++i)
    std::memcpy(static_cast<char*>(chosen.raw()) + static_cast<int64_t>(i) * row_bytes,
                static_cast<const char*>(rows.raw()) + dispatch.tokens[i] * row_bytes,
                static_cast<size_t>(row_bytes));
  return chosen;
}

// out[token] = the sum of what came back of it, from rank 0 on.
void add_parts(const ExpertExchangeArgs& args, const Dispatch& dispatch, const Tensor& parts) {
  const int64_t hidden = args.x.dim(1);
  with_float_type(args.x.dtype(), "expert_exchange", [&](auto tag) {
    using T = decltype(tag);
    std::vector<float> sums(static_cast<size_t>(args.x.numel()), 0.0f);
    for (size_t i = 0; i < dispatch.tokens.size(); ++i)
      for (int64_t column = 0; column < hidden; ++column)
        sums[static_cast<size_t>(dispatch.tokens[i] * hidden + column)] +=
            static_cast<float>(parts.data<T>()[static_cast<int64_t>(i) * hidden + column]);
    for (int64_t i = 0; i < args.x.numel(); ++i) args.out.data<T>()[i] = T(sums[static_cast<size_t>(i)]);
  });
}

}  // namespace

void expert_exchange_all_to_all(const OpContext& ctx, const ExpertExchangeArgs& args) {
  const Dispatch dispatch = plan_dispatch(ctx, args);
  const auto bring = [&](const Tensor& rows) {
    return exchange_rows(ctx, args, rows_to_send(rows, dispatch), dispatch.sent, dispatch.received);
  };
  const Tensor x = bring(args.x), expert_ids = bring(args.expert_ids), weights = bring(args.weights);
  for (int64_t i = 0; i < expert_ids.numel(); ++i)
    if (int32_t& expert = expert_ids.data<int32_t>()[i]; expert >= 0)
      expert = args.rank_of[static_cast<size_t>(expert)] == args.ranks->rank() ? expert : -1;
  const Tensor parts = Tensor::empty(x.shape(), x.dtype());
  args.compute(ctx, x, expert_ids, weights, parts);
  add_parts(args, dispatch, exchange_rows(ctx, args, parts, dispatch.received, dispatch.sent));
}
// <<< task 7.9

}  // namespace ladder
