#pragma once
// Task 1.4: linear layers under tensor parallelism (Megatron-LM: Shoeybi et al., 2019, arXiv 1909.08053).
//
//   ColumnParallelLinear        each rank owns some output features        no communication
//   MergedColumnParallelLinear  several of them in one matrix (gate + up)  no communication
//   QkvParallelLinear           whole query, key and value heads per rank  no communication
//   RowParallelLinear           each rank owns some input features         one all-reduce of partial results
//
// A column-parallel layer followed by a row-parallel one needs a single all-reduce for the pair. The four
// differ only in which rows and columns of the full matrix a rank owns, and that is data: Linear does the
// work for all of them, the subclasses only fill in LinearShards (linear_shards.h).
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/parameter.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/linear/linear_method.h"
#include "step1_layers/linear/linear_shards.h"

namespace ladder {

struct LinearOptions {
  DType dtype = DType::f32;
  bool bias = false;
  std::shared_ptr<const LinearMethod> method = nullptr;  // nullptr: unquantized_linear_method()
};

class Linear {
 public:
  // The parameters are "<name>.weight", "<name>.bias", ... as the method declares them, on ctx.device, for
  // this rank of tp_group(ctx); uninitialised until loaded. A parameter has one part per merged part, unless its
  // method says that it is the same for all of them.
  Linear(const OpContext& ctx, std::string name, LinearShards shards, const LinearOptions& options);
  Linear(Linear&&) = default;
  Linear& operator=(Linear&&) = default;

  // To be filled once each (Parameter::load takes the full checkpoint tensor of one part), then
  // process_after_load. The pointers live as long as the layer, also when it is moved.
  std::vector<Parameter*> parameters();
  void process_after_load(const OpContext& ctx);

  // out [m, out_features] = x [m, in_features] * weight^T (+ bias), where the sizes are this rank's. `out`
  // has the dtype of x, or is f32. Error: shapes or dtypes that do not fit.
  void forward(const OpContext& ctx, const Tensor& x, const Tensor& out) const;
  // Of a row-parallel layer only this rank's part of the sum over the ranks; else as forward(). Whoever calls it adds
  // the parts up, and may do more in the same call (Communicator::all_reduce_add_norm).
  void forward_partial(const OpContext& ctx, const Tensor& x, const Tensor& out) const;

  // As forward_partial(), of the merged parts [first, first + count) alone. Error: as LinearMethod::apply_parts.
  void forward_parts(const OpContext& ctx, size_t first, size_t count, const Tensor& x,
                     const Tensor& out) const;

  // As forward_partial(), together with what stands around it (LinearMethod::apply_fused), where takes_fused() says so.
  // Of a row-parallel layer that is one rank's alone.
  bool takes_fused(const FusedProduct& product) const;
  void forward_fused(const OpContext& ctx, const FusedProduct& product) const;

  // Undefined: there is no dense matrix.
  Tensor dense_weight() const { return method_->dense_weight(tensors_); }

  const std::string& name() const { return name_; }
  int64_t in_features() const { return shape_.in_features(); }    // on this rank
  int64_t out_features() const { return shape_.out_features(); }  // on this rank, all parts
  const std::vector<FeatureRange>& out_parts() const { return shape_.out; }
  int64_t nbytes() const;  // this rank's memory for parameters

 private:
  LinearShape shape_of_product(const OpContext& ctx) const;

  std::string name_;
  LinearShape shape_;
  bool reduce_;  // as LinearShards has it
  std::shared_ptr<const LinearMethod> method_;
  std::vector<Parameter> parameters_;
  std::vector<Tensor> tensors_;  // the parameters' memory, as the method wants it
};

// weight [out_features, in_features], rows split evenly. Error: tp does not divide out_features.
class ColumnParallelLinear : public Linear {
 public:
  ColumnParallelLinear(const OpContext& ctx, const std::string& name, int64_t in_features,
                       int64_t out_features, const LinearOptions& options);
};

// Matrices of the same input side by side, each split evenly by rows: part i is the full tensor
// [out_sizes[i], in_features], and a rank's output row is [part 0's shard, part 1's shard, ...].
class MergedColumnParallelLinear : public Linear {
 public:
  MergedColumnParallelLinear(const OpContext& ctx, const std::string& name, int64_t in_features,
                             const std::vector<int64_t>& out_sizes, const LinearOptions& options);
};

// Parts 0, 1, 2: q [num_heads * head_dim, in], k and v [num_kv_heads * head_dim, in]. A rank owns whole
// heads. Where there are fewer KV heads than ranks, tp / num_kv_heads neighbouring ranks hold a copy of the
// same one, the one that their query heads use. Error: tp does not divide num_heads; tp and num_kv_heads do
// not divide one another.
class QkvParallelLinear : public Linear {
 public:
  QkvParallelLinear(const OpContext& ctx, const std::string& name, int64_t in_features, int64_t num_heads,
                    int64_t num_kv_heads, int64_t head_dim, const LinearOptions& options);

  int64_t num_heads() const { return out_parts()[0].size / head_dim_; }     // on this rank
  int64_t num_kv_heads() const { return out_parts()[1].size / head_dim_; }  // on this rank
  int64_t head_dim() const { return head_dim_; }

 private:
  int64_t head_dim_;
};

// weight [out_features, in_features], columns split evenly: x is this rank's share [m, in_features / tp], out
// is [m, out_features], the sum over the ranks on each of them. The bias is added by rank 0 alone.
class RowParallelLinear : public Linear {
 public:
  RowParallelLinear(const OpContext& ctx, const std::string& name, int64_t in_features, int64_t out_features,
                    const LinearOptions& options);
};

}  // namespace ladder
