#include "tests/step8_advanced/quantization/stored_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "step1_layers/core/small_floats.h"
#include "step8_advanced/quantization/numbers/packing.h"

namespace ladder::testing {
namespace {

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Tensor random_codes(Random& random, int64_t rows, int64_t columns, int bits) {
  const Tensor codes = Tensor::empty({rows, columns}, DType::u8);
  for (int64_t i = 0; i < codes.numel(); ++i)
    codes.data<uint8_t>()[i] = static_cast<uint8_t>(random.integer(0, (1 << bits) - 1));
  return codes;
}

Tensor random_e4m3(Random& random, int64_t rows, int64_t columns, bool positive) {
  const Tensor codes = Tensor::empty({rows, columns}, DType::u8);
  for (int64_t i = 0; i < codes.numel(); ++i) {
    uint8_t byte = static_cast<uint8_t>(random.integer(positive ? 1 : 0, positive ? 0x7e : 0xff));
    if ((byte & 0x7f) == 0x7f) byte = 0x38;
    codes.data<uint8_t>()[i] = byte;
  }
  return codes;
}

// Those of integers may be below 0, as AutoRound's are.
Tensor random_scales(Random& random, const Shape& shape, DType dtype, bool of_integers) {
  const Tensor scales = Tensor::empty(shape, DType::f32);
  for (int64_t i = 0; i < scales.numel(); ++i) {
    const double scale = random.uniform(0.01, 0.1);
    scales.data<float>()[i] = static_cast<float>(of_integers && random.integer(0, 2) == 0 ? -scale : scale);
  }
  return shape.ndim() == 0 ? scales : scales.to(dtype);
}

Tensor as_e4m3(const Tensor& bytes) {
  return Tensor::wrap(bytes.raw(), bytes.shape(), DType::f8_e4m3, {}, std::make_shared<Tensor>(bytes));
}

Tensor as_signed(const Tensor& codes, int bits) {
  const Tensor out = Tensor::empty(codes.shape(), DType::i8);
  for (int64_t i = 0; i < codes.numel(); ++i)
    out.data<int8_t>()[i] = static_cast<int8_t>(codes.data<uint8_t>()[i] - (1 << (bits - 1)));
  return out;
}

Tensor transposed(const Tensor& matrix) {
  const Tensor out = Tensor::empty({matrix.dim(1), matrix.dim(0)}, matrix.dtype());
  for (int64_t i = 0; i < matrix.dim(0); ++i)
    for (int64_t j = 0; j < matrix.dim(1); ++j)
      out.narrow(0, j, 1).narrow(1, i, 1).copy_from(matrix.narrow(0, i, 1).narrow(1, j, 1).clone());
  return out;
}

// As GPTQModel does: a zero of 0 borrows of the next one.
void take_ones_off_words(const Tensor& words, int bits) {
  uint32_t ones = 0;
  for (int at = 0; at < 32; at += bits) ones |= uint32_t{1} << at;
  for (int64_t i = 0; i < words.numel(); ++i) static_cast<uint32_t*>(words.raw())[i] -= ones;
}

double float_at(const Tensor& tensor, int64_t index) {
  return with_float_type(tensor.dtype(), "a scale", [&](auto tag) {
    return static_cast<double>(static_cast<float>(tensor.data<decltype(tag)>()[index]));
  });
}

}  // namespace

std::vector<int32_t> random_order(Random& random, int64_t k, int64_t group_size) {
  std::vector<int32_t> order;
  for (int64_t i = 0; i < k; ++i) order.push_back(static_cast<int32_t>(i / group_size));
  std::shuffle(order.begin(), order.end(), random.engine());
  return order;
}

StoredPart random_part(Random& random, const StoredLinear& stored, int64_t n, int64_t k,
                       const std::vector<int32_t>& order) {
  const QuantizationArgs& args = stored.scheme.weights;
  const int bits = args.num_bits;
  StoredPart part{.tensors = {}, .n = n, .k = k, .dense = {}};
  auto& tensors = part.tensors;

  // The scales' grid, and which of it each element has.
  int64_t rows = 1, groups = 1, group_rows = n, group_columns = k;
  if (args.strategy != ScaleStrategy::tensor) rows = n, group_rows = 1;
  if (args.strategy == ScaleStrategy::group) group_columns = args.group_size;
  if (args.strategy == ScaleStrategy::block) group_rows = args.block_rows, group_columns = args.block_columns;
  rows = divided_up(n, group_rows), groups = divided_up(k, group_columns);
  const auto place = [&](int64_t row, int64_t column) {
    const int64_t group = order.empty() ? column / group_columns : order[static_cast<size_t>(column)];
    return row / group_rows * groups + group;
  };
  std::function<double(int64_t)> scale_at, code_value, zero_at = [](int64_t) { return 0.0; };

  if (stored.format == StoredFormat::nvfp4) {
    const Tensor local = random_e4m3(random, rows, groups, true);
    const float global = static_cast<float>(random.uniform(10, 1000));
    tensors["weight_scale"] = as_e4m3(local);
    const bool factor = stored.scales_are_factors;
    tensors[factor ? "weight_scale_2" : "weight_global_scale"] =
        factor ? Tensor::from<float>(std::vector<float>{1 / global}, Shape{})
               : Tensor::from<float>(std::vector<float>{global}, {1});
    scale_at = [local, global, factor](int64_t i) {
      const float of_group = e4m3_to_float(local.data<uint8_t>()[i]);
      return static_cast<double>(factor ? of_group * (1 / global) : of_group / global);
    };
  } else if (stored.format == StoredFormat::mx) {
    const Tensor scales = Tensor::empty({rows, groups}, DType::u8);
    for (int64_t i = 0; i < scales.numel(); ++i)
      scales.data<uint8_t>()[i] = static_cast<uint8_t>(random.integer(118, 130));
    tensors["weight_scale"] = scales;
    scale_at = [scales](int64_t i) { return static_cast<double>(e8m0_to_float(scales.data<uint8_t>()[i])); };
  } else {
    const bool of_columns = stored.format == StoredFormat::gptq || stored.format == StoredFormat::awq;
    const Shape shape = args.strategy == ScaleStrategy::tensor
                            ? (random.integer(0, 1) == 0 ? Shape{1} : Shape{})
                            : Shape{rows, groups};
    const Tensor scales = random_scales(random, shape, of_columns ? DType::f16 : DType::bf16, !args.is_float);
    if (of_columns)
      tensors["scales"] = transposed(scales);
    else
      tensors[stored.scale_is_inverse ? "weight_scale_inv" : "weight_scale"] = scales;
    scale_at = [scales](int64_t i) { return float_at(scales, i); };
  }

  if (args.is_float) {
    const bool nibbles = bits == 4;
    const Tensor codes = nibbles ? random_codes(random, n, k, 4) : random_e4m3(random, n, k, false);
    if (nibbles)
      tensors[stored.scales_are_factors ? "weight" : "weight_packed"] = pack_nibbles(codes);
    else
      tensors["weight"] = as_e4m3(codes);
    code_value = [codes, nibbles](int64_t i) {
      const uint8_t code = codes.data<uint8_t>()[i];
      return static_cast<double>(nibbles ? e2m1_to_float(code) : e4m3_to_float(code));
    };
  } else {
    const Tensor codes = random_codes(random, n, k, bits);
    Tensor zeros = random_codes(random, rows, groups, bits);
    zeros.data<uint8_t>()[0] = 0;  // the two ends
    zeros.data<uint8_t>()[zeros.numel() - 1] = static_cast<uint8_t>((1 << bits) - 1);
    if (args.symmetric) zeros.fill_bytes(static_cast<uint8_t>(1 << (bits - 1)));
    if (stored.format == StoredFormat::plain) {
      tensors["weight"] = as_signed(codes, bits);
      if (!args.symmetric)
        tensors["weight_zero_point"] = args.strategy == ScaleStrategy::tensor
                                           ? as_signed(zeros, bits).view({1})
                                           : as_signed(zeros, bits);
    } else if (stored.format == StoredFormat::packed) {
      tensors["weight_packed"] = pack_rows(codes, bits);
      tensors["weight_shape"] = Tensor::from<int64_t>(std::vector<int64_t>{n, k}, {2});
      if (!args.symmetric) tensors["weight_zero_point"] = pack_columns(zeros, bits);
      if (!order.empty()) tensors["weight_g_idx"] = Tensor::from<int32_t>(order, {k});
    } else if (stored.format == StoredFormat::gptq) {
      tensors["qweight"] = pack_gptq(codes, bits);
      const bool borrows = stored.zeros_are_one_less && stored.zeros_borrow;
      tensors["qzeros"] = pack_gptq_zeros(zeros, bits, stored.zeros_are_one_less && !borrows);
      if (borrows) take_ones_off_words(tensors["qzeros"], bits);
      std::vector<int32_t> group_of = order;
      if (order.empty())
        for (int64_t i = 0; i < k; ++i) group_of.push_back(static_cast<int32_t>(i / group_columns));
      tensors["g_idx"] = Tensor::from<int32_t>(group_of, {k});
    } else {
      tensors["qweight"] = pack_awq(codes);
      tensors["qzeros"] = pack_awq(zeros);
    }
    code_value = [codes](int64_t i) { return static_cast<double>(codes.data<uint8_t>()[i]); };
    zero_at = [zeros](int64_t i) { return static_cast<double>(zeros.data<uint8_t>()[i]); };
  }

  for (int64_t row = 0; row < n; ++row)
    for (int64_t column = 0; column < k; ++column) {
      const int64_t i = place(row, column);
      part.dense.push_back(static_cast<float>((code_value(row * k + column) - zero_at(i)) * scale_at(i)));
    }
  return part;
}

std::string describe(const StoredLinear& stored) {
  const QuantizationArgs& args = stored.scheme.weights;
  static constexpr const char* kFormats[] = {"plain", "packed", "nvfp4", "mx", "gptq", "awq", "dense"};
  static constexpr const char* kStrategies[] = {"tensor", "channel", "group", "block", "token"};
  return fmt::format(
      "{} {}{} {} {}{}{}{}{}{}", kFormats[static_cast<int>(stored.format)], args.is_float ? "float" : "int",
      args.num_bits, kStrategies[static_cast<int>(args.strategy)],
      args.strategy == ScaleStrategy::block ? args.block_rows : args.group_size,
      args.symmetric ? "" : " asymmetric", args.actorder == ActivationOrder::group ? " act-order" : "",
      stored.scale_is_inverse ? " inverse" : "", stored.zeros_are_one_less ? "" : " zeros as they are",
      stored.scales_are_factors ? " factors"
      : stored.zeros_borrow     ? " borrowed"
                                : "");
}

std::vector<StoredLinear> all_stored_linears() {
  std::vector<StoredLinear> all;
  const auto add = [&](StoredFormat format, const QuantizationArgs& weights) -> StoredLinear& {
    all.push_back({.format = format, .scheme = {.weights = weights, .input_activations = {}}});
    return all.back();
  };
  const auto args = [](int bits, bool symmetric, ScaleStrategy strategy, int64_t group_size = 0) {
    QuantizationArgs result;
    result.num_bits = bits;
    result.symmetric = symmetric;
    result.strategy = strategy;
    result.group_size = group_size;
    return result;
  };
  using enum ScaleStrategy;
  for (const bool symmetric : {true, false}) {
    for (const ScaleStrategy strategy : {tensor, channel, group})
      add(StoredFormat::plain, args(8, symmetric, strategy, strategy == group ? 64 : 0));
    add(StoredFormat::plain, args(4, symmetric, channel));
    for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
      add(StoredFormat::packed, args(bits, symmetric, channel));
      add(StoredFormat::packed, args(bits, symmetric, group, 48));  // a short last group
      add(StoredFormat::packed, args(bits, symmetric, group, 32)).scheme.weights.actorder =
          ActivationOrder::group;
    }
    for (const int bits : {2, 3, 4, 8})
      for (const bool one_less : {true, false}) {
        add(StoredFormat::gptq, args(bits, symmetric, channel)).zeros_are_one_less = one_less;
        if (one_less && bits != 3)
          add(StoredFormat::gptq, args(bits, symmetric, group, 64)).zeros_borrow = true;
        add(StoredFormat::gptq, args(bits, symmetric, group, 64)).zeros_are_one_less = one_less;
        StoredLinear& ordered = add(StoredFormat::gptq, args(bits, symmetric, group, 64));
        ordered.zeros_are_one_less = one_less;
        ordered.scheme.weights.actorder = ActivationOrder::group;
      }
    for (const int64_t group_size : {32, 64, 128})
      add(StoredFormat::awq, args(4, symmetric, group, group_size));
    add(StoredFormat::awq, args(4, symmetric, channel));
  }
  for (QuantizationArgs floats : {args(8, true, tensor), args(8, true, channel), args(8, true, block)}) {
    floats.is_float = true;
    floats.block_rows = 24;
    floats.block_columns = 64;
    add(StoredFormat::plain, floats).scale_is_inverse = floats.strategy == block;
  }
  QuantizationArgs four = args(4, true, group, 16), eight = args(8, true, group, 32);
  four.is_float = eight.is_float = true;
  four.scale_format = ScaleFormat::e4m3;
  add(StoredFormat::nvfp4, four);
  add(StoredFormat::nvfp4, four).scales_are_factors = true;
  four.group_size = 32;
  four.scale_format = eight.scale_format = ScaleFormat::e8m0;
  add(StoredFormat::mx, four);
  add(StoredFormat::mx, eight);
  return all;
}

}  // namespace ladder::testing
