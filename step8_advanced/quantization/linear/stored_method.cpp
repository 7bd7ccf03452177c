#include "step8_advanced/quantization/linear/stored_method.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/kernels/eight_bit_codes.h"
#include "step8_advanced/quantization/kernels/gather_columns.h"
#include "step8_advanced/quantization/kernels/quantized_matmul.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/kernels/weight_records.h"
#include "step8_advanced/quantization/kernels/weight_rows.h"
#ifdef LADDER_HAS_CUDA
#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"
#endif

namespace ladder {
namespace {

// Where a linear's tensors lie after process_after_load; undefined what it does not have.
enum Kept : size_t { kCodes, kScales, kZeros, kRecords, kColumns, kLayout, kInputScales, kBias, kNumKept };

// The numbers of a QuantizedWeight: i64 [6], in the CPU's memory as the input scales.
Tensor layout_of(const QuantizedWeight& weight) {
  const int64_t numbers[] = {static_cast<int64_t>(weight.type),
                             weight.k,
                             weight.group_size,
                             weight.group_offset,
                             std::ilogb(weight.records.unit),
                             weight.records.zeros ? 1 : 0};
  return Tensor::from<int64_t>(numbers, {6});
}

QuantizedWeight weight_of(const LinearShape& shape, const std::vector<Tensor>& tensors) {
  const int64_t* layout = tensors[kLayout].data<int64_t>();
  return {.type = static_cast<WeightCodes>(layout[0]),
          .n = shape.out_features(),
          .k = layout[1],
          .codes = tensors[kCodes],
          .scales = tensors[kScales],
          .zeros = tensors[kZeros],
          .columns = tensors[kColumns],
          .group_size = layout[2],
          .group_offset = layout[3],
          .records = {.bytes = tensors[kRecords],
                      .unit = std::ldexp(1.0f, static_cast<int>(layout[4])),
                      .zeros = layout[5] != 0}};
}

}  // namespace

size_t StoredTensors::index_of(std::string_view name) const {
  const auto found = std::find_if(specs_.begin(), specs_.end(),
                                  [&](const LinearParameterSpec& spec) { return spec.name == name; });
  LADDER_CHECK(found != specs_.end(), "{} was not declared", name);
  return static_cast<size_t>(found - specs_.begin());
}

const Tensor& StoredTensors::operator[](std::string_view name) const {
  return tensors_[index_of(name)];
}

Tensor StoredTensors::part(std::string_view name, const LinearShape& shape, size_t part) const {
  const size_t index = index_of(name);
  const std::vector<LinearDimension>& dims = specs_[index].dims;
  const auto out = std::find_if(dims.begin(), dims.end(), [](const LinearDimension& dim) {
    return dim.follows == LinearDimension::Follows::out;
  });
  return tensors_[index]
      .narrow(static_cast<int>(out - dims.begin()), out->begin_of_part(shape, part),
              out->elements_of(shape.out[part]).size)
      .clone();
}

bool StoredMethod::has_input_scale() const {
  return activations() && have_stored_scale(*activations());
}

const char* StoredMethod::input_scale_name() const {
  const bool is_nvfp4 = activations()->scale_format == ScaleFormat::e4m3;
  return is_nvfp4 && !stored_.scales_are_factors ? "input_global_scale" : "input_scale";
}

std::vector<LinearParameterSpec> StoredMethod::parameters(const LinearShape& shape) const {
  std::vector<LinearParameterSpec> specs = weight_tensors(shape);
  if (has_input_scale()) specs.push_back({input_scale_name(), DType::f32, {LinearDimension::per_part()}});
  if (shape.bias) specs.push_back({"bias", shape.dtype, {LinearDimension::along_out()}});
  return specs;
}

bool parts_are_whole_tiles(const LinearShape& shape) {
  for (size_t part = 0; part + 1 < shape.out.size(); ++part)
    if (shape.out[part].size % kRecordRows != 0) return false;
  return true;
}

QuantizedWeight on_device(Device device, const QuantizedWeight& weight, bool records) {
  if (device.type != DeviceType::cuda) return weight;
  QuantizedWeight result = records && fits_records(weight) ? in_records(weight) : weight;
  for (Tensor* tensor :
       {&result.codes, &result.scales, &result.zeros, &result.columns, &result.records.bytes})
    if (tensor->defined()) *tensor = tensor->to(device);
  return result;
}

LoadedLinear StoredMethod::load(const LinearShape& shape, const std::vector<Tensor>& tensors) const {
  const std::vector<LinearParameterSpec> specs = parameters(shape);
  std::vector<Tensor> on_cpu;
  for (const Tensor& tensor : tensors)
    on_cpu.push_back(tensor.device().is_cpu() ? tensor : tensor.to(Device{}));
  const StoredTensors stored(specs, on_cpu);
  LoadedLinear loaded{unpack(shape, stored), {}};
  if (!has_input_scale()) return loaded;
  loaded.input_scales = stored[input_scale_name()].clone();
  for (int64_t part = 0; part < loaded.input_scales.numel(); ++part) {
    float& scale = loaded.input_scales.data<float>()[part];
    LADDER_CHECK(std::isfinite(scale) && scale > 0, "{} of part {} is {}, expected a number above 0",
                 input_scale_name(), part, scale);
    if (stored_.scales_are_factors) scale = 1 / scale;  // as G
  }
  return loaded;
}

void StoredMethod::process_after_load(const OpContext& ctx, const LinearShape& shape,
                                      std::vector<Tensor>& tensors) const {
  const LoadedLinear loaded = load(shape, tensors);
  // Parts that round x by a scale of their own may be multiplied alone.
  const bool whole_tiles = !has_input_scale() || parts_are_whole_tiles(shape);
  const QuantizedWeight weight = on_device(
      ctx.device, loaded.weight, whole_tiles && !are_multiplied_as_codes(loaded.weight, activations()));
  std::vector<Tensor> kept(kNumKept);
  kept[kCodes] = weight.codes;
  kept[kScales] = weight.scales;
  kept[kZeros] = weight.zeros;
  kept[kRecords] = weight.records.bytes;
  kept[kColumns] = weight.columns;
  kept[kLayout] = layout_of(weight);
  kept[kInputScales] = loaded.input_scales;
  if (shape.bias) kept[kBias] = tensors.back();  // as parameters() has it
  tensors = std::move(kept);
}

void StoredMethod::apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
                         const Tensor& x, const Tensor& out) const {
  apply_parts(ctx, shape, tensors, 0, shape.out.size(), x, out);
}

void StoredMethod::apply_parts(const OpContext& ctx, const LinearShape& shape,
                               const std::vector<Tensor>& tensors, size_t first, size_t count,
                               const Tensor& x, const Tensor& out) const {
  const auto rows_before = [&](size_t part) {
    return LinearDimension::along_out().begin_of_part(shape, part);
  };
  const QuantizedWeight weight = weight_of(shape, tensors);
  const bool own_orders = have_own_orders(weight);
  const auto order_of = [&](size_t part) {
    return own_orders ? static_cast<int64_t>(part) * weight.columns.dim(0) / std::ssize(shape.out) : 0;
  };
  // Of parts that round x by different scales, or have columns in different orders, each run of equal ones is a product of its own.
  const float* scales = has_input_scale() ? tensors[kInputScales].data<float>() : nullptr;
  const int64_t begin = rows_before(first);
  for (size_t part = first; part < first + count;) {
    size_t end = part + 1;
    while (end < first + count && (scales == nullptr || scales[end] == scales[part]) &&
           order_of(end) == order_of(part))
      ++end;
    const int64_t from = rows_before(part), rows = rows_before(end) - from;
    const bool whole = rows == weight.n && !own_orders;
    QuantizedWeight of_run = whole ? weight : rows_of(weight, from, rows);
    QuantizedMatmulArgs args{.x = x,
                             .weight = &of_run,
                             .activations = stored_.scheme.input_activations,
                             .input_scale = scales != nullptr ? scales[part] : 1.0f,
                             .bias = shape.bias ? tensors[kBias].narrow(0, from, rows) : Tensor(),
                             .out = out.narrow(1, from - begin, rows)};
    std::optional<ArenaScope> scope;
    if (of_run.columns.defined() && of_run.k != shape.in_features()) {
      scope.emplace(*ctx.arena);
      args.x = ctx.arena->take({x.dim(0), of_run.k}, x.dtype());
      gather_columns(ctx, x, of_run.columns, args.x);
      of_run.columns = {};
    }
    quantized_matmul(ctx, args);
    part = end;
  }
}

#ifdef LADDER_HAS_CUDA
// Where parts round x by different scales, it is left to as many products.
bool StoredMethod::takes_fused(const LinearShape& shape, const std::vector<Tensor>& tensors,
                               const FusedProduct& product) const {
  if (has_input_scale()) {
    const std::span<const float> scales(tensors[kInputScales].data<float>(), shape.out.size());
    if (std::ranges::adjacent_find(scales, std::not_equal_to()) != scales.end()) return false;
  }
  const QuantizedWeight weight = weight_of(shape, tensors);
  return quantized_rows_stream_takes({product, &weight, {}, stored_.scheme.input_activations});
}

void StoredMethod::apply_fused(const OpContext& ctx, const LinearShape& shape,
                               const std::vector<Tensor>& tensors, const FusedProduct& product) const {
  const QuantizedWeight weight = weight_of(shape, tensors);
  quantized_rows_stream(
      ctx, {product, &weight, shape.bias ? tensors[kBias] : Tensor(), stored_.scheme.input_activations,
            has_input_scale() ? *tensors[kInputScales].data<float>() : 1.0f});
}
#endif

}  // namespace ladder
