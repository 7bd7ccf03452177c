// The operators of a decoder layer that do little arithmetic per byte, at the sizes of qwen3-0.6b (hidden
// 1024, intermediate 3072, 16 query and 8 key/value heads of 128) for one decoded token and for a 512-token
// prefill. Their ceiling is read_bandwidth.
#include <fmt/format.h>

#include <map>
#include <numeric>

#include "bench/support/bench_support.h"
#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/embedding/embedding.h"
#include "step1_layers/norm/layer_norm.h"
#include "step1_layers/norm/rms_norm.h"
#include "step1_layers/rotary/rope.h"

namespace ladder::bench {
namespace {

constexpr int64_t kHidden = 1024, kIntermediate = 3072, kHeads = 16, kKvHeads = 8, kHeadDim = 128;

template <class Args>
BenchProblem<Args> problem(DType dtype, int64_t rows, int64_t elements_per_row, double operations_per_row,
                           std::function<Args()> make) {
  BenchProblem<Args> result;
  result.name = fmt::format("{}/rows:{}", dtype_name(dtype), rows);
  result.dtype = dtype;
  result.bytes = static_cast<double>(rows * elements_per_row * dtype_size(dtype));
  result.operations = operations_per_row * static_cast<double>(rows);
  result.make = std::move(make);
  return result;
}

Tensor positions(int64_t rows) {
  Tensor result = Tensor::empty({rows}, DType::i32);
  std::iota(result.data<int32_t>(), result.data<int32_t>() + rows, 0);
  return result;
}

Tensor slots(int64_t rows) {
  Tensor result = Tensor::empty({rows}, DType::i64);
  std::iota(result.data<int64_t>(), result.data<int64_t>() + rows, int64_t{0});
  return result;
}

// The norm of the heads works in place, call after call: any other weight would drive them to denormal
// numbers.
Tensor ones(int64_t count, DType dtype) {
  Tensor result = Tensor::empty({count}, DType::f32);
  std::fill_n(result.data<float>(), count, 1.0f);
  return result.to(dtype);
}

KvCacheView cache(int64_t rows, DType dtype) {
  const Shape shape{(rows + 15) / 16, 16, kKvHeads, kHeadDim};
  return {random_tensor(shape, dtype), random_tensor(shape, dtype)};
}

// One for all calls: its rows are many enough not to stay in the cache.
const Tensor& table_of_words(DType dtype) {
  static std::map<DType, Tensor> tables;
  Tensor& table = tables[dtype];
  if (!table.defined()) table = random_tensor({65536, kHidden}, dtype);
  return table;
}

const bool kRegistered = [] {
  std::vector<BenchProblem<SiluAndMulArgs>> silu;
  std::vector<BenchProblem<GeluAndMulArgs>> gelu_and_mul;
  std::vector<BenchProblem<GeluArgs>> gelu;
  std::vector<BenchProblem<RmsNormArgs>> norm;
  std::vector<BenchProblem<FusedAddRmsNormArgs>> add_norm;
  std::vector<BenchProblem<LayerNormArgs>> layer_norm;
  std::vector<BenchProblem<FusedAddLayerNormArgs>> add_layer_norm;
  std::vector<BenchProblem<EmbeddingArgs>> embedding;
  std::vector<BenchProblem<RotaryEmbeddingArgs>> rotary;
  std::vector<BenchProblem<StoreKvArgs>> store;
  std::vector<BenchProblem<QkNormRopeStoreArgs>> qk;
  const Tensor table = make_rope_table({.theta = 1e6, .rotary_dim = kHeadDim}, 512);
  constexpr int64_t kQkvWidth = (kHeads + 2 * kKvHeads) * kHeadDim;
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t rows : {1, 512}) {
      silu.push_back(problem<SiluAndMulArgs>(dtype, rows, 3 * kIntermediate, 4.0 * kIntermediate, [=] {
        return SiluAndMulArgs{random_tensor({rows, 2 * kIntermediate}, dtype),
                              Tensor::zeros({rows, kIntermediate}, dtype)};
      }));
      for (GeluKind kind : {GeluKind::erf, GeluKind::tanh}) {
        const std::string prefix = kind == GeluKind::erf ? "erf/" : "tanh/";
        gelu_and_mul.push_back(
            problem<GeluAndMulArgs>(dtype, rows, 3 * kIntermediate, 8.0 * kIntermediate, [=] {
              return GeluAndMulArgs{random_tensor({rows, 2 * kIntermediate}, dtype),
                                    Tensor::zeros({rows, kIntermediate}, dtype), kind};
            }));
        gelu_and_mul.back().name.insert(0, prefix);
        gelu.push_back(problem<GeluArgs>(dtype, rows, 2 * kIntermediate, 8.0 * kIntermediate, [=] {
          return GeluArgs{random_tensor({rows, kIntermediate}, dtype),
                          Tensor::zeros({rows, kIntermediate}, dtype), kind};
        }));
        gelu.back().name.insert(0, prefix);
      }
      norm.push_back(problem<RmsNormArgs>(dtype, rows, 2 * kHidden, 4.0 * kHidden, [=] {
        return RmsNormArgs{random_tensor({rows, kHidden}, dtype), random_tensor({kHidden}, dtype), 1e-6,
                           Tensor::zeros({rows, kHidden}, dtype)};
      }));
      add_norm.push_back(problem<FusedAddRmsNormArgs>(dtype, rows, 4 * kHidden, 5.0 * kHidden, [=] {
        return FusedAddRmsNormArgs{random_tensor({rows, kHidden}, dtype),
                                   random_tensor({rows, kHidden}, dtype), random_tensor({kHidden}, dtype),
                                   1e-6, Tensor::zeros({rows, kHidden}, dtype)};
      }));
      layer_norm.push_back(problem<LayerNormArgs>(dtype, rows, 2 * kHidden, 7.0 * kHidden, [=] {
        return LayerNormArgs{random_tensor({rows, kHidden}, dtype), random_tensor({kHidden}, dtype),
                             random_tensor({kHidden}, dtype), 1e-5, Tensor::zeros({rows, kHidden}, dtype)};
      }));
      add_layer_norm.push_back(problem<FusedAddLayerNormArgs>(dtype, rows, 4 * kHidden, 8.0 * kHidden, [=] {
        return FusedAddLayerNormArgs{random_tensor({rows, kHidden}, dtype),
                                     random_tensor({rows, kHidden}, dtype),
                                     random_tensor({kHidden}, dtype),
                                     random_tensor({kHidden}, dtype),
                                     1e-5,
                                     Tensor::zeros({rows, kHidden}, dtype)};
      }));
      embedding.push_back(problem<EmbeddingArgs>(dtype, rows, 2 * kHidden, 0, [=] {
        static int64_t word = 0;  // other words in every set of operands
        Tensor ids = Tensor::empty({rows}, DType::i32);
        for (int64_t i = 0; i < rows; ++i) ids.at<int32_t>({i}) = static_cast<int32_t>(word++ * 7919 % 65536);
        return EmbeddingArgs{ids, table_of_words(dtype), 0, Tensor::zeros({rows, kHidden}, dtype)};
      }));
      rotary.push_back(problem<RotaryEmbeddingArgs>(
          dtype, rows, 2 * (kHeads + kKvHeads) * kHeadDim, 3.0 * (kHeads + kKvHeads) * kHeadDim, [=] {
            const Tensor qkv = random_tensor({rows, kQkvWidth / kHeadDim, kHeadDim}, dtype);
            return RotaryEmbeddingArgs{positions(rows), qkv.narrow(1, 0, kHeads),
                                       qkv.narrow(1, kHeads, kKvHeads), table};
          }));
      store.push_back(problem<StoreKvArgs>(dtype, rows, 4 * kKvHeads * kHeadDim, 0, [=] {
        const Tensor qkv = random_tensor({rows, kQkvWidth / kHeadDim, kHeadDim}, dtype);
        return StoreKvArgs{qkv.narrow(1, kHeads, kKvHeads), qkv.narrow(1, kHeads + kKvHeads, kKvHeads),
                           slots(rows), cache(rows, dtype)};
      }));
      qk.push_back(
          problem<QkNormRopeStoreArgs>(dtype, rows, 2 * kQkvWidth, 7.0 * (kHeads + kKvHeads) * kHeadDim, [=] {
            const Tensor qkv = random_tensor({rows, kQkvWidth / kHeadDim, kHeadDim}, dtype);
            return QkNormRopeStoreArgs{qkv.narrow(1, 0, kHeads),
                                       qkv.narrow(1, kHeads, kKvHeads),
                                       qkv.narrow(1, kHeads + kKvHeads, kKvHeads),
                                       ones(kHeadDim, dtype),
                                       ones(kHeadDim, dtype),
                                       1e-6,
                                       positions(rows),
                                       table,
                                       slots(rows),
                                       cache(rows, dtype)};
          }));
    }
  register_ladder("silu_and_mul", silu_and_mul_variants(), silu);
  register_ladder("gelu_and_mul", gelu_and_mul_variants(), gelu_and_mul);
  register_ladder("gelu", gelu_variants(), gelu);
  register_ladder("rms_norm", rms_norm_variants(), norm);
  register_ladder("fused_add_rms_norm", fused_add_rms_norm_variants(), add_norm);
  register_ladder("layer_norm", layer_norm_variants(), layer_norm);
  register_ladder("fused_add_layer_norm", fused_add_layer_norm_variants(), add_layer_norm);
  register_ladder("embedding", embedding_variants(), embedding);
  register_ladder("rotary_embedding", rotary_embedding_variants(), rotary);
  register_ladder("store_kv", store_kv_variants(), store);
  register_ladder("qk_norm_rope_store", qk_norm_rope_store_variants(), qk);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
