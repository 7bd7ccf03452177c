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

namespace ladder {

// y[m, out_features] = x[m, in_features] * weight[out_features, in_features]^T (+ bias), on this rank.
struct LinearShape {
  int64_t in_features = 0;
  int64_t out_features = 0;
  std::vector<int64_t>
      out_parts;  // of the merged parts (q, k, v; gate, up) on this rank; their sum: out_features
  bool bias = false;
  DType dtype = DType::f32;
};

// A parameter and the dimensions that are cut among the ranks. Such a dimension may have fewer elements than
// the layer has features, each then stands for as many neighbours: 8 for 4-bit values in 32-bit words, 128
// for the scales of groups of 128.
struct LinearParameterSpec {
  std::string name;  // "weight", "bias", "weight_scale", ...
  DType dtype = DType::f32;
  Shape shape;       // on this rank, all parts together
  int out_dim = -1;  // the dimension that follows out_features, -1: none
  int in_dim = -1;   // the dimension that follows in_features, -1: none
};

// The matrix [out_features, in_features] as it is, for kernels that fuse a product with what precedes or
// follows it (rows_stream.h).
struct DenseLinear {
  Tensor weight;  // undefined: the method keeps no such matrix
  Tensor bias;    // undefined: no bias
};

class LinearMethod {
 public:
  virtual ~LinearMethod() = default;
  virtual std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const = 0;
  // Once, after every parameter is filled; may repack in place or replace tensors, which are in the order of
  // parameters(). The default leaves them as the checkpoint has them.
  virtual void process_after_load(const OpContext&, const LinearShape&, std::vector<Tensor>&) const {}
  // out [m, out_features] = x [m, in_features] times the weight, plus the bias if the shape has one.
  virtual void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& parameters,
                     const Tensor& x, const Tensor& out) const = 0;
  // Where the parameters hold a dense matrix; fused kernels then use it instead of apply().
  virtual DenseLinear dense(const LinearShape&, const std::vector<Tensor>&) const { return {}; }
};

// One dense matrix [out_features, in_features] in f32, bf16 or f16, applied with the variants of matmul.h.
std::shared_ptr<const LinearMethod> unquantized_linear_method();

}  // namespace ladder
