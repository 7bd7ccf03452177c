#pragma once
// Task 1.4: how a linear layer stores and applies its weight.
//
// A LinearMethod declares the parameters that a linear of a given shape has and multiplies by them. The plain
// one keeps one dense matrix; quantized ones (step 8) declare packed words, scales and zero points instead,
// and nothing above this interface changes.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/linear/fused_product.h"
#include "step1_layers/linear/linear_shards.h"

namespace ladder {

// y[m, out_features] = x[m, in_features] * weight[out_features, in_features]^T (+ bias), on this rank, and which of
// the full matrix's rows and columns these are.
struct LinearShape {
  FeatureRange in;
  std::vector<FeatureRange> out;  // one per merged part (q, k, v; gate, up), whose rows lie side by side
  bool bias = false;
  DType dtype = DType::f32;  // the model's

  int64_t in_features() const { return in.size; }
  int64_t out_features() const;  // of all parts
};

// One dimension of a parameter. What follows the layer's features has `elements` for every `features` neighbours: 1
// for 128 where groups of 128 share a scale, 3 words for 32 values of 3 bits; a last group may be short. A rank has the
// elements that its features touch (elements_of), so one between two ranks is on both.
struct LinearDimension {
  enum class Follows : uint8_t {
    nothing,  // `elements`, the same on every rank and for every part
    in,
    out,   // part after part; each part has whole elements of its own
    parts  // one element per merged part. The checkpoint's tensor of a part lacks this dimension, or has 1
  };
  Follows follows = Follows::nothing;
  int64_t features = 1, elements = 1;

  static LinearDimension of_size(int64_t size) { return {Follows::nothing, 1, size}; }
  static LinearDimension along_in(int64_t features = 1, int64_t elements = 1) {
    return {Follows::in, features, elements};
  }
  static LinearDimension along_out(int64_t features = 1, int64_t elements = 1) {
    return {Follows::out, features, elements};
  }
  static LinearDimension per_part() { return {Follows::parts}; }

  // `range` of the full features, counted in elements; and all features that stand behind these, of which those of
  // `range` are a part: a rank's first group may begin before its first feature.
  FeatureRange elements_of(const FeatureRange& range) const;
  FeatureRange features_behind(const FeatureRange& range) const;
  // Elements on this rank, of all parts; and how many of `out` lie before those of `part`.
  int64_t size(const LinearShape& shape) const;
  int64_t begin_of_part(const LinearShape& shape, size_t part) const;
};

// A parameter of a linear. It has a checkpoint tensor per merged part if a dimension follows `out` or `parts`, else
// one for all.
struct LinearParameterSpec {
  std::string name;  // "weight", "bias", "weight_scale", ...
  DType dtype = DType::f32;
  std::vector<LinearDimension> dims;

  Shape shape(const LinearShape& shape) const;  // on this rank, all parts together
  bool has_parts() const;
};

class LinearMethod {
 public:
  virtual ~LinearMethod() = default;
  virtual std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const = 0;
  // Once, after every parameter is filled; may repack in place or replace tensors, which are in the order of
  // parameters(), by others, undefined ones among them. The default leaves them as the checkpoint has them. Error: the
  // numbers cannot be; it names the parameter, and the linear puts its own name before that.
  virtual void process_after_load(const OpContext&, const LinearShape&, std::vector<Tensor>&) const {}
  // out [m, out_features] = x [m, in_features] times the weight, plus the bias if the shape has one.
  virtual void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& parameters,
                     const Tensor& x, const Tensor& out) const = 0;
  // The same of the merged parts [first, first + count) alone: out [m, their features]. For experts, which are parts of
  // one linear, of which a token needs few. The default knows no parts: Error.
  virtual void apply_parts(const OpContext& ctx, const LinearShape& shape,
                           const std::vector<Tensor>& parameters, size_t first, size_t count, const Tensor& x,
                           const Tensor& out) const;
  // apply() together with what FusedProduct asks for around it, on a GPU of architecture 90 or later, where takes_fused()
  // says so. The default takes nothing: then whoever asks runs the operators one after the other.
  virtual bool takes_fused(const LinearShape&, const std::vector<Tensor>&, const FusedProduct&) const {
    return false;
  }
  virtual void apply_fused(const OpContext& ctx, const LinearShape& shape,
                           const std::vector<Tensor>& parameters, const FusedProduct& product) const;
  // The matrix [out_features, in_features] as it is. Undefined: the method keeps no such matrix.
  virtual Tensor dense_weight(const std::vector<Tensor>&) const { return {}; }
};

// One dense matrix [out_features, in_features] in f32, bf16 or f16, applied with the variants of matmul.h.
std::shared_ptr<const LinearMethod> unquantized_linear_method();

}  // namespace ladder
