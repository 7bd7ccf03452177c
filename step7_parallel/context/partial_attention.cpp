#include "step7_parallel/context/partial_attention.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"

namespace ladder {
namespace {

// {0, rows, keys, 0} on the context's device: the starts of one sequence, its length, and its block table. On a GPU no copy
// of the host's memory, which would have to live until it is made.
Tensor one_sequence(const OpContext& ctx, int64_t rows, int64_t keys) {
  const Tensor numbers = ctx.arena->take({4}, DType::i32);
#ifdef LADDER_HAS_CUDA
  if (ctx.device.type == DeviceType::cuda) {
    describe_one_sequence_cuda(ctx, rows, keys, numbers);
    return numbers;
  }
#endif
  numbers.copy_from(Tensor::from<int32_t>(
      std::vector<int32_t>{0, static_cast<int32_t>(rows), static_cast<int32_t>(keys), 0}, {4}));
  return numbers;
}

// The keys are a paged cache of one block. Kernels divide by its size, which is a power of two: past the keys, where it may
// have more slots than there is memory, they read nothing.
void attend(const OpContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
            double scale, const Tensor& out, const Tensor& lse) {
  const ArenaScope scope(*ctx.arena);
  const int64_t rows = q.dim(0), keys = k.dim(0);
  const auto slots = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(keys, 16))));
  const auto one_block = [&](const Tensor& t) {
    return Tensor::wrap(t.raw(), {1, slots, t.dim(1), t.dim(2)}, t.dtype(), t.device());
  };
  const Tensor numbers = one_sequence(ctx, rows, keys);
  AttentionMetadata metadata;
  metadata.query_start_loc = numbers.rows(2);
  metadata.seq_lens = numbers.narrow(0, 2, 1);
  metadata.block_tables = numbers.narrow(0, 3, 1).view({1, 1});
  metadata.num_seqs = 1;
  metadata.num_tokens = rows;
  metadata.max_query_len = rows;
  metadata.max_seq_len = keys;
  const auto attention = causal ? paged_attention : unmasked_paged_attention;
  attention(ctx, q, {one_block(k), one_block(v)}, metadata, scale, out, lse);
}

}  // namespace

void causal_attention_of_last(const OpContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                              double scale, const Tensor& out, const Tensor& lse) {
  LADDER_CHECK(q.dim(0) >= 1 && q.dim(0) <= k.dim(0), "the last {} of {} keys' queries", q.dim(0), k.dim(0));
  attend(ctx, q, k, v, true, scale, out, lse);
}

void unmasked_attention(const OpContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                        const Tensor& out, const Tensor& lse) {
  attend(ctx, q, k, v, false, scale, out, lse);
}

}  // namespace ladder
