#include "step1_layers/linear/linear.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/linear/load_shard.h"

namespace ladder {

namespace {

FeatureRange whole(int64_t full) {
  return {.full = full, .begin = 0, .size = full};
}

// A range counted in features, in elements of a dimension that packs `packing` features into one.
FeatureRange packed(const std::string& what, FeatureRange range, int64_t packing) {
  LADDER_CHECK(range.full % packing == 0 && range.begin % packing == 0 && range.size % packing == 0,
               "{}: features {}..{} of {} cannot be cut between groups of {}", what, range.begin,
               range.begin + range.size, range.full, packing);
  return {.full = range.full / packing, .begin = range.begin / packing, .size = range.size / packing};
}

// How messages call one part of a merged parameter.
std::string part_name(const std::string& name, int part, const LinearShards& shards) {
  return shards.out.size() > 1 ? fmt::format("{} (part {})", name, part) : name;
}

// The parameter that a method declared, with the rule that fills this rank's part of it.
Parameter make_parameter(const OpContext& ctx, const std::string& name, const LinearParameterSpec& spec,
                         const LinearShards& shards) {
  Parameter parameter;
  parameter.name = name + "." + spec.name;
  parameter.tensor = Tensor::empty(spec.shape, spec.dtype, ctx.device);
  parameter.num_parts = spec.out_dim < 0 ? 1 : static_cast<int>(shards.out.size());
  parameter.load_part = [what = parameter.name, tensor = parameter.tensor, spec, shards](
                            const Tensor& checkpoint, int part) {
    ShardWindow window{.full = spec.shape};
    Tensor destination = tensor;
    for (int i = 0; i < spec.shape.ndim(); ++i) {
      FeatureRange range = whole(spec.shape[i]);
      if (i == spec.in_dim) range = packed(what, shards.in, spec.in_packing);
      if (i == spec.out_dim) {
        int64_t row = 0;
        for (int before = 0; before < part; ++before) row += shards.out[static_cast<size_t>(before)].size;
        range = packed(what, shards.out[static_cast<size_t>(part)], spec.out_packing);
        destination = destination.narrow(i, row / spec.out_packing, range.size);
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

// >>> task 1.4: which rows and columns a rank owns, and the sum over the ranks
FeatureRange even_shard(const std::string& what, int64_t full, int rank, int size) {
  LADDER_CHECK(full > 0 && full % size == 0, "{}: {} does not divide by {} tensor-parallel ranks", what, full,
               size);
  const int64_t share = full / size;
  return {.full = full, .begin = rank * share, .size = share};
}

namespace {

FeatureRange even_shard(const OpContext& ctx, const std::string& what, int64_t full) {
  Communicator& tp = tp_group(ctx);
  return ladder::even_shard(what, full, tp.rank(), tp.size());
}

LinearShards merged_column_shards(const OpContext& ctx, const std::string& name, int64_t in_features,
                                  const std::vector<int64_t>& out_sizes) {
  LinearShards shards{.in = whole(in_features)};
  for (int64_t size : out_sizes)
    shards.out.push_back(even_shard(ctx, name + ": the number of output features", size));
  return shards;
}

LinearShards qkv_shards(const OpContext& ctx, const std::string& name, int64_t in_features, int64_t num_heads,
                        int64_t num_kv_heads, int64_t head_dim) {
  Communicator& tp = tp_group(ctx);
  LADDER_CHECK(num_heads > 0 && num_kv_heads > 0 && head_dim > 0 && num_heads % num_kv_heads == 0,
               "{}: {} query heads cannot share {} key and value heads", name, num_heads, num_kv_heads);
  FeatureRange q = even_shard(ctx, name + ": the number of query heads", num_heads);
  // Fewer KV heads than ranks: each head is held by a run of neighbouring ranks, as if there were
  // num_kv_heads ranks.
  LADDER_CHECK(tp.size() <= num_kv_heads || tp.size() % num_kv_heads == 0,
               "{}: {} tensor-parallel ranks cannot hold equal copies of {} key and value heads", name,
               tp.size(), num_kv_heads);
  const int64_t copies = std::max<int64_t>(tp.size() / num_kv_heads, 1);
  FeatureRange kv =
      ladder::even_shard(name + ": the number of key and value heads", num_kv_heads,
                         static_cast<int>(tp.rank() / copies), static_cast<int>(tp.size() / copies));
  LinearShards shards{.in = whole(in_features)};
  for (FeatureRange heads : {q, kv, kv})
    shards.out.push_back(
        {.full = heads.full * head_dim, .begin = heads.begin * head_dim, .size = heads.size * head_dim});
  return shards;
}

}  // namespace

void Linear::forward(const OpContext& ctx, const Tensor& x, const Tensor& out) const {
  if (!shards_.reduce) {
    method_->apply(ctx, shape_, tensors_, x, out);
    return;
  }
  // Every rank's result is a part of a sum, so only one of them may bring the bias.
  LinearShape partial = shape_;
  partial.bias = shape_.bias && tp_group(ctx).rank() == 0;
  method_->apply(ctx, partial, tensors_, x, out);
  tp_group(ctx).all_reduce(ctx, out);
}
// <<< task 1.4

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
    parameters_.push_back(make_parameter(ctx, name_, spec, shards_));
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
    : Linear(ctx, name, merged_column_shards(ctx, name, in_features, {out_features}), options) {}

MergedColumnParallelLinear::MergedColumnParallelLinear(const OpContext& ctx, const std::string& name,
                                                       int64_t in_features,
                                                       const std::vector<int64_t>& out_sizes,
                                                       const LinearOptions& options)
    : Linear(ctx, name, merged_column_shards(ctx, name, in_features, out_sizes), options) {}

QkvParallelLinear::QkvParallelLinear(const OpContext& ctx, const std::string& name, int64_t in_features,
                                     int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                     const LinearOptions& options)
    : Linear(ctx, name, qkv_shards(ctx, name, in_features, num_heads, num_kv_heads, head_dim), options),
      head_dim_(head_dim) {}

RowParallelLinear::RowParallelLinear(const OpContext& ctx, const std::string& name, int64_t in_features,
                                     int64_t out_features, const LinearOptions& options)
    : Linear(ctx, name,
             {.in = even_shard(ctx, name + ": the number of input features", in_features),
              .out = {whole(out_features)},
              .reduce = true},
             options) {}

}  // namespace ladder
