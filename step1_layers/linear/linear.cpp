#include "step1_layers/linear/linear.h"

#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/linear/load_shard.h"

namespace ladder {

namespace {

// How messages call one part of a merged parameter.
std::string part_name(const std::string& name, int part, const LinearShape& shape) {
  return shape.out.size() > 1 ? fmt::format("{} (part {})", name, part) : name;
}

// With a dimension of 1 at `dim` if it has all `dims` but that.
Tensor with_one(const Tensor& tensor, size_t dim, size_t dims) {
  if (static_cast<size_t>(tensor.ndim()) + 1 != dims) return tensor;
  std::vector<int64_t> sizes(tensor.shape().dims().begin(), tensor.shape().dims().end());
  sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(dim), 1);
  return tensor.view(Shape(sizes));
}

// Part `part` of the checkpoint, cut to this rank's share, goes beside the other parts of the one tensor.
void load_parameter(const std::string& what, Tensor checkpoint, const LinearParameterSpec& spec,
                    const LinearShape& shape, size_t part, Tensor destination) {
  using Follows = LinearDimension::Follows;
  ShardWindow window{.full = spec.shape(shape)};
  for (size_t i = 0; i < spec.dims.size(); ++i) {
    const LinearDimension& dim = spec.dims[i];
    const int at = static_cast<int>(i);
    FeatureRange range{.full = dim.elements, .begin = 0, .size = dim.elements};
    if (dim.follows == Follows::in) range = dim.elements_of(shape.in);
    if (dim.follows == Follows::out) {
      range = dim.elements_of(shape.out[part]);
      destination = destination.narrow(at, dim.begin_of_part(shape, part), range.size);
    }
    if (dim.follows == Follows::parts) {
      checkpoint = with_one(checkpoint, i, spec.dims.size());
      destination = destination.narrow(at, static_cast<int64_t>(part), 1);
    }
    window.full[at] = range.full;
    window.begin[i] = range.begin;
    window.size[i] = range.size;
  }
  load_shard(what, checkpoint, window, destination);
}

// The parameter that a method declared, with the rule that fills this rank's part of it.
Parameter make_parameter(const OpContext& ctx, const std::string& name, const LinearParameterSpec& spec,
                         const LinearShape& shape) {
  Parameter parameter;
  parameter.name = name + "." + spec.name;
  parameter.tensor = Tensor::empty(spec.shape(shape), spec.dtype, ctx.device);
  parameter.num_parts = spec.has_parts() ? static_cast<int>(shape.out.size()) : 1;
  parameter.load_part = [what = parameter.name, tensor = parameter.tensor, spec, shape](
                            const Tensor& checkpoint, int part) {
    load_parameter(part_name(what, part, shape), checkpoint, spec, shape, static_cast<size_t>(part), tensor);
  };
  return parameter;
}

// Error beginning with the name: sizes that the method's tensors cannot have.
std::vector<LinearParameterSpec> parameters_of(const LinearMethod& method, const LinearShape& shape,
                                               const std::string& name) {
  try {
    return method.parameters(shape);
  } catch (const Error& error) {
    fail("{}: {}", name, error.what());
  }
}

}  // namespace

void Linear::forward(const OpContext& ctx, const Tensor& x, const Tensor& out) const {
  forward_partial(ctx, x, out);
  if (reduce_) tp_group(ctx).all_reduce(ctx, out);
}

void Linear::forward_partial(const OpContext& ctx, const Tensor& x, const Tensor& out) const {
  if (shape_.bias && reduce_) return method_->apply(ctx, shape_of_product(ctx), tensors_, x, out);
  method_->apply(ctx, shape_, tensors_, x, out);
}

LinearShape Linear::shape_of_product(const OpContext& ctx) const {
  // Every rank's result is a part of a sum, so only one of them may bring the bias.
  LinearShape shape = shape_;
  shape.bias = tp_group(ctx).rank() == 0;
  return shape;
}

void Linear::forward_parts(const OpContext& ctx, size_t first, size_t count, const Tensor& x,
                           const Tensor& out) const {
  if (shape_.bias && reduce_)
    return method_->apply_parts(ctx, shape_of_product(ctx), tensors_, first, count, x, out);
  method_->apply_parts(ctx, shape_, tensors_, first, count, x, out);
}

bool Linear::takes_fused(const FusedProduct& product) const {
  return method_->takes_fused(shape_, tensors_, product);
}

void Linear::forward_fused(const OpContext& ctx, const FusedProduct& product) const {
  method_->apply_fused(ctx, shape_, tensors_, product);
}

Linear::Linear(const OpContext& ctx, std::string name, LinearShards shards, const LinearOptions& options)
    : name_(std::move(name)),
      shape_{.in = shards.in, .out = std::move(shards.out), .bias = options.bias, .dtype = options.dtype},
      reduce_(shards.reduce),
      method_(options.method ? options.method : unquantized_linear_method()) {
  for (const LinearParameterSpec& spec : parameters_of(*method_, shape_, name_)) {
    parameters_.push_back(make_parameter(ctx, name_, spec, shape_));
    tensors_.push_back(parameters_.back().tensor);
  }
}

std::vector<Parameter*> Linear::parameters() {
  std::vector<Parameter*> pointers;
  for (Parameter& parameter : parameters_) pointers.push_back(&parameter);
  return pointers;
}

void Linear::process_after_load(const OpContext& ctx) {
  try {
    method_->process_after_load(ctx, shape_, tensors_);
  } catch (const Error& error) {
    fail("{}: {}", name_, error.what());
  }
  // A method may have put repacked tensors in place of the loaded ones: let go of those.
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor = i < tensors_.size() ? tensors_[i] : Tensor();
    parameters_[i].load_part = [name = parameters_[i].name](const Tensor&, int) {
      fail("{} was loaded and packed already", name);
    };
  }
}

int64_t Linear::nbytes() const {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors_)
    if (tensor.defined()) bytes += tensor.nbytes();
  return bytes;
}

ColumnParallelLinear::ColumnParallelLinear(const OpContext& ctx, const std::string& name, int64_t in_features,
                                           int64_t out_features, const LinearOptions& options)
    : Linear(ctx, name, column_shards(ctx, name, in_features, {out_features}), options) {}

MergedColumnParallelLinear::MergedColumnParallelLinear(const OpContext& ctx, const std::string& name,
                                                       int64_t in_features,
                                                       const std::vector<int64_t>& out_sizes,
                                                       const LinearOptions& options)
    : Linear(ctx, name, column_shards(ctx, name, in_features, out_sizes), options) {}

QkvParallelLinear::QkvParallelLinear(const OpContext& ctx, const std::string& name, int64_t in_features,
                                     int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                     const LinearOptions& options)
    : Linear(ctx, name, qkv_shards(ctx, name, in_features, num_heads, num_kv_heads, head_dim), options),
      head_dim_(head_dim) {}

RowParallelLinear::RowParallelLinear(const OpContext& ctx, const std::string& name, int64_t in_features,
                                     int64_t out_features, const LinearOptions& options)
    : Linear(ctx, name, row_shards(ctx, name, in_features, out_features), options) {}

}  // namespace ladder
