#include "step8_advanced/quantization/linear/two_of_four.h"

#include <cstring>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

constexpr int64_t kFour = 4, kKept = 2, kBits = 8;

LinearDimension kept_along_in() {
  return LinearDimension::along_in(kFour, kKept);
}
LinearDimension bytes_along_in() {
  return LinearDimension::along_in(kBits, 1);
}

class TwoOfFourMethod final : public LinearMethod {
 public:
  TwoOfFourMethod() : dense_(unquantized_linear_method()) {}

  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const override {
    std::vector<LinearParameterSpec> specs = two_of_four_tensors(shape.dtype, shape);
    if (shape.bias) specs.push_back({"bias", shape.dtype, {LinearDimension::along_out()}});
    return specs;
  }
  void process_after_load(const OpContext& ctx, const LinearShape& shape,
                          std::vector<Tensor>& tensors) const override {
    std::vector<Tensor> on_cpu;
    for (const Tensor& tensor : tensors)
      on_cpu.push_back(tensor.device().is_cpu() ? tensor : tensor.to(Device{}));
    const std::vector<LinearParameterSpec> specs = parameters(shape);
    const Tensor weight = expanded_two_of_four(shape, StoredTensors(specs, on_cpu));
    std::vector<Tensor> dense = {ctx.device.is_cpu() ? weight : weight.to(ctx.device)};
    if (shape.bias) dense.push_back(tensors.back());
    tensors = std::move(dense);
    dense_->process_after_load(ctx, shape, tensors);
  }
  void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
             const Tensor& x, const Tensor& out) const override {
    dense_->apply(ctx, shape, tensors, x, out);
  }
  void apply_parts(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
                   size_t first, size_t count, const Tensor& x, const Tensor& out) const override {
    dense_->apply_parts(ctx, shape, tensors, first, count, x, out);
  }
  bool takes_fused(const LinearShape& shape, const std::vector<Tensor>& tensors,
                   const FusedProduct& product) const override {
    return dense_->takes_fused(shape, tensors, product);
  }
  void apply_fused(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
                   const FusedProduct& product) const override {
    dense_->apply_fused(ctx, shape, tensors, product);
  }
  Tensor dense_weight(const std::vector<Tensor>& tensors) const override {
    return dense_->dense_weight(tensors);
  }

 private:
  std::shared_ptr<const LinearMethod> dense_;
};

}  // namespace

std::vector<LinearParameterSpec> two_of_four_tensors(DType dtype, const LinearShape& shape) {
  LADDER_CHECK(shape.in.full % kFour == 0,
               "sparse-24-bitmask: {} input features, expected a multiple of 4: two of every four are kept",
               shape.in.full);
  return {{"compressed", dtype, {LinearDimension::along_out(), kept_along_in()}},
          {"bitmask", DType::u8, {LinearDimension::along_out(), bytes_along_in()}},
          {"shape",
           DType::i64,
           {LinearDimension::per_part(), LinearDimension::of_size(2), LinearDimension::of_size(1)}}};
}

Tensor expanded_two_of_four(const LinearShape& shape, const StoredTensors& tensors) {
  for (size_t part = 0; part < shape.out.size(); ++part) {
    const int64_t* found = tensors["shape"].data<int64_t>() + 2 * part;
    LADDER_CHECK(found[0] == shape.out[part].full && found[1] == shape.in.full,
                 "shape of part {} is [{}, {}], expected [{}, {}]", part, found[0], found[1],
                 shape.out[part].full, shape.in.full);
  }
  // Whole fours and whole bytes of columns stand behind the rank's own.
  const FeatureRange fours = kept_along_in().features_behind(shape.in);
  const FeatureRange bytes = bytes_along_in().features_behind(shape.in);
  const Tensor &compressed = tensors["compressed"], &bitmask = tensors["bitmask"];
  const int64_t rows = bitmask.dim(0), element = dtype_size(compressed.dtype());
  const Tensor weight = Tensor::zeros({rows, shape.in.size}, compressed.dtype());
  const auto* kept = static_cast<const char*>(compressed.raw());
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* mask = bitmask.data<uint8_t>() + row * bitmask.dim(1);
    const auto is_kept = [&](int64_t column) {
      return (mask[(column - bytes.begin) / kBits] >> (column - bytes.begin) % kBits & 1) != 0;
    };
    for (int64_t four = fours.begin; four < fours.begin + fours.size; four += kFour) {
      int64_t count = 0;
      for (int64_t column = four; column < four + kFour; ++column) {
        if (!is_kept(column)) continue;
        const char* value = kept + count * element;
        if (++count <= kKept && column >= shape.in.begin && column < shape.in.begin + shape.in.size)
          std::memcpy(
              static_cast<char*>(weight.raw()) + (row * shape.in.size + column - shape.in.begin) * element,
              value, static_cast<size_t>(element));
      }
      LADDER_CHECK(count == kKept, "bitmask keeps {} of columns {} to {} in row {}, expected 2 of every four",
                   count, four, four + kFour - 1, row);
      kept += kKept * element;
    }
    const bool is_last = bytes.begin + bytes.size == shape.in.full;
    if (const int64_t rest = shape.in.full % kBits; is_last && rest != 0)
      LADDER_CHECK(mask[bitmask.dim(1) - 1] >> rest == 0, "bitmask has bits behind the {} columns in row {}",
                   shape.in.full, row);
  }
  return weight;
}

std::shared_ptr<const LinearMethod> two_of_four_linear_method() {
  return std::make_shared<const TwoOfFourMethod>();
}

}  // namespace ladder
