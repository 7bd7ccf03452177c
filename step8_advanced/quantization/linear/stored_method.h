#pragma once
// What the formats have in common: declaring, freeing, applying. A format is a subclass with two functions.
#include <string_view>
#include <vector>

#include "step1_layers/linear/linear_method.h"
#include "step8_advanced/quantization/quantized_weight.h"
#include "step8_advanced/quantization/stored_linear.h"

namespace ladder {

// The loaded tensors of one linear by the names that its format gave them.
class StoredTensors {
 public:
  StoredTensors(const std::vector<LinearParameterSpec>& specs, const std::vector<Tensor>& tensors)
      : specs_(specs), tensors_(tensors) {}
  const Tensor& operator[](std::string_view name) const;
  // The elements along `out` of one part, contiguous. Of a tensor that has such a dimension.
  Tensor part(std::string_view name, const LinearShape& shape, size_t part) const;

 private:
  size_t index_of(std::string_view name) const;

  const std::vector<LinearParameterSpec>& specs_;
  const std::vector<Tensor>& tensors_;
};

// What a linear has loaded, verified, on the CPU.
struct LoadedLinear {
  QuantizedWeight weight;
  Tensor input_scales;  // f32 [parts], of static activations, or NVFP4's G
};

// Whether no tile of 16 rows has rows of two parts.
bool parts_are_whole_tiles(const LinearShape& shape);
// The weight's tensors on the device; on a GPU in records, where `records` says so and the weight fits (kernels/weight_records.h).
QuantizedWeight on_device(Device device, const QuantizedWeight& weight, bool records);

class StoredMethod : public LinearMethod {
 public:
  explicit StoredMethod(const StoredLinear& stored, int64_t parts_per_order = 0)
      : stored_(stored), parts_per_order_(parts_per_order) {}
  // The tensors of parameters(), once filled.
  LoadedLinear load(const LinearShape& shape, const std::vector<Tensor>& tensors) const;
  const std::optional<QuantizationArgs>& activations() const { return stored_.scheme.input_activations; }
  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const final;
  void process_after_load(const OpContext& ctx, const LinearShape& shape,
                          std::vector<Tensor>& tensors) const final;
  void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
             const Tensor& x, const Tensor& out) const final;
  void apply_parts(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
                   size_t first, size_t count, const Tensor& x, const Tensor& out) const final;
#ifdef LADDER_HAS_CUDA
  bool takes_fused(const LinearShape& shape, const std::vector<Tensor>& tensors,
                   const FusedProduct& product) const final;
  void apply_fused(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
                   const FusedProduct& product) const final;
#endif

 protected:
  // The weight's; input_scale and bias come behind them.
  virtual std::vector<LinearParameterSpec> weight_tensors(const LinearShape& shape) const = 0;
  // Verified and unpacked, on the CPU. Where columns of x do not fill whole groups (act_order.h), `columns` has more entries
  // than x has columns, and -1 for none.
  virtual QuantizedWeight unpack(const LinearShape& shape, const StoredTensors& tensors) const = 0;

  const StoredLinear& stored() const {
    return stored_;
  }
  const QuantizationArgs& weights() const {
    return stored_.scheme.weights;
  }
  // quantized_linear_method()
  int64_t parts_per_order() const {
    return parts_per_order_;
  }

 private:
  bool has_input_scale() const;
  const char* input_scale_name() const;

  StoredLinear stored_;
  int64_t parts_per_order_;
};

}  // namespace ladder
