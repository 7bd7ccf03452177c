// The CUDA ladders of the operators that do little arithmetic per byte, at the widths of qwen3-8b: one row,
// 256 rows, and tensors of 64 MB and more. Norms and the embedding at those of other models too, since what
// fits in a thread's registers follows from the width.
#include <fmt/format.h>

#include "bench/support/bench_cuda.h"

namespace ladder::bench {
namespace {

constexpr DType kType = DType::bf16;
constexpr int64_t kHidden = 4096, kIntermediate = 12288, kHeads = 32, kKvHeads = 8, kDim = 128;

// `moved`: elements that a row of the problem reads and writes; `operations`: per row too.
template <class Args>
void add(const char* op, std::span<const Variant<Args>> table, const std::string& name, int64_t rows,
         int64_t moved, double operations, std::function<Args()> make) {
  register_cuda_ladder<Args>(op, table,
                             {{.name = name,
                               .dtype = kType,
                               .bytes = 2.0 * static_cast<double>(rows * moved),
                               .operations = operations * static_cast<double>(rows),
                               .make = std::move(make)}});
}

void activations(int64_t tokens) {
  const std::string name = fmt::format("tokens:{}/width:{}", tokens, kIntermediate);
  const auto gate_up = [=] { return random_tensor({tokens, 2 * kIntermediate}, kType); };
  const auto out = [=] { return Tensor::zeros({tokens, kIntermediate}, kType); };
  add<SiluAndMulArgs>("silu_and_mul", silu_and_mul_variants(), name, tokens, 3 * kIntermediate,
                      4.0 * kIntermediate, [=] {
                        return SiluAndMulArgs{gate_up(), out()};
                      });
  if (tokens == 256) return;
  for (GeluKind kind : {GeluKind::erf, GeluKind::tanh}) {
    const std::string of_kind = (kind == GeluKind::erf ? "erf/" : "tanh/") + name;
    add<GeluAndMulArgs>("gelu_and_mul", gelu_and_mul_variants(), of_kind, tokens, 3 * kIntermediate,
                        8.0 * kIntermediate, [=] {
                          return GeluAndMulArgs{gate_up(), out(), kind};
                        });
    add<GeluArgs>("gelu", gelu_variants(), of_kind, tokens, 2 * kIntermediate, 8.0 * kIntermediate, [=] {
      return GeluArgs{random_tensor({tokens, kIntermediate}, kType), out(), kind};
    });
  }
}

void rows_of(int64_t rows, int64_t width) {
  const auto x = [=] { return random_tensor({rows, width}, kType); };
  const auto out = [=] { return Tensor::zeros({rows, width}, kType); };
  const std::string name = fmt::format("rows:{}/width:{}", rows, width);
  add<RmsNormArgs>("rms_norm", rms_norm_variants(), name, rows, 2 * width, 4.0 * static_cast<double>(width),
                   [=] {
                     return RmsNormArgs{x(), random_tensor({width}, kType), 1e-6, out()};
                   });
  add<FusedAddRmsNormArgs>("fused_add_rms_norm", fused_add_rms_norm_variants(), name, rows, 4 * width,
                           5.0 * static_cast<double>(width), [=] {
                             return FusedAddRmsNormArgs{x(), x(), random_tensor({width}, kType), 1e-6, out()};
                           });
  const auto vector = [=] { return random_tensor({width}, kType); };
  add<LayerNormArgs>("layer_norm", layer_norm_variants(), name, rows, 2 * width,
                     7.0 * static_cast<double>(width), [=] {
                       return LayerNormArgs{x(), vector(), vector(), 1e-5, out()};
                     });
  add<FusedAddLayerNormArgs>("fused_add_layer_norm", fused_add_layer_norm_variants(), name, rows, 4 * width,
                             8.0 * static_cast<double>(width), [=] {
                               return FusedAddLayerNormArgs{x(), x(), vector(), vector(), 1e-5, out()};
                             });
  const int64_t words = std::max<int64_t>(rows, 1024);
  add<EmbeddingArgs>("embedding", embedding_variants(), fmt::format("tokens:{}/width:{}", rows, width), rows,
                     2 * width, 0, [=] {
                       Tensor ids = Tensor::empty({rows}, DType::i32);
                       for (int64_t i = 0; i < rows; ++i)
                         ids.at<int32_t>({i}) = static_cast<int32_t>(i * 7919 % words);
                       return EmbeddingArgs{ids, random_tensor({words, width}, kType), 0, out()};
                     });
}

// Queries and keys on their way to attention: 32 query and 8 key/value heads of 128, pages of 16.
void heads(int64_t tokens) {
  const std::string name = fmt::format("tokens:{}", tokens);
  const auto q = [=] { return random_tensor({tokens, kHeads, kDim}, kType); };
  const auto kv = [=] { return random_tensor({tokens, kKvHeads, kDim}, kType); };
  const auto positions = [=] {
    Tensor t = Tensor::empty({tokens}, DType::i32);
    for (int64_t i = 0; i < tokens; ++i) t.at<int32_t>({i}) = static_cast<int32_t>(i % 4096);
    return t;
  };
  const auto slots = [=] {
    Tensor t = Tensor::empty({tokens}, DType::i64);
    for (int64_t i = 0; i < tokens; ++i) t.at<int64_t>({i}) = i;
    return t;
  };
  const auto cache = [=] {
    const Shape shape{(tokens + 15) / 16, 16, kKvHeads, kDim};
    return KvCacheView{Tensor::zeros(shape, kType), Tensor::zeros(shape, kType)};
  };
  const auto table = [] { return make_rope_table({.rotary_dim = kDim}, 4096); };
  constexpr int64_t kTurned = (kHeads + kKvHeads) * kDim, kStored = kKvHeads * kDim;
  add<RotaryEmbeddingArgs>("rotary_embedding", rotary_embedding_variants(), name, tokens, 2 * kTurned,
                           3.0 * kTurned, [=] {
                             return RotaryEmbeddingArgs{positions(), q(), kv(), table()};
                           });
  add<StoreKvArgs>("store_kv", store_kv_variants(), name, tokens, 4 * kStored, 0, [=] {
    return StoreKvArgs{kv(), kv(), slots(), cache()};
  });
  // Queries are updated in place; keys and values go from their rows to the cache.
  add<QkNormRopeStoreArgs>("qk_norm_rope_store", qk_norm_rope_store_variants(), name, tokens,
                           2 * kHeads * kDim + 4 * kStored, 7.0 * kTurned, [=] {
                             return QkNormRopeStoreArgs{.q = q(),
                                                        .k = kv(),
                                                        .v = kv(),
                                                        .q_norm_weight = random_tensor({kDim}, kType),
                                                        .k_norm_weight = random_tensor({kDim}, kType),
                                                        .positions = positions(),
                                                        .table = table(),
                                                        .slot_mapping = slots(),
                                                        .cache = cache()};
                           });
}

const bool kRegistered = [] {
  for (int64_t tokens : {1, 256, 16384}) {
    activations(tokens);
    rows_of(tokens, kHidden);
    heads(tokens);
  }
  rows_of(65536, 1024);
  rows_of(16384, 5120);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
