#include "step7_parallel/context/context_attention.h"

#include "step1_layers/core/error.h"

namespace ladder {

int64_t context_rows(const std::vector<ContextPrompt>& prompts, int ranks, int rank) {
  int64_t rows = 0;
  for (const ContextPrompt& prompt : prompts) rows += zigzag_share(prompt.length, ranks, rank).size();
  return rows;
}

int64_t context_keys(const std::vector<ContextPrompt>& prompts, int ranks, int rank) {
  int64_t keys = context_rows(prompts, ranks, rank);
  for (const ContextPrompt& prompt : prompts) keys += prompt.cached_of(rank);
  return keys;
}

void check_context_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  const int ranks = args.group->size(), rank = args.group->rank();
  for (const ContextPrompt& prompt : args.prompts)
    LADDER_CHECK(prompt.cached.empty() || std::ssize(prompt.cached) == ranks,
                 "cached keys of {} ranks, in a context-parallel group of {}", prompt.cached.size(), ranks);
  LADDER_CHECK(args.q.ndim() == 3 && args.k.ndim() == 3 && args.k.dim(1) > 0 &&
                   args.q.dim(1) % args.k.dim(1) == 0 && args.k.dim(2) == args.q.dim(2) &&
                   args.v.shape() == args.k.shape() && args.out.shape() == args.q.shape(),
               "context-parallel attention of queries {}, keys {} and values {} into {}", args.q.str(),
               args.k.str(), args.v.str(), args.out.str());
  const int64_t rows = context_rows(args.prompts, ranks, rank),
                keys = context_keys(args.prompts, ranks, rank);
  LADDER_CHECK(args.q.dim(0) == rows && args.k.dim(0) == keys,
               "rank {} of {} has {} tokens and {} keys, the queries are {} and the keys {}", rank, ranks,
               rows, keys, args.q.str(), args.k.str());
  for (const Tensor* tensor : {&args.q, &args.k, &args.v, &args.out})
    LADDER_CHECK(
        tensor->dtype() == args.q.dtype() && tensor->device() == ctx.device && tensor->is_contiguous(),
        "context-parallel attention takes contiguous tensors of one dtype on {}, beside queries {} this is {} on {}",
        device_name(ctx.device), args.q.str(), tensor->str(), device_name(tensor->device()));
  LADDER_CHECK(args.q.dtype() == DType::f32 || args.q.dtype() == DType::bf16 || args.q.dtype() == DType::f16,
               "context-parallel attention takes f32, bf16 and f16, this is {}", args.q.str());
  LADDER_CHECK(ctx.arena != nullptr, "context-parallel attention needs an arena in the context");
}

}  // namespace ladder
