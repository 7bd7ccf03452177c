// The table of paged_attention.h and its checks.
#include "step1_layers/attention/paged_attention.h"

#include <algorithm>
#include <iterator>

#include "step1_layers/attention/attention_cpu.h"
#include "step1_layers/attention/attention_fast.h"
#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/attention/paged_attention_of_codes.h"
#include "step1_layers/core/simd_rungs.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/attention/paged_attention_cuda.h"
#endif

namespace ladder {

namespace {

template <template <class> class Kernels>
void paged_attention_fast(const OpContext& ctx, const PagedAttentionArgs& args) {
  const Tensor &q = args.q, &k = args.cache.k, &v = args.cache.v, &out = args.out, &lse = args.lse;
  const AttentionMetadata& metadata = args.metadata;
  const int64_t kv_heads = k.dim(2), group = q.dim(1) / kv_heads;
  const int32_t* starts = metadata.query_start_loc.data<int32_t>();
  const int32_t* seq_lens = metadata.seq_lens.data<int32_t>();
  with_float_type(q.dtype(), "paged_attention", [&](auto tag) {
    using T = decltype(tag);
    AttentionWork<T> work{};
    work.q_token_stride = q.stride(0);
    work.q_head_stride = q.stride(1);
    work.group = group;
    work.kept_as = args.cache.kept_as;
    if (work.kept_as == KvCacheDType::automatic) {
      work.k = k.data<T>();
      work.v = v.data<T>();
    } else {
      work.k_codes = k.data<uint8_t>();
      work.v_codes = v.data<uint8_t>();
      work.k_scales = args.cache.k_scales.data<float>();
      work.v_scales = args.cache.v_scales.data<float>();
      work.scales_block_stride = args.cache.k_scales.stride(0);
      work.scales_slot_stride = args.cache.k_scales.stride(1);
    }
    work.k_block_stride = k.stride(0);
    work.k_slot_stride = k.stride(1);
    work.v_block_stride = v.stride(0);
    work.v_slot_stride = v.stride(1);
    work.block_size = args.cache.block_size();
    work.more_keys = args.causal ? 1 : 0;
    work.k_dim = q.dim(2);
    work.v_dim = out.dim(2);
    work.scale = static_cast<float>(args.scale);
    work.out_token_stride = out.stride(0);
    work.out_head_stride = out.stride(1);
    work.lse_token_stride = lse.defined() ? lse.stride(0) : 0;
    work.lse_head_stride = lse.defined() ? lse.stride(1) : 0;
    auto for_each_sequence = [&](auto&& fn) {
      AttentionWork<T> sequence = work;
      for (int64_t seq = 0; seq < metadata.num_seqs; ++seq) {
        const int64_t first = starts[seq];
        sequence.tokens = starts[seq + 1] - first;
        if (sequence.tokens == 0) continue;
        sequence.first_position = seq_lens[seq] - (args.causal ? sequence.tokens : 1);
        sequence.q = q.data<T>() + first * q.stride(0);
        sequence.out = out.data<T>() + first * out.stride(0);
        sequence.lse = lse.defined() ? lse.data<float>() + first * lse.stride(0) : nullptr;
        sequence.block_table = metadata.block_tables.data<int32_t>() + seq * metadata.block_tables.stride(0);
        fn(sequence);
      }
    };
    detail::attend_all<Kernels, T>(ctx, kv_heads, group, work.k_dim, work.v_dim, k.stride(2), v.stride(2),
                                   work.kept_as != KvCacheDType::automatic, for_each_sequence);
  });
}

void paged_attention_plain(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.cache.kept_as == KvCacheDType::automatic) return paged_attention_loop(ctx, args);
  paged_attention_values_of_codes(ctx, args);
}

constexpr Variant<PagedAttentionArgs> kVariants[] = {
    {.name = "loop",
     .idea = "all scores of a row, then their softmax, then the mix of values; sums in double",
     .run = paged_attention_plain},
    LADDER_SIMD_RUNGS(
        paged_attention_fast, AttentionKernels,
        "tiles of 64 keys, online softmax, all rows that read a tile share it; split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "naive",
     .device = DeviceType::cuda,
     .idea = "a block per query row and head, a key per warp",
     .supports = paged_attention_takes_naive,
     .run = paged_attention_cuda_naive},
    {.name = "tiled",
     .device = DeviceType::cuda,
     .idea = "up to 64 query rows share tiles of 64 keys in shared memory; online softmax, sums in registers",
     .supports = paged_attention_takes_tiled,
     .run = paged_attention_cuda_tiled},
    {.name = "tensor_core",
     .device = DeviceType::cuda,
     .idea = "128 query rows share tiles of 64 keys; both products on mma, scores stay in registers",
     .min_arch = 80,
     .supports = paged_attention_takes_tensor_core,
     .run = paged_attention_cuda_tensor_core},
    {.name = "wgmma",
     .device = DeviceType::cuda,
     .idea = "Hopper: products run from shared memory beside the softmax; one warpgroup only copies",
     .min_arch = 90,
     .supports = paged_attention_takes_wgmma,
     .run = paged_attention_cuda_wgmma},
    {.name = "grouped",
     .device = DeviceType::cuda,
     .idea = "decode: the query heads of a group in one mma tile, keys straight from memory, read once",
     .min_arch = 80,
     .batch_invariant = false,  // serves batches of single rows only
     .supports = paged_attention_takes_grouped,
     .run = paged_attention_cuda_grouped},
    {.name = "split",
     .device = DeviceType::cuda,
     .idea =
         "decode: keys copied ahead of the sums, long sequences cut into equal parts; prompts on their own kernel",
     .min_arch = 80,
     .batch_invariant = false,  // cuts keys, of prompts too, by what else is in the batch
     .supports = paged_attention_takes_split,
     .run = paged_attention_cuda_split},
    {.name = "cluster",
     .device = DeviceType::cuda,
     .idea = "decode of few sequences: a cluster of blocks for each, merged through its shared memory",
     .min_arch = 90,
     .batch_invariant = false,
     .supports = paged_attention_takes_cluster,
     .run = paged_attention_cuda_cluster},
#endif
};

// What the kernels will index, checked once per call: a wrong block id must not become a wild read.
void check_sequences(const KvCacheView& cache, const AttentionMetadata& metadata, bool causal) {
  const int32_t* starts = metadata.query_start_loc.data<int32_t>();
  const int32_t* seq_lens = metadata.seq_lens.data<int32_t>();
  LADDER_CHECK(starts[0] == 0 && starts[metadata.num_seqs] == metadata.num_tokens,
               "paged_attention: query_start_loc must run from 0 to {}", metadata.num_tokens);
  const int64_t block_size = cache.block_size(), num_blocks = cache.num_blocks();
  for (int64_t seq = 0; seq < metadata.num_seqs; ++seq) {
    const int64_t query_len = starts[seq + 1] - starts[seq];
    LADDER_CHECK(query_len >= 0 && seq_lens[seq] >= (causal ? query_len : 0),
                 "paged_attention: sequence {} has {} query rows and {} keys", seq, query_len, seq_lens[seq]);
    LADDER_CHECK(seq_lens[seq] <= metadata.max_seq_len,
                 "paged_attention: sequence {} has {} keys, max_seq_len is {}", seq, seq_lens[seq],
                 metadata.max_seq_len);
    const int64_t blocks = (seq_lens[seq] + block_size - 1) / block_size;
    LADDER_CHECK(blocks <= metadata.block_tables.dim(1),
                 "paged_attention: sequence {} needs {} blocks, its block table has {}", seq, blocks,
                 metadata.block_tables.dim(1));
    const int32_t* table = metadata.block_tables.data<int32_t>() + seq * metadata.block_tables.stride(0);
    for (int64_t i = 0; i < blocks; ++i)
      LADDER_CHECK(table[i] >= 0 && table[i] < num_blocks,
                   "paged_attention: sequence {} names block {} of a cache of {}", seq, table[i], num_blocks);
  }
}

}  // namespace

std::span<const Variant<PagedAttentionArgs>> paged_attention_variants() {
  return kVariants;
}

void check_paged_attention(const OpContext& ctx, const PagedAttentionArgs& args) {
  const auto& [q, cache, metadata, scale, out, lse, causal] = args;
  expect_shape(q, {-1, -1, -1}, "paged_attention: q");
  expect_shape(out, {-1, q.dim(1), -1}, "paged_attention: out");
  expect_kv_cache(cache, q.dtype(), q.dim(2), out.dim(2), "paged_attention: cache");
  expect_dtype(out, q.dtype(), "paged_attention: out");
  LADDER_CHECK(q.dim(0) >= metadata.num_tokens && out.dim(0) >= metadata.num_tokens,
               "paged_attention: {} tokens, but q is {} and out is {}", metadata.num_tokens, q.str(),
               out.str());
  LADDER_CHECK(cache.k.dim(2) > 0 && q.dim(1) % cache.k.dim(2) == 0,
               "paged_attention: {} query heads are no multiple of {} key/value heads", q.dim(1),
               cache.k.dim(2));
  LADDER_CHECK(q.stride(2) == 1 && out.stride(2) == 1 && cache.k.stride(3) == 1 && cache.v.stride(3) == 1,
               "paged_attention: the elements of a head must be adjacent");
  if (lse.defined()) {
    expect_shape(lse, {-1, q.dim(1)}, "paged_attention: lse");
    expect_dtype(lse, DType::f32, "paged_attention: lse");
    LADDER_CHECK(lse.dim(0) >= metadata.num_tokens, "paged_attention: lse: too few rows, {}", lse.str());
  }
  LADDER_CHECK(ctx.arena != nullptr, "paged_attention needs an arena in the context");
  if (metadata.num_seqs == 0) return;
  expect_shape(metadata.query_start_loc, {metadata.num_seqs + 1}, "paged_attention: query_start_loc");
  expect_shape(metadata.seq_lens, {metadata.num_seqs}, "paged_attention: seq_lens");
  expect_shape(metadata.block_tables, {metadata.num_seqs, -1}, "paged_attention: block_tables");
  LADDER_CHECK(metadata.block_tables.dim(1) <= 1 || metadata.block_tables.stride(1) == 1,
               "paged_attention: the entries of a block table must be adjacent");
}

namespace {

void attend(const OpContext& ctx, const PagedAttentionArgs& args) {
  check_paged_attention(ctx, args);
  if (args.metadata.num_seqs == 0) return;
  if (ctx.device.is_cpu()) check_sequences(args.cache, args.metadata, args.causal);
  // The CPU takes any sizes. On a GPU a model may have heads that no kernel has room for: say its sizes.
  const bool of_codes =
      args.cache.kept_as != KvCacheDType::automatic && kernel_device(ctx.device) == DeviceType::cuda;
  const std::string_view op = of_codes ? "paged_attention_of_codes" : "paged_attention";
  const auto table = of_codes ? paged_attention_of_codes_variants() : paged_attention_variants();
  const auto serves = [&](const Variant<PagedAttentionArgs>& variant) { return can_run(variant, ctx, args); };
  LADDER_CHECK(
      ctx.device.is_cpu() || !ctx.forced_kernel(op).empty() ||
          std::any_of(table.begin(), table.end(), serves),
      "no attention kernel on {} takes heads of {} with KV blocks of {} tokens in {}: expected heads of "
      "up to 256, or --device cpu",
      device_name(ctx.device), args.q.dim(2), args.cache.block_size(), dtype_name(args.q.dtype()));
  run_variant<PagedAttentionArgs>(op, table, ctx, args);
}

}  // namespace

void paged_attention(const OpContext& ctx, const Tensor& q, const KvCacheView& cache,
                     const AttentionMetadata& metadata, double scale, const Tensor& out, const Tensor& lse) {
  attend(ctx, {q, cache, metadata, scale, out, lse});
}

void unmasked_paged_attention(const OpContext& ctx, const Tensor& q, const KvCacheView& cache,
                              const AttentionMetadata& metadata, double scale, const Tensor& out,
                              const Tensor& lse) {
  attend(ctx, {q, cache, metadata, scale, out, lse, /*causal=*/false});
}

}  // namespace ladder
