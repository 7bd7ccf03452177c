#include "step1_layers/linear/linear.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/linear/load_shard.h"

namespace ladder {

namespace {

// A range counted in features, in elements of a dimension that holds `group` of them in each: packed words,
// or the scales of groups.
FeatureRange in_elements(const std::string& what, FeatureRange range, int64_t group) {
  LADDER_CHECK(range.full % group == 0 && range.begin % group == 0 && range.size % group == 0,
               "{}: features {}..{} of {} cannot be cut between groups of {}", what, range.begin,
               range.begin + range.size, range.full, group);
  return {.full = range.full / group, .begin = range.begin / group, .size = range.size / group};
}

// How messages call one part of a merged parameter.
std::string part_name(const std::string& name, int part, const LinearShards& shards) {
  return shards.out.size() > 1 ? fmt::format("{} (part {})", name, part) : name;
}

// The parameter that a method declared, with the rule that fills this rank's part of it.
Parameter make_parameter(const OpContext& ctx, const std::string& name, const LinearParameterSpec& spec,
                         const LinearShards& shards, const LinearShape& shape) {
  // Features per element: what the method declared has as many fewer elements than the layer has features.
  const auto group = [&](int64_t features, int dim) {
    return dim < 0 ? 1 : std::max<int64_t>(features / std::max<int64_t>(spec.shape[dim], 1), 1);
  };
  const int64_t in_group = group(shape.in_features, spec.in_dim);
  const int64_t out_group = group(shape.out_features, spec.out_dim);
  Parameter parameter;
  parameter.name = name + "." + spec.name;
  parameter.tensor = Tensor::empty(spec.shape, spec.dtype, ctx.device);
  parameter.num_parts = spec.out_dim < 0 ? 1 : static_cast<int>(shards.out.size());
  // Part `part` of the checkpoint, cut to this rank's share, goes beside the other parts of the one matrix.
  parameter.load_part = [what = parameter.name, tensor = parameter.tensor, spec, shards, in_group, out_group](
                            const Tensor& checkpoint, int part) {
    ShardWindow window{.full = spec.shape};
    Tensor destination = tensor;
    for (int i = 0; i < spec.shape.ndim(); ++i) {
      FeatureRange range{.full = spec.shape[i], .begin = 0, .size = spec.shape[i]};
      if (i == spec.in_dim) range = in_elements(what, shards.in, in_group);
      if (i == spec.out_dim) {
        int64_t row = 0;
        for (int before = 0; before < part; ++before) row += shards.out[static_cast<size_t>(before)].size;
        range = in_elements(what, shards.out[static_cast<size_t>(part)], out_group);
        destination = destination.narrow(i, row / out_group, range.size);
      }
      window.full[i] = range.full;
      window.begin[i] = range.begin;
      window.size[i] = range.size;
    }
    load_shard(part_name(what, part, shards), checkpoint, window, destination);
  };
  return parameter;
}

}  // namespace

void Linear::forward(const OpContext& ctx, const Tensor& x, const Tensor& out) const {
  forward_partial(ctx, x, out);
  if (shards_.reduce) tp_group(ctx).all_reduce(ctx, out);
}

void Linear::forward_partial(const OpContext& ctx, const Tensor& x, const Tensor& out) const {
  if (!shards_.reduce) {
    method_->apply(ctx, shape_, tensors_, x, out);
    return;
  }
  // Every rank's result is a part of a sum, so only one of them may bring the bias.
  LinearShape partial = shape_;
  partial.bias = shape_.bias && tp_group(ctx).rank() == 0;
  method_->apply(ctx, partial, tensors_, x, out);
}

Linear::Linear(const OpContext& ctx, std::string name, LinearShards shards, const LinearOptions& options)
    : name_(std::move(name)),
      shards_(std::move(shards)),
      method_(options.method ? options.method : unquantized_linear_method()) {
  shape_.in_features = shards_.in.size;
  for (const FeatureRange& part : shards_.out) shape_.out_parts.push_back(part.size);
  shape_.out_features = std::accumulate(shape_.out_parts.begin(), shape_.out_parts.end(), int64_t{0});
  shape_.bias = options.bias;
  shape_.dtype = options.dtype;
  for (const LinearParameterSpec& spec : method_->parameters(shape_)) {
    parameters_.push_back(make_parameter(ctx, name_, spec, shards_, shape_));
    tensors_.push_back(parameters_.back().tensor);
  }
}

std::vector<Parameter*> Linear::parameters() {
  std::vector<Parameter*> pointers;
  for (Parameter& parameter : parameters_) pointers.push_back(&parameter);
  return pointers;
}

void Linear::process_after_load(const OpContext& ctx) {
  method_->process_after_load(ctx, shape_, tensors_);
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
  for (const Tensor& tensor : tensors_) bytes += tensor.nbytes();
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
