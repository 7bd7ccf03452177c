#include "step8_advanced/quantization/linear/two_of_four.h"

#include <cstring>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/kernels/sparse_matmul.h"
#ifdef LADDER_HAS_CUDA
#include "step8_advanced/quantization/kernels/sparse_matmul_cuda.h"
#endif

namespace ladder {
namespace {

constexpr int64_t kFour = 4, kKept = 2, kBits = 8;
constexpr int kSparseArch = 90;  // that has the kernels for more than a row

LinearDimension kept_along_in() {
  return LinearDimension::along_in(kFour, kKept);
}
LinearDimension bytes_along_in() {
  return LinearDimension::along_in(kBits, 1);
}

// Whether a rank's weight stays sparse: on a GPU whose kernels take it, in 16 bits, of whole packs of columns; and so that any parts of
// it begin with a record (apply_parts).
bool stays_sparse(const OpContext& ctx, const LinearShape& shape) {
  if (!keeps_two_of_four(ctx)) return false;
  if (dtype_size(shape.dtype) != 2 || shape.in_features() % 8 != 0) return false;
  for (size_t part = 0; part + 1 < shape.out.size(); ++part)
    if (shape.out[part].size % kSparseRows != 0) return false;
  return true;
}

// What process_after_load leaves: the dense matrix or the records, then the bias.
bool is_sparse(const std::vector<Tensor>& tensors) {
  return tensors[0].dtype() == DType::u8;
}
Tensor bias_of(const LinearShape& shape, const std::vector<Tensor>& tensors) {
  return shape.bias ? tensors[1] : Tensor();
}
SparseWeight weight_of(const LinearShape& shape, const std::vector<Tensor>& tensors) {
  return {shape.dtype, shape.out_features(), shape.in_features(), tensors[0]};
}

// Of each four the two smallest become 0, of equal ones the first.
void drop_the_smallest(const Tensor& weight) {
  auto* elements = static_cast<uint16_t*>(weight.raw());
  parallel_for(weight.numel() / kFour, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t four = begin; four < end; ++four) {
      uint16_t* of = elements + four * kFour;
      // Numbers of 16 bits without their sign are in the order of their bits. No branch: which are the smallest is random.
      const auto size = [&](int i) { return of[i] & 0x7fff; };
      bool dropped[kFour];
      for (int i = 0; i < kFour; ++i) {
        int smaller = 0;
        for (int j = 0; j < kFour; ++j) smaller += j < i ? size(j) <= size(i) : size(j) < size(i);
        dropped[i] = smaller < kFour - kKept;
      }
      for (int i = 0; i < kFour; ++i) of[i] = dropped[i] ? 0 : of[i];
    }
  });
}

class TwoOfFourMethod final : public LinearMethod {
 public:
  explicit TwoOfFourMethod(TwoOfFourSource source) : source_(source), dense_(unquantized_linear_method()) {}

  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const override {
    if (source_ != TwoOfFourSource::bitmask) return dense_->parameters(shape);
    std::vector<LinearParameterSpec> specs = two_of_four_tensors(shape.dtype, shape);
    if (shape.bias) specs.push_back({"bias", shape.dtype, {LinearDimension::along_out()}});
    return specs;
  }
  void process_after_load(const OpContext& ctx, const LinearShape& shape,
                          std::vector<Tensor>& tensors) const override {
    if (source_ != TwoOfFourSource::bitmask) {
      if (stays_sparse(ctx, shape)) keep_records_of(ctx, tensors);
      if (!is_sparse(tensors)) dense_->process_after_load(ctx, shape, tensors);
      return;
    }
    std::vector<Tensor> on_cpu;
    for (const Tensor& tensor : tensors)
      on_cpu.push_back(tensor.device().is_cpu() ? tensor : tensor.to(Device{}));
    const std::vector<LinearParameterSpec> specs = parameters(shape);
    const Tensor weight = expanded_two_of_four(shape, StoredTensors(specs, on_cpu));
    const bool sparse = stays_sparse(ctx, shape);
    std::vector<Tensor> kept = {sparse ? in_sparse_records(weight).records : weight};
    if (!ctx.device.is_cpu()) kept[0] = kept[0].to(ctx.device);
    if (shape.bias) kept.push_back(tensors.back());
    tensors = std::move(kept);
    if (!sparse) dense_->process_after_load(ctx, shape, tensors);
  }
  void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
             const Tensor& x, const Tensor& out) const override {
    if (!is_sparse(tensors)) return dense_->apply(ctx, shape, tensors, x, out);
    const SparseWeight weight = weight_of(shape, tensors);
    sparse_matmul(ctx, {x, &weight, bias_of(shape, tensors), out});
  }
  void apply_parts(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
                   size_t first, size_t count, const Tensor& x, const Tensor& out) const override {
    if (!is_sparse(tensors)) return dense_->apply_parts(ctx, shape, tensors, first, count, x, out);
    const LinearDimension rows = LinearDimension::along_out();
    const int64_t begin = rows.begin_of_part(shape, first);
    SparseWeight weight = weight_of(shape, tensors);
    weight.n = rows.begin_of_part(shape, first + count) - begin;
    weight.records =
        weight.records.narrow(0, begin / kSparseRows, (weight.n + kSparseRows - 1) / kSparseRows);
    const Tensor bias = bias_of(shape, tensors);
    sparse_matmul(ctx, {x, &weight, bias.defined() ? bias.narrow(0, begin, weight.n) : bias, out});
  }
#ifdef LADDER_HAS_CUDA
  bool takes_fused(const LinearShape& shape, const std::vector<Tensor>& tensors,
                   const FusedProduct& product) const override {
    if (!is_sparse(tensors)) return dense_->takes_fused(shape, tensors, product);
    const SparseWeight weight = weight_of(shape, tensors);
    return sparse_stream_takes({product, &weight, {}});
  }
  void apply_fused(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
                   const FusedProduct& product) const override {
    if (!is_sparse(tensors)) return dense_->apply_fused(ctx, shape, tensors, product);
    const SparseWeight weight = weight_of(shape, tensors);
    sparse_stream(ctx, {product, &weight, bias_of(shape, tensors)});
  }
#endif
  Tensor dense_weight(const std::vector<Tensor>& tensors) const override {
    return is_sparse(tensors) ? Tensor() : dense_->dense_weight(tensors);
  }

 private:
  void keep_records_of(const OpContext& ctx, std::vector<Tensor>& tensors) const {
    // A row tells of nearly every dense weight, and is there at once.
    if (source_ == TwoOfFourSource::whole && !is_two_of_four(tensors[0].narrow(0, 0, 1).to(Device{}))) return;
    const Tensor weight = tensors[0].to(Device{});
    const bool dummy = source_ == TwoOfFourSource::dummy;
    if (dummy) drop_the_smallest(weight);
    if (dummy || is_two_of_four(weight)) tensors[0] = in_sparse_records(weight).records.to(ctx.device);
  }

  TwoOfFourSource source_;
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

bool keeps_two_of_four(const OpContext& ctx) {
  return ctx.device.type == DeviceType::cuda && ctx.device_arch >= kSparseArch;
}

std::shared_ptr<const LinearMethod> two_of_four_linear_method(TwoOfFourSource source) {
  return std::make_shared<const TwoOfFourMethod>(source);
}

}  // namespace ladder
