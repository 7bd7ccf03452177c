// The plain method: one dense matrix, as the checkpoint stores it.
#include "step1_layers/linear/linear_method.h"

#include <algorithm>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step1_layers/linear/matmul.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/linear/rows_stream.h"
#endif

namespace ladder {

int64_t LinearShape::out_features() const {
  return std::accumulate(out.begin(), out.end(), int64_t{0},
                         [](int64_t sum, const FeatureRange& part) { return sum + part.size; });
}

FeatureRange LinearDimension::elements_of(const FeatureRange& range) const {
  // An element for each: asked for every expert of a step, of linears with hundreds of parts.
  if (features == 1 && elements == 1) return range;
  const FeatureRange whole = features_behind(range);
  const auto up = [&](int64_t feature) { return (feature * elements + features - 1) / features; };
  const int64_t begin = up(whole.begin);
  return {.full = up(whole.full), .begin = begin, .size = up(whole.begin + whole.size) - begin};
}

FeatureRange LinearDimension::features_behind(const FeatureRange& range) const {
  const int64_t begin = range.begin / features * features;
  const int64_t end = (range.begin + range.size + features - 1) / features * features;
  return {.full = range.full, .begin = begin, .size = std::min(end, range.full) - begin};
}

int64_t LinearDimension::begin_of_part(const LinearShape& shape, size_t part) const {
  int64_t begin = 0;
  for (size_t before = 0; before < part; ++before) begin += elements_of(shape.out[before]).size;
  return begin;
}

int64_t LinearDimension::size(const LinearShape& shape) const {
  switch (follows) {
    case Follows::in:
      return elements_of(shape.in).size;
    case Follows::out:
      return begin_of_part(shape, shape.out.size());
    case Follows::parts:
      return std::ssize(shape.out);
    case Follows::nothing:
      break;
  }
  return elements;
}

Shape LinearParameterSpec::shape(const LinearShape& shape) const {
  std::vector<int64_t> sizes;
  for (const LinearDimension& dim : dims) sizes.push_back(dim.size(shape));
  return Shape(sizes);
}

bool LinearParameterSpec::has_parts() const {
  return std::any_of(dims.begin(), dims.end(), [](const LinearDimension& dim) {
    return dim.follows == LinearDimension::Follows::out || dim.follows == LinearDimension::Follows::parts;
  });
}

void LinearMethod::apply_parts(const OpContext&, const LinearShape&, const std::vector<Tensor>&, size_t,
                               size_t, const Tensor&, const Tensor&) const {
  fail("this linear's parts can only be multiplied all together");
}

void LinearMethod::apply_fused(const OpContext&, const LinearShape&, const std::vector<Tensor>&,
                               const FusedProduct&) const {
  fail("this linear's product cannot be fused with what stands around it");
}

namespace {

class UnquantizedLinearMethod final : public LinearMethod {
 public:
  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const override {
    std::vector<LinearParameterSpec> specs;
    specs.push_back({"weight", shape.dtype, {LinearDimension::along_out(), LinearDimension::along_in()}});
    if (shape.bias) specs.push_back({"bias", shape.dtype, {LinearDimension::along_out()}});
    return specs;
  }

  void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& parameters,
             const Tensor& x, const Tensor& out) const override {
    matmul(ctx, x, parameters[0], shape.bias ? parameters[1] : Tensor(), out);
  }

  void apply_parts(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& parameters,
                   size_t first, size_t count, const Tensor& x, const Tensor& out) const override {
    const LinearDimension out_rows = LinearDimension::along_out();
    const int64_t begin = out_rows.begin_of_part(shape, first);
    const int64_t size = out_rows.begin_of_part(shape, first + count) - begin;
    const auto rows = [&](const Tensor& tensor) { return tensor.narrow(0, begin, size); };
    matmul(ctx, x, rows(parameters[0]), shape.bias ? rows(parameters[1]) : Tensor(), out);
  }

#ifdef LADDER_HAS_CUDA
  bool takes_fused(const LinearShape& shape, const std::vector<Tensor>& parameters,
                   const FusedProduct& product) const override {
    return rows_stream_takes(stream_args(shape, parameters, product));
  }
  void apply_fused(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& parameters,
                   const FusedProduct& product) const override {
    rows_stream(ctx, stream_args(shape, parameters, product));
  }
#endif

  Tensor dense_weight(const std::vector<Tensor>& parameters) const override {
    return parameters[0];
  }

#ifdef LADDER_HAS_CUDA
 private:
  static RowsStreamArgs stream_args(const LinearShape& shape, const std::vector<Tensor>& parameters,
                                    const FusedProduct& product) {
    return {product, parameters[0], shape.bias ? parameters[1] : Tensor()};
  }
#endif
};

}  // namespace

std::shared_ptr<const LinearMethod> unquantized_linear_method() {
  static const auto method = std::make_shared<const UnquantizedLinearMethod>();
  return method;
}

}  // namespace ladder
