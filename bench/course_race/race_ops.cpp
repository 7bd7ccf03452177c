#include "bench/course_race/race_ops.h"

#include <algorithm>
#include <array>
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
constexpr std::string_view kOnGpu = "cuda_";

template <class Args>
void run_rung(std::string_view op, std::span<const Variant<Args>> table, const OpContext& ctx,
              std::string_view rung, const Args& args) {
  const DeviceType device = on_gpu(rung) ? DeviceType::cuda : DeviceType::cpu;
  const std::string_view name = on_gpu(rung) ? rung.substr(kOnGpu.size()) : rung;
  for (const Variant<Args>& variant : table)
    if (variant.name == name && variant.device == device && can_run(variant, ctx, args))
      return variant.run(ctx, args);
  fail("{} has no rung {} that can run here", op, rung);
}

// In [-scale, scale), quickly: Knuth's MMIX generator. f32 or bf16.
void fill_floats(Random& random, const Tensor& tensor, float scale = 1.0f) {
  uint64_t state = random();
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int64_t>(state) >> 40) * 0x1p-23f * scale;
  };
  if (tensor.dtype() == DType::bf16)
    for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<bf16>()[i] = static_cast<bf16>(next());
  else
    for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = next();
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

RaceOp matmul_op(int64_t m, int64_t n, int64_t k, DType dtype) {
  return plain<MatmulArgs>("matmul", matmul_variants,
                           {{input, {m, k}, dtype}, {input, {n, k}, dtype}, {output, {m, n}}},
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

RaceOp silu_op(int64_t rows) {
  return plain<SiluAndMulArgs>("silu_and_mul", silu_and_mul_variants,
                               {{input, {rows, 6144}}, {output, {rows, 3072}}}, 0, [](const Tensors& t) {
                                 return SiluAndMulArgs{t[0], t[1]};
                               });
}

RaceOp gelu_op(int64_t rows) {
  return plain<GeluArgs>("gelu", gelu_variants, {{input, {rows, 3072}}, {output, {rows, 3072}}}, 0,
                         [](const Tensors& t) {
                           return GeluArgs{t[0], t[1], GeluKind::tanh};
                         });
}

RaceOp norm_op(int64_t rows, int64_t width) {
  return plain<RmsNormArgs>("rms_norm", rms_norm_variants,
                            {{input, {rows, width}}, {input, {width}}, {output, {rows, width}}}, 0,
                            [](const Tensors& t) {
                              return RmsNormArgs{t[0], t[1], 1e-6, t[2]};
                            });
}

RaceOp fused_norm_op(int64_t rows, int64_t width) {
  return plain<FusedAddRmsNormArgs>(
      "fused_add_rms_norm", fused_add_rms_norm_variants,
      {{input, {rows, width}}, {both, {rows, width}}, {input, {width}}, {output, {rows, width}}}, 0,
      [](const Tensors& t) {
        return FusedAddRmsNormArgs{t[0], t[1], t[2], 1e-6, t[3]};
      });
}

std::vector<RaceOp> make_ops(Size size) {
  if (size == Size::gpu)
    return {silu_op(8192),
            gelu_op(8192),
            norm_op(8192, 4096),
            fused_norm_op(4096, 4096),
            matmul_op(2048, 2048, 2048, DType::bf16),
            paged_attention_op()};
  if (size == Size::small)
    return {silu_op(5),
            gelu_op(5),
            norm_op(5, 2048),
            fused_norm_op(5, 2048),
            matmul_op(80, 136, 96, DType::bf16),
            paged_attention_op()};
  return {silu_op(384),
          gelu_op(384),
          norm_op(640, 2048),
          fused_norm_op(512, 2048),
          matmul_op(32, 768, 768, DType::f32),
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
          sample_op()};
}

const std::vector<RaceOp>& ops(Size size) {
  static const std::array<std::vector<RaceOp>, 3> kOps = {make_ops(Size::core), make_ops(Size::gpu),
                                                          make_ops(Size::small)};
  return kOps[static_cast<size_t>(size)];
}

int64_t pages(int64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

int64_t piece_bytes(const Piece& piece) {
  return piece.shape.numel() * dtype_size(piece.dtype);
}

}  // namespace

const RaceOp* find_race_op(std::string_view name, Size size) {
  const auto found = std::ranges::find(ops(size), name, &RaceOp::name);
  return found == ops(size).end() ? nullptr : &*found;
}

std::vector<std::string> race_op_names(Size size) {
  std::vector<std::string> names;
  for (const RaceOp& op : ops(size)) names.push_back(op.name);
  return names;
}

bool on_gpu(std::string_view rung) {
  return rung.starts_with(kOnGpu);
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
