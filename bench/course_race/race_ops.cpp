#include "bench/course_race/race_ops.h"

#include <algorithm>
#include <cmath>

#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/attention/attention.h"
#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/norm/rms_norm.h"
#include "step1_layers/rotary/rope.h"
#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/sample.h"
#include "step1_layers/sampling/softmax.h"

namespace ladder::course {
namespace {

using enum Piece::Use;
constexpr int64_t kPage = 4096;

template <class Args>
void run_rung(std::string_view op, std::span<const Variant<Args>> table, const OpContext& ctx,
              std::string_view rung, const Args& args) {
  for (const Variant<Args>& variant : table)
    if (variant.name == rung && can_run(variant, ctx, args)) return variant.run(ctx, args);
  fail("{} has no rung {} that can run here", op, rung);
}

// In [-scale, scale), quickly: Knuth's MMIX generator.
void fill_floats(Random& random, const Tensor& tensor, float scale = 1.0f) {
  uint64_t state = random();
  float* data = tensor.data<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<float>(static_cast<int64_t>(state) >> 40) * 0x1p-23f * scale;
  }
}

void fill_all(Random& random, const RaceOp& op, const Tensors& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i)
    if (op.pieces[i].use != output) fill_floats(random, tensors[i]);
}

double size(const RaceOp& op) {
  double bytes = 0;
  for (const Piece& piece : op.pieces)
    bytes += static_cast<double>(piece.shape.numel() * dtype_size(piece.dtype)) * (piece.use == both ? 2 : 1);
  return bytes;
}

// An operator of floats, whose tensors take any values.
template <class Args, class Make>
RaceOp plain(std::string name, std::span<const Variant<Args>> (*table)(), std::vector<Piece> pieces,
             double flops, Make make) {
  RaceOp op{std::move(name), std::move(pieces), 0, flops, {}, {}};
  op.bytes = size(op);
  op.fill = [pieces = op.pieces](Random& random, const Tensors& tensors) {
    fill_all(random, RaceOp{{}, pieces, 0, 0, {}, {}}, tensors);
  };
  op.run = [table, make, name = op.name](const OpContext& ctx, std::string_view rung,
                                         const Tensors& tensors) {
    run_rung<Args>(name, table(), ctx, rung, make(tensors));
  };
  return op;
}

RaceOp matmul_op(std::string name, int64_t m, int64_t n, int64_t k) {
  return plain<MatmulArgs>(std::move(name), matmul_variants,
                           {{input, {m, k}}, {input, {n, k}}, {output, {m, n}}},
                           2.0 * static_cast<double>(m * n * k), [](const Tensors& t) {
                             return MatmulArgs{t[0], t[1], Tensor(), t[2]};
                           });
}

RaceOp rotary_op() {
  constexpr int64_t kTokens = 512, kHeads = 16, kKvHeads = 4, kDim = 128, kLength = 2048;
  RaceOp op{"rotary_embedding",
            {{both, {kTokens, kHeads, kDim}},
             {both, {kTokens, kKvHeads, kDim}},
             {input, {kTokens}, DType::i32},
             {input, {kLength, kDim}}},
            0,
            0,
            {},
            {}};
  op.bytes = 2.0 * kTokens * (kHeads + kKvHeads) * kDim * 4;
  op.fill = [](Random& random, const Tensors& t) {
    fill_floats(random, t[0]);
    fill_floats(random, t[1]);
    for (int64_t i = 0; i < kTokens; ++i)
      t[2].data<int32_t>()[i] = static_cast<int32_t>(random() % static_cast<uint64_t>(kLength));
    fill_floats(random, t[3]);  // any numbers will do for cosines and sines
  };
  op.run = [](const OpContext& ctx, std::string_view rung, const Tensors& t) {
    run_rung<RotaryEmbeddingArgs>("rotary_embedding", rotary_embedding_variants(), ctx, rung,
                                  {t[2], t[0], t[1], t[3]});
  };
  return op;
}

// Decodes and a chunk of a prompt in one batch.
RaceOp paged_attention_op() {
  constexpr int64_t kSeqs = 6, kHeads = 8, kKvHeads = 2, kDim = 64, kBlock = 16, kBlocksEach = 24, kRows = 37;
  constexpr int64_t kBlocks = kSeqs * kBlocksEach;
  RaceOp op{"paged_attention",
            {{input, {kRows, kHeads, kDim}},
             {input, {kBlocks, kBlock, kKvHeads, kDim}},
             {input, {kBlocks, kBlock, kKvHeads, kDim}},
             {input, {kSeqs + 1}, DType::i32},
             {input, {kSeqs}, DType::i32},
             {input, {kSeqs, kBlocksEach}, DType::i32},
             {output, {kRows, kHeads, kDim}}},
            0,
            0,
            {},
            {}};
  // Sequences of at least 300 keys; the last has 32 rows, the others one each.
  op.bytes = 4.0 * (2.0 * kRows * kHeads * kDim + 2.0 * kSeqs * 300 * kKvHeads * kDim);
  op.flops = 4.0 * kRows * 268 * kHeads * kDim;
  op.fill = [](Random& random, const Tensors& t) {
    for (const size_t i : {0, 1, 2}) fill_floats(random, t[i]);
    std::vector<int32_t> blocks(kBlocks);
    for (int32_t i = 0; i < kBlocks; ++i) blocks[static_cast<size_t>(i)] = i;
    std::shuffle(blocks.begin(), blocks.end(), random);
    std::copy(blocks.begin(), blocks.end(), t[5].data<int32_t>());
    for (int64_t s = 0; s < kSeqs; ++s) {
      t[3].data<int32_t>()[s] = static_cast<int32_t>(s);
      t[4].data<int32_t>()[s] = static_cast<int32_t>(300 + random() % (kBlock * kBlocksEach - 300));
    }
    t[3].data<int32_t>()[kSeqs] = kRows;
  };
  op.run = [](const OpContext& ctx, std::string_view rung, const Tensors& t) {
    AttentionMetadata m;
    m.query_start_loc = t[3];
    m.seq_lens = t[4];
    m.block_tables = t[5];
    m.num_seqs = kSeqs;
    m.num_tokens = kRows;
    m.max_query_len = kRows - kSeqs + 1;
    m.max_seq_len = kBlock * kBlocksEach;
    run_rung<PagedAttentionArgs>("paged_attention", paged_attention_variants(), ctx, rung,
                                 {t[0], {t[1], t[2]}, m, 0.125, t[6], Tensor()});
  };
  return op;
}

RaceOp filter_op(std::string name, std::span<const Variant<LogitsFilterArgs>> (*table)(), bool top_k) {
  const int64_t rows = top_k ? 8 : 2, vocab = 32000;
  RaceOp op{name,
            {{both, {rows, vocab}}, {input, {rows}, top_k ? DType::i32 : DType::f32}},
            8.0 * static_cast<double>(rows * vocab),
            0,
            {},
            {}};
  op.fill = [top_k, rows](Random& random, const Tensors& t) {
    fill_floats(random, t[0], 12.0f);
    for (int64_t row = 0; row < rows; ++row)
      if (top_k)
        t[1].data<int32_t>()[row] = static_cast<int32_t>(5 + random() % 200);
      else
        t[1].data<float>()[row] = 0.5f + 0.4f * static_cast<float>(random() % 1000) / 1000.0f;
  };
  op.run = [name, table](const OpContext& ctx, std::string_view rung, const Tensors& t) {
    run_rung<LogitsFilterArgs>(name, table(), ctx, rung, {t[0], t[1]});
  };
  return op;
}

RaceOp sample_op() {
  constexpr int64_t kRows = 8, kVocab = 16000;
  RaceOp op{"sample",
            {{input, {kRows, kVocab}},
             {input, {kRows}},
             {input, {kRows}, DType::i64},
             {input, {kRows}, DType::i64},
             {output, {kRows}, DType::i32}},
            4.0 * kRows * kVocab,
            0,
            {},
            {}};
  op.fill = [](Random& random, const Tensors& t) {
    fill_floats(random, t[0], 8.0f);
    for (int64_t row = 0; row < kRows; ++row) {
      t[1].data<float>()[row] = 1.0f;
      t[2].data<int64_t>()[row] = static_cast<int64_t>(random() >> 1);
      t[3].data<int64_t>()[row] = static_cast<int64_t>(random() % 1000);
    }
  };
  op.run = [](const OpContext& ctx, std::string_view rung, const Tensors& t) {
    run_rung<SampleArgs>("sample", sample_variants(), ctx, rung, {t[0], t[1], t[2], t[3], t[4]});
  };
  return op;
}

const std::vector<RaceOp>& ops() {
  static const std::vector<RaceOp> kOps = {
      plain<SiluAndMulArgs>("silu_and_mul", silu_and_mul_variants,
                            {{input, {384, 6144}}, {output, {384, 3072}}}, 0,
                            [](const Tensors& t) {
                              return SiluAndMulArgs{t[0], t[1]};
                            }),
      plain<GeluArgs>("gelu", gelu_variants, {{input, {384, 3072}}, {output, {384, 3072}}}, 0,
                      [](const Tensors& t) {
                        return GeluArgs{t[0], t[1], GeluKind::tanh};
                      }),
      plain<RmsNormArgs>("rms_norm", rms_norm_variants,
                         {{input, {640, 2048}}, {input, {2048}}, {output, {640, 2048}}}, 0,
                         [](const Tensors& t) {
                           return RmsNormArgs{t[0], t[1], 1e-6, t[2]};
                         }),
      plain<FusedAddRmsNormArgs>(
          "fused_add_rms_norm", fused_add_rms_norm_variants,
          {{input, {512, 2048}}, {both, {512, 2048}}, {input, {2048}}, {output, {512, 2048}}}, 0,
          [](const Tensors& t) {
            return FusedAddRmsNormArgs{t[0], t[1], t[2], 1e-6, t[3]};
          }),
      matmul_op("matmul", 32, 768, 768),
      rotary_op(),
      paged_attention_op(),
      plain<CausalAttentionArgs>(
          "causal_attention", causal_attention_variants,
          {{input, {128, 8, 64}}, {input, {256, 2, 64}}, {input, {256, 2, 64}}, {output, {128, 8, 64}}},
          4.0 * 128 * 128 * 8 * 64,
          [](const Tensors& t) {
            return CausalAttentionArgs{t[0], t[1], t[2], 0.125, t[3]};
          }),
      plain<SoftmaxArgs>("softmax", softmax_variants, {{input, {8, 32000}}, {output, {8, 32000}}}, 0,
                         [](const Tensors& t) {
                           return SoftmaxArgs{t[0], t[1]};
                         }),
      filter_op("mask_top_k", mask_top_k_variants, true),
      filter_op("mask_top_p", mask_top_p_variants, false),
      sample_op(),
  };
  return kOps;
}

int64_t pages(int64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

int64_t piece_bytes(const Piece& piece) {
  return piece.shape.numel() * dtype_size(piece.dtype);
}

}  // namespace

const RaceOp* find_race_op(std::string_view name) {
  const auto found = std::ranges::find(ops(), name, &RaceOp::name);
  return found == ops().end() ? nullptr : &*found;
}

std::vector<std::string> race_op_names() {
  std::vector<std::string> names;
  for (const RaceOp& op : ops()) names.push_back(op.name);
  return names;
}

std::string rung_here(std::string_view rung) {
  if (rung != "simd") return std::string(rung);
  return cpu_isa() >= CpuIsa::avx512 ? "avx512" : cpu_isa() >= CpuIsa::avx2 ? "avx2" : "portable";
}

Tensors pieces_in(const RaceOp& op, void* memory) {
  Tensors tensors;
  char* at = static_cast<char*>(memory);
  for (const Piece& piece : op.pieces) {
    tensors.push_back(Tensor::wrap(at, piece.shape, piece.dtype));
    at += pages(piece_bytes(piece)) + kPage;
  }
  return tensors;
}

int64_t bytes_of(const RaceOp& op) {
  int64_t bytes = 0;
  for (const Piece& piece : op.pieces) bytes += pages(piece_bytes(piece)) + kPage;
  return bytes;
}

}  // namespace ladder::course
