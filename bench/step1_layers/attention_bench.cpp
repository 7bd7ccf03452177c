// Paged attention with the heads of qwen3-0.6b (16 query and 8 key/value heads of 128), blocks of 16 tokens:
// a prompt, a chunk late in a prompt, one decoded token, and a batch of decoded tokens. FLOPs are those of
// the keys that the causal mask leaves; bytes are the keys and values that must be read.
#include <fmt/format.h>

#include <numeric>

#include "bench/support/bench_support.h"
#include "step1_layers/attention/paged_attention.h"

namespace ladder::bench {
namespace {

constexpr int64_t kHeads = 16, kKvHeads = 8, kHeadDim = 128, kBlockSize = 16;

struct Case {
  const char* name;
  int64_t num_seqs, query_len, seq_len;
};
constexpr Case kCases[] = {{"prefill:512", 1, 512, 512},      {"prefill:2048", 1, 2048, 2048},
                           {"chunk:256of4096", 1, 256, 4096}, {"decode:1x1024", 1, 1, 1024},
                           {"decode:1x8192", 1, 1, 8192},     {"decode:32x1024", 32, 1, 1024}};

PagedAttentionArgs operands(const Case& one, DType dtype) {
  const int64_t blocks = (one.seq_len + kBlockSize - 1) / kBlockSize, rows = one.num_seqs * one.query_len;
  PagedAttentionArgs args;
  const Shape cache_shape{one.num_seqs * blocks, kBlockSize, kKvHeads, kHeadDim};
  args.q = random_tensor({rows, kHeads, kHeadDim}, dtype);
  args.cache = {random_tensor(cache_shape, dtype, 2), random_tensor(cache_shape, dtype, 3)};
  args.out = Tensor::zeros({rows, kHeads, kHeadDim}, dtype);
  args.scale = 0.088;
  AttentionMetadata& metadata = args.metadata;
  metadata.num_seqs = one.num_seqs;
  metadata.num_tokens = rows;
  metadata.max_query_len = one.query_len;
  metadata.max_seq_len = one.seq_len;
  metadata.query_start_loc = Tensor::empty({one.num_seqs + 1}, DType::i32);
  metadata.seq_lens = Tensor::empty({one.num_seqs}, DType::i32);
  metadata.block_tables = Tensor::empty({one.num_seqs, blocks}, DType::i32);
  for (int64_t seq = 0; seq <= one.num_seqs; ++seq)
    metadata.query_start_loc.data<int32_t>()[seq] = static_cast<int32_t>(seq * one.query_len);
  std::fill_n(metadata.seq_lens.data<int32_t>(), one.num_seqs, static_cast<int32_t>(one.seq_len));
  // Blocks in an order as after many allocations: a stride that is coprime to their number.
  const int64_t total = one.num_seqs * blocks;
  int64_t stride = 7919 % total | 1;
  while (std::gcd(stride, total) != 1) stride += 2;
  for (int64_t i = 0; i < total; ++i)
    metadata.block_tables.data<int32_t>()[i] = static_cast<int32_t>(i * stride % total);
  return args;
}

const bool kRegistered = [] {
  std::vector<BenchProblem<PagedAttentionArgs>> problems;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Case& one : kCases) {
      BenchProblem<PagedAttentionArgs> problem;
      problem.name = fmt::format("{}/{}", one.name, dtype_name(dtype));
      problem.dtype = dtype;
      const auto rows = static_cast<double>(one.num_seqs * one.query_len);
      const double keys_per_row =
          static_cast<double>(one.seq_len) - static_cast<double>(one.query_len - 1) / 2;
      problem.flops = 4.0 * kHeadDim * kHeads * rows * keys_per_row;
      problem.bytes =
          static_cast<double>(one.num_seqs * one.seq_len * kKvHeads * 2 * kHeadDim * dtype_size(dtype)) +
          rows * kHeads * 2 * kHeadDim * static_cast<double>(dtype_size(dtype));
      problem.make = [one, dtype] { return operands(one, dtype); };
      problems.push_back(std::move(problem));
    }
  register_ladder("paged_attention", paged_attention_variants(), problems);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
