#include "step8_advanced/quantization/quantizer/stored_tensors.h"

#include <array>
#include <cmath>
#include <cstring>

#include "step1_layers/core/error.h"
#include "step1_layers/core/small_floats.h"
#include "step8_advanced/quantization/numbers/packing.h"

namespace ladder {
namespace {

DType dtype_of_scales(ScaleFormat format) {
  return format == ScaleFormat::bf16 ? DType::bf16 : format == ScaleFormat::f16 ? DType::f16 : DType::f32;
}

// One element of the scales (or zeros) [n, groups] per grid: [1], [n, 1], [n, groups] or one per block.
Tensor per_grid(const Tensor& of_rows, const QuantizationArgs& args) {
  if (args.strategy == ScaleStrategy::tensor) return of_rows.narrow(0, 0, 1).clone().view({1});
  if (args.strategy != ScaleStrategy::block) return of_rows;
  const int64_t blocks = (of_rows.dim(0) + args.block_rows - 1) / args.block_rows;
  const Tensor grid = Tensor::empty({blocks, of_rows.dim(1)}, of_rows.dtype());
  for (int64_t block = 0; block < blocks; ++block)
    grid.select(0, block).copy_from(of_rows.select(0, block * args.block_rows));
  return grid;
}

// A byte per number of what `to_bits` makes of them.
template <class ToBits>
Tensor bytes_of(const Tensor& numbers, DType dtype, ToBits&& to_bits) {
  const Tensor bytes = Tensor::empty(numbers.shape(), dtype);
  for (int64_t i = 0; i < numbers.numel(); ++i)
    static_cast<uint8_t*>(bytes.raw())[i] = to_bits(numbers.data<float>()[i]);
  return bytes;
}

// Unsigned codes of `bits`, one a byte, from the form in memory: nibbles that hold q + 8, or bytes that hold q.
Tensor unsigned_codes(const Tensor& codes, int64_t columns, WeightCodes type, int bits) {
  const bool nibbles = type == WeightCodes::int4;
  const Tensor result =
      nibbles ? unpack_nibbles(codes, columns, "codes") : Tensor::empty(codes.shape(), DType::u8);
  const int shift = (1 << (bits - 1)) - (nibbles ? 8 : 0);
  for (int64_t i = 0; i < result.numel(); ++i) {
    uint8_t& code = result.data<uint8_t>()[i];
    code = static_cast<uint8_t>((nibbles ? code : codes.data<int8_t>()[i]) + shift);
  }
  return result;
}

Tensor under_dtype(const Tensor& tensor, DType dtype) {  // of as many bytes
  const Tensor result = Tensor::empty(tensor.shape(), dtype);
  std::memcpy(result.raw(), tensor.raw(), static_cast<size_t>(tensor.nbytes()));
  return result;
}

// Columns in the order of the input features. Act-order `group` alone has another.
Tensor in_feature_order(const Tensor& codes, const Tensor& columns) {
  if (!columns.defined()) return codes;
  const Tensor result = Tensor::empty(codes.shape(), codes.dtype());
  for (int64_t row = 0; row < codes.dim(0); ++row)
    for (int64_t column = 0; column < codes.dim(1); ++column)
      result.data<uint8_t>()[row * codes.dim(1) + columns.data<int32_t>()[column]] =
          codes.data<uint8_t>()[row * codes.dim(1) + column];
  return result;
}

class Tensors {
 public:
  Tensors(const std::string& name, const QuantizedLinear& linear, const StoredLinear& stored)
      : name_(name),
        linear_(linear),
        weight_(linear.weight),
        args_(stored.scheme.weights),
        scales_dtype_(dtype_of_scales(stored.stored_scales)) {}

  void add(const char* what, const Tensor& tensor) { tensors_.push_back({name_ + "." + what, tensor}); }
  void add_number(const char* what, float number) {
    add(what, Tensor::from(std::span<const float>(&number, 1), {1}));
  }

  void plain() {
    add("weight", args_.is_float ? under_dtype(weight_.codes, DType::f8_e4m3) : as_bytes());
    add("weight_scale", per_grid(weight_.scales, args_).to(scales_dtype_));
    if (weight_.zeros.defined()) add("weight_zero_point", per_grid(zeros_as_bytes(), args_));
  }

  void packed() {
    const Tensor codes = unsigned_codes(weight_.codes, weight_.k, weight_.type, args_.num_bits);
    add("weight_packed", pack_rows(in_feature_order(codes, weight_.columns), args_.num_bits));
    add("weight_scale", per_grid(weight_.scales, args_).to(scales_dtype_));
    const std::array<int64_t, 2> shape = {weight_.n, weight_.k};
    add("weight_shape", Tensor::from(std::span<const int64_t>(shape), {2}));
    if (weight_.zeros.defined()) add("weight_zero_point", pack_columns(unsigned_zeros(), args_.num_bits));
    if (linear_.g_idx.defined()) add("weight_g_idx", linear_.g_idx);
  }

  void nvfp4() {
    add("weight_packed", weight_.codes);
    add("weight_scale", bytes_of(weight_.scales, DType::f8_e4m3, [this](float scale) {
          return float_to_e4m3(scale * linear_.global_scale);
        }));
    add_number("weight_global_scale", linear_.global_scale);
  }

  void mx() {
    if (args_.num_bits == 4)
      add("weight_packed", weight_.codes);
    else
      add("weight", under_dtype(weight_.codes, DType::f8_e4m3));
    add("weight_scale", bytes_of(weight_.scales, DType::u8, [](float scale) {
          return static_cast<uint8_t>(std::ilogb(scale) + 127);  // E8M0
        }));
  }

  std::vector<NamedTensor> take() {
    if (linear_.input_scale > 0) add_number("input_scale", linear_.input_scale);
    return std::move(tensors_);
  }

 private:
  Tensor as_bytes() const {  // i8, the code q itself
    return weight_.type == WeightCodes::int8 ? weight_.codes
                                             : without_8(unpack_nibbles(weight_.codes, weight_.k, "codes"));
  }
  Tensor zeros_as_bytes() const {
    return weight_.type == WeightCodes::int8 ? weight_.zeros : without_8(weight_.zeros);
  }
  static Tensor without_8(const Tensor& codes) {
    const Tensor result = Tensor::empty(codes.shape(), DType::i8);
    for (int64_t i = 0; i < codes.numel(); ++i)
      result.data<int8_t>()[i] = static_cast<int8_t>(codes.data<uint8_t>()[i] - 8);
    return result;
  }
  Tensor unsigned_zeros() const {  // a byte each already
    const int shift = (1 << (args_.num_bits - 1)) - (weight_.type == WeightCodes::int4 ? 8 : 0);
    const Tensor result = Tensor::empty(weight_.zeros.shape(), DType::u8);
    for (int64_t i = 0; i < result.numel(); ++i)
      result.data<uint8_t>()[i] =
          static_cast<uint8_t>((weight_.type == WeightCodes::int4 ? int{weight_.zeros.data<uint8_t>()[i]}
                                                                  : int{weight_.zeros.data<int8_t>()[i]}) +
                               shift);
    return result;
  }

  const std::string& name_;
  const QuantizedLinear& linear_;
  const QuantizedWeight& weight_;
  const QuantizationArgs& args_;
  DType scales_dtype_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace

std::vector<NamedTensor> stored_tensors(const std::string& name, const QuantizedLinear& linear,
                                        const StoredLinear& stored) {
  Tensors tensors(name, linear, stored);
  switch (stored.format) {
    case StoredFormat::plain:
      tensors.plain();
      return tensors.take();
    case StoredFormat::packed:
      tensors.packed();
      return tensors.take();
    case StoredFormat::nvfp4:
      tensors.nvfp4();
      return tensors.take();
    case StoredFormat::mx:
      tensors.mx();
      return tensors.take();
    case StoredFormat::gptq:
    case StoredFormat::awq:
    case StoredFormat::dense:
      break;
  }
  fail("{}: the quantizer writes the formats of compressed-tensors alone", name);
}

}  // namespace ladder
