#include "step8_advanced/quantization/linear/integer_codes.h"

#include <algorithm>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/numbers/packing.h"

namespace ladder {
namespace {

// From a file's code to that in memory: nibbles hold q + 8, bytes hold q.
int code_shift(int bits) {
  return (bits <= 4 ? 8 : 0) - (1 << (bits - 1));
}

// Codes or zero points of a file to those in memory, a byte each.
Tensor moved_codes(const Tensor& codes, int bits) {
  const Tensor out = Tensor::empty(codes.shape(), bits <= 4 ? DType::u8 : DType::i8);
  const int shift = code_shift(bits);
  parallel_for(codes.dim(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < codes.dim(1); ++i)
        static_cast<uint8_t*>(out.raw())[row * codes.dim(1) + i] =
            static_cast<uint8_t>(codes.data<uint8_t>()[row * codes.stride(0) + i] + shift);
  });
  return out;
}

void check_zeros(const Tensor& zeros, const QuantizationArgs& args) {
  const int middle = 1 << (args.num_bits - 1);
  if (!args.symmetric) return;
  for (int64_t i = 0; i < zeros.numel(); ++i)
    LADDER_CHECK(zeros.data<uint8_t>()[i] == middle,
                 "a zero point of {} in row {}: expected {}, as the scheme is symmetric",
                 zeros.data<uint8_t>()[i], i / zeros.dim(1), middle);
}

// Which stored column belongs to which input feature, and how many neighbours then share a scale.
struct ColumnOrder {
  std::vector<int32_t> columns;  // -1: none
  std::vector<int64_t> groups;   // of the layer, in the order of the stored columns
  int64_t group_size = 0;
};

}  // namespace

// >>> task 8.2.actorder: columns in the order of their groups
namespace {

// How many of the rank's features are in each group. Error: see integer_weight.
std::vector<int64_t> members_of_groups(const Tensor& group_of, int64_t groups, const QuantizationArgs& args,
                                       const LinearShape& shape) {
  std::vector<int64_t> members(static_cast<size_t>(groups));
  for (int64_t i = 0; i < group_of.numel(); ++i) {
    const int32_t group = group_of.data<int32_t>()[i];
    LADDER_CHECK(group >= 0 && group < groups, "g_idx has {} at feature {}, expected a group below {}", group,
                 shape.in.begin + i, groups);
    ++members[static_cast<size_t>(group)];
  }
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t all = std::min(args.group_size, shape.in.full - group * args.group_size);
    const int64_t here = members[static_cast<size_t>(group)];
    LADDER_CHECK(here <= all && (here == all || shape.in.size < shape.in.full),
                 "g_idx has {} features in group {}, expected {}", here, group, all);
  }
  return members;
}

bool are_neighbours(const Tensor& group_of, const QuantizationArgs& args, const LinearShape& shape) {
  for (int64_t i = 0; i < group_of.numel(); ++i)
    if (group_of.data<int32_t>()[i] != (shape.in.begin + i) / args.group_size) return false;
  return true;
}

// Features sorted by group. A rank may have a few of each group: then every group it has gets as many columns as the
// largest, so that a stored column's place still tells its group.
ColumnOrder sorted_columns(const Tensor& group_of, const std::vector<int64_t>& members,
                           const QuantizationArgs& args, const LinearShape& shape) {
  ColumnOrder order;
  const bool whole = shape.in.size == shape.in.full;
  order.group_size = whole ? args.group_size : *std::max_element(members.begin(), members.end());
  for (int64_t group = 0; group < std::ssize(members); ++group) {
    if (members[static_cast<size_t>(group)] == 0) continue;
    order.groups.push_back(group);
    for (int64_t i = 0; i < group_of.numel(); ++i)
      if (group_of.data<int32_t>()[i] == group) order.columns.push_back(static_cast<int32_t>(i));
    if (!whole)
      order.columns.resize(order.groups.size() * static_cast<size_t>(order.group_size), int32_t{-1});
  }
  return order;
}

}  // namespace
// <<< task 8.2.actorder

namespace {

// Columns of an [n, groups] tensor.
template <class T>
Tensor chosen_groups(const Tensor& tensor, const std::vector<int64_t>& groups) {
  const Tensor out = Tensor::empty({tensor.dim(0), std::ssize(groups)}, tensor.dtype());
  for (int64_t row = 0; row < out.dim(0); ++row)
    for (int64_t i = 0; i < out.dim(1); ++i)
      out.data<T>()[row * out.dim(1) + i] =
          tensor.data<T>()[row * tensor.dim(1) + groups[static_cast<size_t>(i)]];
  return out;
}

// The codes of the chosen columns. A column of none has the code of its group's zero point.
Tensor chosen_columns(const IntegerCodes& integers, const ColumnOrder& order, int bits) {
  const Tensor out = Tensor::empty({integers.codes.dim(0), std::ssize(order.columns)}, DType::u8);
  parallel_for(out.dim(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* from = integers.codes.data<uint8_t>() + row * integers.codes.stride(0);
      for (int64_t i = 0; i < out.dim(1); ++i) {
        const int32_t column = order.columns[static_cast<size_t>(i)];
        const int64_t group = i / order.group_size;
        out.data<uint8_t>()[row * out.dim(1) + i] =
            column >= 0                ? from[column]
            : integers.zeros.defined() ? integers.zeros.data<uint8_t>()[row * integers.zeros.dim(1) + group]
                                       : static_cast<uint8_t>(1 << (bits - 1));
      }
    }
  });
  return out;
}

}  // namespace

QuantizedWeight integer_weight(const IntegerCodes& integers, const QuantizationArgs& args,
                               const LinearShape& shape) {
  IntegerCodes sorted = integers;
  if (sorted.zeros.defined()) {
    check_zeros(sorted.zeros, args);
    if (args.symmetric) sorted.zeros = {};
  }
  ColumnGroups groups = column_groups(args, shape);
  Tensor columns;
  if (sorted.group_of.defined()) {
    const std::vector<int64_t> members =
        members_of_groups(sorted.group_of, sorted.scales.dim(1), args, shape);
    ColumnOrder order;
    if (are_neighbours(sorted.group_of, args, shape)) {
      for (int64_t group = 0; group < std::ssize(members); ++group)
        if (members[static_cast<size_t>(group)] > 0) order.groups.push_back(group);
    } else {
      order = sorted_columns(sorted.group_of, members, args, shape);
      groups = {order.group_size, 0};
      columns = Tensor::from<int32_t>(order.columns, {std::ssize(order.columns)});
    }
    sorted.scales = chosen_groups<float>(sorted.scales, order.groups);
    if (sorted.zeros.defined()) sorted.zeros = chosen_groups<uint8_t>(sorted.zeros, order.groups);
    if (columns.defined()) sorted.codes = chosen_columns(sorted, order, args.num_bits);
  }
  QuantizedWeight weight{.type = args.num_bits <= 4 ? WeightCodes::int4 : WeightCodes::int8,
                         .n = sorted.codes.dim(0),
                         .k = sorted.codes.dim(1),
                         .codes = moved_codes(sorted.codes, args.num_bits),
                         .scales = sorted.scales,
                         .columns = columns,
                         .group_size = groups.size,
                         .group_offset = groups.offset};
  if (args.num_bits <= 4) weight.codes = pack_nibbles(weight.codes);
  if (sorted.zeros.defined()) weight.zeros = moved_codes(sorted.zeros, args.num_bits);
  return weight;
}

}  // namespace ladder
