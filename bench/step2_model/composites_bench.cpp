// A decoder's layers as the engine runs them, all of them one after the other in one CUDA graph, each layer
// with weights and keys of its own; the time is that of one layer.
//
//   layer_products  norm_qkv, o_residual, norm_gate_up_silu and down_residual with their operators in
//                   sequence, with their fused kernels, and with what the engine would choose. What stands
//                   between them is left out: o_residual reads the queries instead.
//   norm_qkv, ...   each composite by itself, which shows where that time goes.
//   layer           whole layers of sequences that decode, the composites as the engine would choose them, with
//                   the rungs of attention_with_store.
#include <fmt/format.h>

#include <cmath>

#include "bench/support/bench_cuda.h"
#include "step1_layers/attention/attention_with_store.h"
#include "step1_layers/rotary/rope.h"
#include "step2_model/decoder/composites.h"

namespace ladder::bench {
namespace {

constexpr DType kType = DType::bf16;

struct Model {
  const char* name;
  int64_t layers, hidden, q, qkv, intermediate;
};
constexpr Model kModels[] = {{"0.6b", 28, 1024, 2048, 4096, 3072}, {"8b", 36, 4096, 4096, 6144, 12288}};

struct Layer {
  Tensor norm;
  ColumnParallelLinear qkv, o, gate_up, down;

  Layer(const OpContext& ctx, const Model& m, const Tensor& values)
      : norm(values.narrow(0, 0, m.hidden).to(ctx.device)),
        qkv(ctx, "qkv", m.hidden, m.qkv, {kType, false, nullptr}),
        o(ctx, "o", m.q, m.hidden, {kType, false, nullptr}),
        gate_up(ctx, "gate_up", m.hidden, 2 * m.intermediate, {kType, false, nullptr}),
        down(ctx, "down", m.intermediate, m.hidden, {kType, false, nullptr}) {
    for (Linear* linear : {static_cast<Linear*>(&qkv), static_cast<Linear*>(&o),
                           static_cast<Linear*>(&gate_up), static_cast<Linear*>(&down)}) {
      const Tensor& weight = linear->parameters()[0]->tensor;
      weight.view({weight.numel()}).copy_from(values.narrow(0, 0, weight.numel()), ctx.stream);
    }
  }
};

// The layers of one model, kept while its benchmarks run.
std::vector<Layer>& layers_of(const OpContext& ctx, const Model& model) {
  static const Model* held = nullptr;
  static std::vector<Layer> layers;
  if (held != &model) {
    layers.clear();
    held = &model;
    const Tensor values =
        random_tensor({2 * model.intermediate * model.hidden}, kType).to(ctx.device, ctx.stream);
    for (int64_t i = 0; i < model.layers; ++i) layers.emplace_back(ctx, model, values);
    device_synchronize(ctx.device, ctx.stream);
  }
  return layers;
}

constexpr const char* kComposites[] = {"norm_qkv", "o_residual", "norm_gate_up_silu", "down_residual"};

// All composites of every layer, or one of them. An empty kernel: the engine's choice.
void layer_products(benchmark::State& state, const Model& model, int64_t rows, std::string_view composite,
                    const char* kernel) {
  if (cuda_bench_context() == nullptr) {
    state.SkipWithError("no GPU");
    return;
  }
  OpContext ctx = *cuda_bench_context();
  if (*kernel != 0)
    for (const char* op : kComposites) ctx.kernels[op] = kernel;
  const std::vector<Layer>& layers = layers_of(ctx, model);
  auto take = [&](int64_t width) { return random_tensor({rows, width}, kType).to(ctx.device); };
  ResidualStream stream{take(model.hidden), take(model.hidden), false};
  const Tensor qkv = take(model.qkv), queries = qkv.narrow(1, 0, model.q),
               activated = take(model.intermediate);
  const auto runs = [&](int at) { return composite.empty() || composite == kComposites[at]; };
  try {
    time_cuda_graph(state, static_cast<int>(model.layers), [&](int i) {
      const Layer& layer = layers[static_cast<size_t>(i)];
      if (runs(0)) norm_qkv(ctx, stream, {layer.norm, {}, 1e-6}, layer.qkv, qkv);
      if (runs(1)) o_residual(ctx, queries, layer.o, stream);
      if (runs(2))
        norm_gate_up_silu(ctx, stream, {layer.norm, {}, 1e-6}, layer.gate_up, MlpActivation::silu, activated);
      if (runs(3)) down_residual(ctx, activated, layer.down, stream);
    });
  } catch (const Error& error) {
    state.SkipWithError(error.what());
    return;
  }
  const Layer& layer = layers[0];
  double weights = 0;
  const Linear* const linears[] = {&layer.qkv, &layer.o, &layer.gate_up, &layer.down};
  for (int at = 0; at < 4; ++at)
    if (runs(at)) weights += static_cast<double>(linears[at]->nbytes());
  set_cuda_counters(state, weights, weights * static_cast<double>(rows));
}

void register_products(const Model& model, int64_t rows, std::string_view composite, const char* kernel) {
  const std::string_view name = composite.empty() ? "layer_products" : composite;
  benchmark::RegisterBenchmark(
      fmt::format("{}/{}/m:{}/cuda:{}", name, model.name, rows, *kernel == 0 ? "chosen" : kernel).c_str(),
      [&model, rows, composite, kernel](benchmark::State& state) {
        layer_products(state, model, rows, composite, kernel);
      })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

// Sequences of `keys` keys each, of which the last is this step's, in pages of 16.
void whole_layers(benchmark::State& state, const Model& model, int64_t sequences, int64_t keys,
                  const char* kernel) {
  if (cuda_bench_context() == nullptr) {
    state.SkipWithError("no GPU");
    return;
  }
  constexpr int64_t kHeadDim = 128, kPage = 16, kLongest = 2048;
  OpContext ctx = *cuda_bench_context();
  if (*kernel != 0) ctx.kernels["attention_with_store"] = kernel;
  const std::vector<Layer>& layers = layers_of(ctx, model);
  const int64_t heads = model.q / kHeadDim, kv_heads = (model.qkv - model.q) / kHeadDim / 2;
  auto take = [&](const Shape& shape) { return random_tensor(shape, kType).to(ctx.device); };
  ResidualStream stream{take({sequences, model.hidden}), take({sequences, model.hidden}), false};
  const Tensor qkv = take({sequences, model.qkv}), attention = take({sequences, model.q}),
               activated = take({sequences, model.intermediate});

  const int64_t pages = (keys + kPage - 1) / kPage;
  std::vector<KvCacheView> caches;
  for (int64_t i = 0; i < model.layers; ++i)
    caches.push_back({take({sequences * pages, kPage, kv_heads, kHeadDim}),
                      take({sequences * pages, kPage, kv_heads, kHeadDim})});
  std::vector<int32_t> starts, lengths, tables, positions;
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < sequences; ++i) {
    starts.push_back(static_cast<int32_t>(i));
    lengths.push_back(static_cast<int32_t>(keys));
    positions.push_back(static_cast<int32_t>(keys - 1));
    slots.push_back(i * pages * kPage + keys - 1);
    for (int64_t page = 0; page < pages; ++page) tables.push_back(static_cast<int32_t>(i * pages + page));
  }
  starts.push_back(static_cast<int32_t>(sequences));
  auto i32 = [&](const std::vector<int32_t>& values, const Shape& shape) {
    return Tensor::from<int32_t>(values, shape).to(ctx.device);
  };
  const AttentionMetadata metadata{.query_start_loc = i32(starts, {sequences + 1}),
                                   .seq_lens = i32(lengths, {sequences}),
                                   .block_tables = i32(tables, {sequences, pages}),
                                   .slot_mapping = Tensor::from<int64_t>(slots, {sequences}).to(ctx.device),
                                   .num_seqs = sequences,
                                   .num_tokens = sequences,
                                   .max_query_len = 1,
                                   .max_seq_len = kLongest};
  const Tensor by_head = qkv.view({sequences, heads + 2 * kv_heads, kHeadDim}), head_norm = take({kHeadDim});
  QkNormRopeStoreArgs store{.q = by_head.narrow(1, 0, heads),
                            .k = by_head.narrow(1, heads, kv_heads),
                            .v = by_head.narrow(1, heads + kv_heads, kv_heads),
                            .q_norm_weight = head_norm,
                            .k_norm_weight = head_norm,
                            .positions = i32(positions, {sequences}),
                            .table = make_rope_table({.rotary_dim = kHeadDim}, kLongest).to(ctx.device),
                            .slot_mapping = metadata.slot_mapping,
                            .cache = {}};
  try {
    time_cuda_graph(state, static_cast<int>(model.layers), [&](int i) {
      const Layer& layer = layers[static_cast<size_t>(i)];
      store.cache = caches[static_cast<size_t>(i)];
      norm_qkv(ctx, stream, {layer.norm, {}, 1e-6}, layer.qkv, qkv);
      attention_with_store(ctx, store, metadata, 1 / std::sqrt(kHeadDim),
                           attention.view({sequences, heads, kHeadDim}));
      o_residual(ctx, attention, layer.o, stream);
      norm_gate_up_silu(ctx, stream, {layer.norm, {}, 1e-6}, layer.gate_up, MlpActivation::silu, activated);
      down_residual(ctx, activated, layer.down, stream);
    });
  } catch (const Error& error) {
    state.SkipWithError(error.what());
    return;
  }
  const Layer& layer = layers[0];
  double weights = 0;
  for (const Linear* linear :
       {static_cast<const Linear*>(&layer.qkv), static_cast<const Linear*>(&layer.o),
        static_cast<const Linear*>(&layer.gate_up), static_cast<const Linear*>(&layer.down)})
    weights += static_cast<double>(linear->nbytes());
  const auto cached = static_cast<double>(sequences * keys * kv_heads * kHeadDim * 2 * dtype_size(kType));
  set_cuda_counters(state, weights + cached, weights * static_cast<double>(sequences));
}

const bool kRegistered = [] {
  for (const Model& model : kModels)
    for (int64_t sequences : {1, 4})
      for (int64_t keys : {128, 1024})
        for (const char* kernel : {"sequence", "fused"})
          benchmark::RegisterBenchmark(
              fmt::format("layer/{}/sequences:{}/keys:{}/cuda:{}", model.name, sequences, keys, kernel)
                  .c_str(),
              [&model, sequences, keys, kernel](benchmark::State& state) {
                whole_layers(state, model, sequences, keys, kernel);
              })
              ->UseManualTime()
              ->Iterations(1)
              ->Unit(benchmark::kMicrosecond);
  for (const Model& model : kModels)
    for (int64_t rows : {1, 2, 4, 8, 16, 32}) {
      for (const char* kernel : {"sequence", "fused", ""}) register_products(model, rows, "", kernel);
      for (const char* composite : kComposites)
        for (const char* kernel : {"sequence", "fused"}) register_products(model, rows, composite, kernel);
    }
  return true;
}();

}  // namespace
}  // namespace ladder::bench
