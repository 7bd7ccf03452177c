// The products of a decoder's layers as the engine runs them: norm_qkv, o_residual, norm_gate_up_silu and
// down_residual of all layers, one after the other in one CUDA graph, each layer with weights of its own,
// once with every piece's operators in sequence and once with its fused kernels. What stands between them
// (rotation, attention) is left out: o_residual reads the queries instead. The time is that of one layer.
#include <fmt/format.h>

#include "bench/support/bench_cuda.h"
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
  Tensor gain;
  ColumnParallelLinear qkv, o, gate_up, down;

  Layer(const OpContext& ctx, const Model& m, const Tensor& values)
      : gain(values.narrow(0, 0, m.hidden).to(ctx.device)),
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

void layer_products(benchmark::State& state, const Model& model, int64_t rows, const char* kernel) {
  if (cuda_bench_context() == nullptr) {
    state.SkipWithError("no GPU");
    return;
  }
  OpContext ctx = *cuda_bench_context();
  for (const char* op : {"norm_qkv", "o_residual", "norm_gate_up_silu", "down_residual"})
    ctx.kernels[op] = kernel;
  const std::vector<Layer>& layers = layers_of(ctx, model);
  auto take = [&](int64_t width) { return random_tensor({rows, width}, kType).to(ctx.device); };
  ResidualStream stream{take(model.hidden), take(model.hidden), false};
  const Tensor qkv = take(model.qkv), queries = qkv.narrow(1, 0, model.q),
               activated = take(model.intermediate);
  try {
    time_cuda_graph(state, static_cast<int>(model.layers), [&](int i) {
      const Layer& layer = layers[static_cast<size_t>(i)];
      norm_qkv(ctx, stream, layer.gain, 1e-6, layer.qkv, qkv);
      o_residual(ctx, queries, layer.o, stream);
      norm_gate_up_silu(ctx, stream, layer.gain, 1e-6, layer.gate_up, MlpActivation::silu, activated);
      down_residual(ctx, activated, layer.down, stream);
    });
  } catch (const Error& error) {
    state.SkipWithError(error.what());
    return;
  }
  const Layer& layer = layers[0];
  const auto weights = static_cast<double>(layer.qkv.nbytes() + layer.o.nbytes() + layer.gate_up.nbytes() +
                                           layer.down.nbytes());
  set_cuda_counters(state, weights, weights * static_cast<double>(rows));
}

const bool kRegistered = [] {
  for (const Model& model : kModels)
    for (int64_t rows : {1, 2, 4, 8, 16, 32})
      for (const char* kernel : {"sequence", "fused"})
        benchmark::RegisterBenchmark(
            fmt::format("layer_products/{}/m:{}/cuda:{}", model.name, rows, kernel).c_str(),
            [&model, rows, kernel](benchmark::State& state) { layer_products(state, model, rows, kernel); })
            ->UseManualTime()
            ->Iterations(1)
            ->Unit(benchmark::kMicrosecond);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
