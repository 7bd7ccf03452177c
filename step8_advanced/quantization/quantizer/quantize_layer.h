#pragma once
// Task 8.5.sequential: one layer, its linears one after the other.
//
//   smooth_layer.h, where the recipe smooths
//   for each linear of the layer, in the order in which they run (qkv, o, gate and up, down):
//     all texts go through the layer, whose linears before this one are quantized already; its inputs are collected
//     its parts are quantized, and the layer's weights become what the codes stand for
//   all texts go through the quantized layer once more: what comes out is what the next layer gets
//
// So each linear is rounded for the inputs that it will really have ("true sequential"), and makes up for some of the error of
// those before it.
//
// Experts run side by side, so the inputs of all of a layer's are collected in one pass, for each the tokens that its router sends
// it. An expert to which none came is rounded to nearest, or pruned by magnitude, and its report says so.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "step8_advanced/quantization/quantizer/recipe.h"
#include "step8_advanced/quantization/quantizer/stored_tensors.h"
#include "step8_advanced/quantization/quantizer/watched_layer.h"

namespace ladder {

// What became of one linear.
struct LinearReport {
  std::string name, method, scheme;
  // tr(E H E^T) / tr(W H W^T): the squared error of its output over its squared output, on calibration's inputs. Without calibration
  // that of the weights, |E|^2 / |W|^2.
  double error = 0;
  bool calibrated = false;
  bool unreached = false;  // calibration ran, and no token of it was routed to this expert
  // gptq and sparsegpt:
  double damping = 0;        // that it took, above the recipe's where H was not positive definite with that
  int64_t dead_columns = 0;  // inputs that were always 0
  double seconds = 0;
};

struct FinishedLinear {
  QuantizedLinear linear;  // without a weight where it is only pruned
  Tensor dense;            // [n, k] in the checkpoint's dtype, where it is only pruned
  LinearReport report;

  Tensor values() const;  // what its weight has become, f32
};

struct FinishedLayer {
  std::vector<FinishedLinear> linears;
  std::vector<NamedTensor> norms;  // and routers, that smoothing has changed, as the checkpoint keeps them
  std::vector<NamedTensor> kv_scales;  // k_scale and v_scale, where the recipe asks for them (calibrate_kv.h)
};

// Quantizes the linears of a layer that has been loaded, and leaves it quantized. `linears`: of this layer, with their stages;
// `texts` and `hidden` (one per text; all undefined before layer 0): what goes in. Error, naming the linear: see gptq.h, or an input without numbers.
FinishedLayer quantize_layer(WatchedLayer& layer, const Recipe& recipe,
                             std::span<const CheckpointLinear> linears, std::span<const TokenIds> texts,
                             std::span<const Tensor> hidden);

// What calibration knows of a linear's inputs; nothing where there was none.
struct LinearInputs {
  Tensor hessian;  // f32 [k, k]
  float largest =
      0;  // absolute value, for static activations; of an expert without tokens that of its neighbours
  Tensor sample;           // f32 [rows, k]; of awq
  bool unreached = false;  // as LinearReport: neither hessian nor sample
};

// One linear's weight [n, k] f32, pruned, rounded or both. global_scale: NVFP4's, of all parts together; 0 elsewhere.
FinishedLinear quantize_linear(const std::string& name, const Tensor& weight, const LinearStages& stages,
                               const LinearInputs& inputs, float global_scale);

// Makes a loaded layer what it became: for a run that goes on.
void restore_layer(WatchedLayer& layer, const Recipe& recipe, std::span<const CheckpointLinear> linears,
                   const FinishedLayer& finished);

}  // namespace ladder
