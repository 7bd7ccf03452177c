// Attention over a cache of codes (kv_codes.h) with the heads of qwen3-8b: decode batches, a chunk and a prompt, in every format.
// The bytes of a problem are those of its codes and scales.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <random>

#include "bench/support/bench_cuda.h"
#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/attention/paged_attention_of_codes.h"

namespace ladder::bench {
namespace {

constexpr DType kType = DType::bf16;
constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kBlockSize = 16;

// Codes of every kind but E4M3's NaN.
Tensor random_codes(const Shape& shape, uint32_t seed) {
  Tensor codes = Tensor::empty(shape, DType::u8);
  std::mt19937 generator(seed);
  auto* bytes = codes.data<uint8_t>();
  for (int64_t at = 0; at < codes.nbytes(); at += 4) {
    const auto four = static_cast<uint32_t>(generator()) & 0xbfbfbfbf;
    std::memcpy(bytes + at, &four, 4);
  }
  return codes;
}

struct Batch {
  std::string name;
  int64_t seqs, length, query_len;
};

BenchProblem<PagedAttentionArgs> problem(const Batch& batch, KvCacheDType kept_as) {
  const int64_t code_bytes = kv_code_bytes(kept_as, kDim), blocks_of_one = batch.length / kBlockSize;
  const int64_t blocks = batch.seqs * blocks_of_one, rows = batch.seqs * batch.query_len;
  const auto keys = static_cast<double>(batch.seqs * batch.length),
             queries = static_cast<double>(batch.query_len);
  const double pairs =
      static_cast<double>(batch.seqs) *
      (queries * static_cast<double>(batch.length - batch.query_len) + queries * (queries + 1) / 2);
  return {.name = fmt::format("{}/{}", batch.name, kv_cache_dtype_name(kept_as)),
          .dtype = kType,
          .bytes = 2 * keys * kKvHeads * static_cast<double>(kv_head_bytes(kept_as, kType, kDim)) +
                   4 * static_cast<double>(rows * kHeads * kDim),
          .flops = 4 * pairs * kHeads * kDim,
          .make = [=] {
            std::vector<int32_t> starts, lens, tables;
            for (int64_t seq = 0; seq <= batch.seqs; ++seq)
              starts.push_back(static_cast<int32_t>(seq * batch.query_len));
            for (int64_t seq = 0; seq < batch.seqs; ++seq) lens.push_back(static_cast<int32_t>(batch.length));
            // Blocks of all sequences interleaved, as they are given out while sequences grow together.
            for (int64_t i = 0; i < blocks; ++i) tables.push_back(static_cast<int32_t>(i * 7919 % blocks));
            AttentionMetadata metadata;
            metadata.query_start_loc = Tensor::from<int32_t>(starts, {batch.seqs + 1});
            metadata.seq_lens = Tensor::from<int32_t>(lens, {batch.seqs});
            metadata.block_tables = Tensor::from<int32_t>(tables, {batch.seqs, blocks_of_one});
            metadata.num_seqs = batch.seqs;
            metadata.num_tokens = rows;
            metadata.max_query_len = batch.query_len;
            metadata.max_seq_len = batch.length;
            // Where the kernels run, and the same for every set of operands.
            const auto scales = [&] {
              std::vector<float> pairs(static_cast<size_t>(blocks * kBlockSize * kKvHeads * kKvScales));
              for (size_t i = 0; i < pairs.size(); i += 2) {
                pairs[i] = 0.01f * static_cast<float>(1 + i / 2 % 7);
                pairs[i + 1] = kept_as == KvCacheDType::int4 ? -8 * pairs[i] : 0.0f;
              }
              return Tensor::from<float>(pairs, {blocks, kBlockSize, kKvHeads, kKvScales})
                  .to(cuda_bench_context()->device);
            };
            const Shape codes = {blocks, kBlockSize, kKvHeads, code_bytes};
            return PagedAttentionArgs{
                random_tensor({rows, kHeads, kDim}, kType),
                {random_codes(codes, 1), random_codes(codes, 2), kept_as, scales(), scales()},
                metadata,
                1 / std::sqrt(static_cast<double>(kDim)),
                Tensor::zeros({rows, kHeads, kDim}, kType),
                Tensor()};
          }};
}

const bool kRegistered = [] {
  std::vector<BenchProblem<PagedAttentionArgs>> problems;
  for (const Batch& batch : std::vector<Batch>{{"decode/32x4k", 32, 4096, 1},
                                               {"decode/8x16k", 8, 16384, 1},
                                               {"decode/1x128k", 1, 131072, 1},
                                               {"decode/1x4k", 1, 4096, 1},
                                               {"chunk/512_of_16k", 1, 16384, 512},
                                               {"prefill/4096", 1, 4096, 4096}})
    for (const KvCacheDType kept_as : {KvCacheDType::fp8, KvCacheDType::int8, KvCacheDType::int4})
      problems.push_back(problem(batch, kept_as));
  register_cuda_ladder<PagedAttentionArgs>("paged_attention_of_codes", paged_attention_of_codes_variants(),
                                           problems);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
