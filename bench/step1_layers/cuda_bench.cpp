// The CUDA ladders at the sizes that decide: the weights of qwen3-0.6b and qwen3-8b at few rows, square
// products, attention of decode batches and prompts, sampling over 151,936 words.
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "bench/support/bench_cuda.h"
#include "step1_layers/sampling/draw/draw.h"

namespace ladder::bench {
namespace {

constexpr DType kType = DType::bf16;
constexpr int64_t kVocab = 151936;

void products() {
  struct Weight {
    const char* name;
    int64_t n, k;
  };
  auto problem = [](const Weight& w, int64_t m) {
    const int64_t n = w.n, k = w.k;
    const DType out = n > 100000 ? DType::f32 : kType;
    return BenchProblem<MatmulArgs>{
        .name = fmt::format("{}/m:{}", w.name, m),
        .dtype = kType,
        .bytes = static_cast<double>((m * k + n * k) * 2 + m * n * dtype_size(out)),
        .flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
        .make = [=] {
          return MatmulArgs{random_tensor({m, k}, kType), random_tensor({n, k}, kType), Tensor(),
                            Tensor::zeros({m, n}, out)};
        }};
  };
  std::vector<BenchProblem<MatmulArgs>> problems;
  for (const Weight& w : {Weight{"8b_gate_up", 24576, 4096},
                          {"8b_down", 4096, 12288},
                          {"8b_qkv", 6144, 4096},
                          {"8b_o", 4096, 4096},
                          {"8b_kv_of_4", 512, 4096},  // one of four ranks' keys and values
                          {"0.6b_gate_up", 6144, 1024},
                          {"0.6b_down", 1024, 3072},
                          {"0.6b_o", 1024, 2048},
                          {"0.6b_qkv", 4096, 1024},
                          {"0.6b_lm_head", kVocab, 1024}})
    for (int64_t m : {1, 2, 4, 8, 16, 32, 64}) problems.push_back(problem(w, m));
  for (int64_t m : {512, 8192}) problems.push_back(problem({"8b_qkv", 6144, 4096}, m));
  problems.push_back(problem({"square", 8192, 8192}, 8192));
  register_cuda_ladder("matmul", matmul_variants(), problems);
}

void attention() {
  struct Batch {
    std::string name;
    std::vector<int64_t> lengths;
    int64_t query_len;  // 0: whole sequences
    int64_t block_size;
    bool in_order = false;  // the blocks of a sequence follow one another, as in a contiguous cache
    int64_t heads = 32;
  };
  auto same = [](int64_t count, int64_t length) {
    return std::vector<int64_t>(static_cast<size_t>(count), length);
  };
  std::vector<int64_t> skewed = same(63, 512);
  skewed.push_back(65536);
  std::vector<Batch> batches{{"decode/32x4k", same(32, 4096), 1, 16},
                             {"decode/8x16k", same(8, 16384), 1, 16},
                             {"decode/1x128", same(1, 128), 1, 16},
                             {"decode/1x1k", same(1, 1024), 1, 16},
                             {"decode/1x4k", same(1, 4096), 1, 16},
                             {"decode/1x16k", same(1, 16384), 1, 16},
                             {"decode/8x512", same(8, 512), 1, 16},
                             {"decode/8x1k", same(8, 1024), 1, 16},
                             {"decode/64x1k", same(64, 1024), 1, 16},
                             {"decode/256x512", same(256, 512), 1, 16},
                             {"decode/32x4k/page:256", same(32, 4096), 1, 256},
                             {"decode/skewed", skewed, 1, 16},
                             {"decode/balanced", same(64, 1528), 1, 16}};
  for (int64_t length : {2048, 4096, 8192, 16384})
    for (bool in_order : {false, true})
      batches.push_back(
          {fmt::format("prefill/{}{}", length, in_order ? "/in_order" : ""), {length}, 0, 16, in_order});
  batches.push_back({"chunk/512_of_16k", {16384}, 512, 16});
  for (int64_t length : {128, 1024, 4096})
    batches.push_back({fmt::format("decode/0.6b/1x{}", length), {length}, 1, 16, false, 16});

  const int64_t kv_heads = 8, dim = 128;
  std::vector<BenchProblem<PagedAttentionArgs>> problems;
  for (const Batch& batch : batches) {
    const int64_t heads = batch.heads;
    double pairs = 0, keys = 0;
    int64_t rows = 0, blocks = 0, max_blocks = 0, longest = 0;
    for (int64_t length : batch.lengths) {
      const int64_t query_len = batch.query_len == 0 ? length : batch.query_len;
      const auto first = static_cast<double>(length - query_len), count = static_cast<double>(query_len);
      pairs += count * first + count * (count + 1) / 2;
      keys += static_cast<double>(length);
      rows += query_len;
      blocks += (length + batch.block_size - 1) / batch.block_size;
      max_blocks = std::max(max_blocks, (length + batch.block_size - 1) / batch.block_size);
      longest = std::max(longest, length);
    }
    problems.push_back(
        {.name = batch.name,
         .dtype = kType,
         .bytes = 2.0 * keys * kv_heads * dim * 2 + 4.0 * static_cast<double>(rows * heads * dim),
         .flops = 4.0 * pairs * heads * dim,
         .make = [=] {
           std::vector<int32_t> starts{0}, lens, tables;
           int64_t next = 0;
           for (int64_t length : batch.lengths) {
             const int64_t query_len = batch.query_len == 0 ? length : batch.query_len;
             starts.push_back(starts.back() + static_cast<int32_t>(query_len));
             lens.push_back(static_cast<int32_t>(length));
             // Blocks of all sequences interleaved, as they are given out while sequences grow together.
             const int64_t used = (length + batch.block_size - 1) / batch.block_size;
             for (int64_t b = 0; b < max_blocks; ++b)
               tables.push_back(b < used ? static_cast<int32_t>(next++ * (batch.in_order ? 1 : 7919) % blocks)
                                         : -1);
           }
           const auto seqs = static_cast<int64_t>(lens.size());
           AttentionMetadata metadata;
           metadata.query_start_loc = Tensor::from<int32_t>(starts, {seqs + 1});
           metadata.seq_lens = Tensor::from<int32_t>(lens, {seqs});
           metadata.block_tables = Tensor::from<int32_t>(tables, {seqs, max_blocks});
           metadata.num_seqs = seqs;
           metadata.num_tokens = rows;
           metadata.max_query_len = batch.query_len == 0 ? longest : batch.query_len;
           metadata.max_seq_len = longest;
           return PagedAttentionArgs{random_tensor({rows, heads, dim}, kType),
                                     {random_tensor({blocks, batch.block_size, kv_heads, dim}, kType),
                                      random_tensor({blocks, batch.block_size, kv_heads, dim}, kType, 2)},
                                     metadata,
                                     1 / std::sqrt(static_cast<double>(dim)),
                                     Tensor::zeros({rows, heads, dim}, kType),
                                     Tensor()};
         }});
  }
  register_cuda_ladder("paged_attention", paged_attention_variants(), problems);
}

void sampling() {
  for (int64_t rows : {int64_t{1}, int64_t{128}}) {
    const std::string name = fmt::format("rows:{}", rows);
    const double bytes = 4.0 * static_cast<double>(rows * kVocab);
    auto logits = [=] {  // a sum of four uniforms, near to normal
      Tensor x = random_tensor({rows, kVocab}, DType::f32);
      for (uint64_t seed = 2; seed <= 4; ++seed) {
        const Tensor more = random_tensor({rows, kVocab}, DType::f32, seed);
        for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] += more.data<float>()[i];
      }
      for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] *= 2.0f;
      return x;
    };
    auto filled = [=](float value) {
      Tensor t = Tensor::empty({rows}, DType::f32);
      std::fill_n(t.data<float>(), rows, value);
      return t;
    };
    // A logit is read, or written, so many times, and so many operations are done on it.
    auto add = [&]<class Args>(const char* op, std::span<const Variant<Args>> table, double passes,
                               double operations, std::function<Args()> make,
                               Tensor (*overwritten)(const Args&) = {}, const std::string& what = "") {
      register_cuda_ladder<Args>(op, table,
                                 {{.name = what + name,
                                   .dtype = DType::f32,
                                   .bytes = passes * bytes,
                                   .operations = operations * bytes / 4,
                                   .make = std::move(make),
                                   .overwritten = overwritten}});
    };
    add.operator()<ArgmaxArgs>("argmax", argmax_variants(), 1, 1, [=] {
      return ArgmaxArgs{logits(), Tensor::zeros({rows}, DType::i32)};
    });
    add.operator()<SampleArgs>("sample", sample_variants(), 1, 3, [=] {
      Tensor seeds = Tensor::zeros({rows}, DType::i64);
      std::iota(seeds.data<int64_t>(), seeds.data<int64_t>() + rows, 1);
      return SampleArgs{logits(), filled(1.0f), seeds, Tensor::zeros({rows}, DType::i64),
                        Tensor::zeros({rows}, DType::i32)};
    });
    const auto softmax_args = [=] {
      return SoftmaxArgs{logits(), Tensor::zeros({rows, kVocab}, DType::f32)};
    };
    add.operator()<SoftmaxArgs>("softmax", softmax_variants(), 2, 4, softmax_args);
    add.operator()<SoftmaxArgs>("log_softmax", log_softmax_variants(), 2, 4, softmax_args);
    add.operator()<TopLogprobsArgs>(
        "top_logprobs", top_logprobs_variants(), 1, 4,
        [=] {
          Tensor chosen = Tensor::empty({rows}, DType::i32);
          std::iota(chosen.data<int32_t>(), chosen.data<int32_t>() + rows, 1000);
          return TopLogprobsArgs{logits(), chosen, Tensor::zeros({rows}, DType::f32),
                                 Tensor::zeros({rows, 20}, DType::i32),
                                 Tensor::zeros({rows, 20}, DType::f32)};
        },
        {}, "k:20/");
    // 2048 tokens that a row has used once or twice: an id, a count, a logit read and written.
    constexpr int64_t kUsed = 2048;
    register_cuda_ladder<ApplyPenaltiesArgs>(
        "apply_penalties", apply_penalties_variants(),
        {{.name = fmt::format("used:{}/{}", kUsed, name),
          .dtype = DType::f32,
          .bytes = 16.0 * static_cast<double>(rows * kUsed),
          .operations = 4.0 * static_cast<double>(rows * kUsed),
          .make = [=] {
            Tensor starts = Tensor::empty({rows + 1}, DType::i32),
                   ids = Tensor::empty({rows * kUsed}, DType::i32),
                   counts = Tensor::empty({rows * kUsed}, DType::i32);
            for (int64_t row = 0; row <= rows; ++row)
              starts.at<int32_t>({row}) = static_cast<int32_t>(row * kUsed);
            for (int64_t i = 0; i < rows * kUsed; ++i) {
              ids.data<int32_t>()[i] = static_cast<int32_t>(i * 7919 % kVocab);
              counts.data<int32_t>()[i] = static_cast<int32_t>(1 + i % 2);
            }
            return ApplyPenaltiesArgs{logits(),     starts,       ids,         counts,
                                      filled(1.1f), filled(0.1f), filled(0.1f)};
          }}});
    // 300 biases: an id and a bias, a logit read and written.
    constexpr int64_t kBiased = 300;
    register_cuda_ladder<ApplyLogitBiasArgs>(
        "apply_logit_bias", apply_logit_bias_variants(),
        {{.name = fmt::format("biased:{}/{}", kBiased, name),
          .dtype = DType::f32,
          .bytes = 16.0 * static_cast<double>(rows * kBiased),
          .operations = static_cast<double>(rows * kBiased),
          .make = [=] {
            Tensor starts = Tensor::empty({rows + 1}, DType::i32),
                   ids = Tensor::empty({rows * kBiased}, DType::i32),
                   biases = Tensor::empty({rows * kBiased}, DType::f32);
            for (int64_t row = 0; row <= rows; ++row)
              starts.at<int32_t>({row}) = static_cast<int32_t>(row * kBiased);
            for (int64_t i = 0; i < rows * kBiased; ++i) {
              ids.data<int32_t>()[i] = static_cast<int32_t>(i * 7919 % kVocab);
              biases.data<float>()[i] = 1e-3f;
            }
            return ApplyLogitBiasArgs{logits(), starts, ids, biases};
          }}});
    // A mask per row that allows one token in a thousand: nearly every logit is written, none is read.
    add.operator()<ApplyTokenBitmaskArgs>("apply_token_bitmask", apply_token_bitmask_variants(), 1, 0, [=] {
      Tensor index = Tensor::empty({rows}, DType::i32),
             masks = Tensor::zeros({rows, bitmask_words(kVocab)}, DType::i32);
      std::iota(index.data<int32_t>(), index.data<int32_t>() + rows, 0);
      for (int64_t i = 0; i < masks.numel(); i += 31) masks.data<int32_t>()[i] = 1 << i % 31;
      return ApplyTokenBitmaskArgs{logits(), index, masks};
    });
    auto whole = [=](int32_t value) {
      Tensor t = Tensor::empty({rows}, DType::i32);
      std::fill_n(t.data<int32_t>(), rows, value);
      return t;
    };
    auto filtered = [](const LogitsFilterArgs& args) { return args.logits; };
    add.operator()<LogitsFilterArgs>(
        "apply_temperature", apply_temperature_variants(), 2, 1,
        [=] {
          return LogitsFilterArgs{logits(), filled(0.7f)};
        },
        filtered);
    add.operator()<LogitsFilterArgs>(
        "mask_min_p", mask_min_p_variants(), 2, 2,
        [=] {
          return LogitsFilterArgs{logits(), filled(0.05f)};
        },
        filtered);
    add.operator()<LogitsFilterArgs>(
        "mask_top_p", mask_top_p_variants(), 2, 4,
        [=] {
          return LogitsFilterArgs{logits(), filled(0.95f)};
        },
        filtered);
    add.operator()<LogitsFilterArgs>(
        "mask_top_k", mask_top_k_variants(), 2, 1,
        [=] {
          return LogitsFilterArgs{logits(), whole(50)};
        },
        filtered);
    // What a request asks for, in one call. One pass over the logits is the least that it takes.
    auto draw_args = [=](float temperature) {
      Tensor seeds = Tensor::zeros({rows}, DType::i64);
      std::iota(seeds.data<int64_t>(), seeds.data<int64_t>() + rows, 1);
      DrawArgs args;
      args.logits = logits();
      args.temperature = filled(temperature);
      args.seeds = seeds;
      args.output_index = Tensor::zeros({rows}, DType::i64);
      args.ids = Tensor::zeros({rows}, DType::i32);
      return args;
    };
    add.operator()<DrawArgs>(
        "draw", draw_variants(), 1, 3, [=] { return draw_args(1.0f); }, {}, "plain/");
    add.operator()<DrawArgs>(
        "draw", draw_variants(), 1, 3,
        [=] {
          DrawArgs args = draw_args(0.8f);
          args.top_k = whole(50);
          args.top_p = filled(0.95f);
          return args;
        },
        [](const DrawArgs& args) { return args.logits; }, "top_k_top_p/");
  }
}

const bool kRegistered = [] {
  products();
  attention();
  sampling();
  return true;
}();

}  // namespace
}  // namespace ladder::bench
