#include <algorithm>

#include "step1_layers/attention/attention_cpu.h"
#include "step1_layers/attention/kv_codes.h"

namespace ladder {

// Everything in f32, as codes are no less exact than that: the keys and values that the step's sequences read, one block per
// sequence, then attention over a cache without codes.
void paged_attention_values_of_codes(const OpContext& ctx, const PagedAttentionArgs& args) {
  const KvCacheView& cache = args.cache;
  const AttentionMetadata& metadata = args.metadata;
  const int32_t* seq_lens = metadata.seq_lens.data<int32_t>();
  const int64_t heads = cache.k.dim(2), block_size = cache.block_size();
  const int64_t rows = metadata.num_tokens, k_dim = args.q.dim(2), v_dim = args.out.dim(2);
  const int64_t longest = std::max<int64_t>(metadata.max_seq_len, 1);

  ArenaScope scope(*ctx.arena);
  PagedAttentionArgs plain = args;
  plain.q = ctx.arena->take({rows, args.q.dim(1), k_dim}, DType::f32);
  plain.out = ctx.arena->take({rows, args.q.dim(1), v_dim}, DType::f32);
  plain.cache = {.k = ctx.arena->take({metadata.num_seqs, longest, heads, k_dim}, DType::f32),
                 .v = ctx.arena->take({metadata.num_seqs, longest, heads, v_dim}, DType::f32),
                 .kept_as = KvCacheDType::automatic,
                 .k_scales = {},
                 .v_scales = {}};
  plain.metadata.block_tables = ctx.arena->take({metadata.num_seqs, 1}, DType::i32);
  const auto write = [&](const Tensor& codes, const Tensor& scales, int64_t block, int64_t offset,
                         int64_t head, const Tensor& to, int64_t seq, int64_t position) {
    dequantize_kv(
        cache.kept_as,
        codes.data<uint8_t>() + block * codes.stride(0) + offset * codes.stride(1) + head * codes.stride(2),
        scales.data<float>() + block * scales.stride(0) + offset * scales.stride(1) + head * scales.stride(2),
        to.dim(3), to.data<float>() + ((seq * longest + position) * heads + head) * to.dim(3));
  };
  for (int64_t seq = 0; seq < metadata.num_seqs; ++seq) {
    plain.metadata.block_tables.data<int32_t>()[seq] = static_cast<int32_t>(seq);
    const int32_t* table = metadata.block_tables.data<int32_t>() + seq * metadata.block_tables.stride(0);
    for (int64_t position = 0; position < seq_lens[seq]; ++position)
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t block = table[position / block_size], offset = position % block_size;
        write(cache.k, cache.k_scales, block, offset, head, plain.cache.k, seq, position);
        write(cache.v, cache.v_scales, block, offset, head, plain.cache.v, seq, position);
      }
  }
  with_float_type(args.q.dtype(), "paged_attention", [&](auto tag) {
    using T = decltype(tag);
    const auto for_each_number = [&](const Tensor& one, const Tensor& other, auto&& fn) {
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t head = 0; head < one.dim(1); ++head)
          for (int64_t i = 0; i < one.dim(2); ++i)
            fn(one.data<T>()[row * one.stride(0) + head * one.stride(1) + i],
               other.data<float>()[(row * one.dim(1) + head) * one.dim(2) + i]);
    };
    for_each_number(args.q, plain.q, [](const T& from, float& to) { to = static_cast<float>(from); });
    paged_attention_loop(ctx, plain);
    for_each_number(args.out, plain.out, [](T& to, const float& from) { to = T(from); });
  });
}

}  // namespace ladder
