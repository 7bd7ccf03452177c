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

// >>> task 8.2.load: columns in the order of their groups
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

// How many columns a group gets, in all orders. A rank may have a few features of each: then as many as the largest has, so that a
// stored column's place still tells its group.
int64_t columns_of_a_group(const std::vector<std::vector<int64_t>>& members_of_orders,
                           const QuantizationArgs& args, const LinearShape& shape) {
  if (shape.in.size == shape.in.full) return args.group_size;
  int64_t largest = 0;
  for (const std::vector<int64_t>& members : members_of_orders)
    largest = std::max(largest, *std::max_element(members.begin(), members.end()));
  return largest;
}

// Features sorted by group.
ColumnOrder sorted_columns(const Tensor& group_of, const std::vector<int64_t>& members, int64_t group_size,
                           const LinearShape& shape) {
  ColumnOrder order;
  const bool whole = shape.in.size == shape.in.full;
  order.group_size = group_size;
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
// <<< task 8.2.load

namespace {

// The columns of all rows in one order, or an order for each n / orders rows.
using ColumnOrders = std::vector<ColumnOrder>;

const ColumnOrder& order_of_row(const ColumnOrders& orders, int64_t row, int64_t n) {
  return orders[static_cast<size_t>(row * std::ssize(orders) / n)];
}

// Orders of a rank's features may have more or fewer groups: those with fewer get groups without a feature.
void give_all_as_many_groups(ColumnOrders& orders) {
  size_t groups = 0;
  for (const ColumnOrder& order : orders) groups = std::max(groups, order.groups.size());
  for (ColumnOrder& order : orders) {
    if (order.groups.size() == groups) continue;
    order.groups.resize(groups, order.groups.front());
    order.columns.resize(groups * static_cast<size_t>(order.group_size), int32_t{-1});
  }
}

ColumnOrders orders_of(const Tensor& group_of, int64_t groups, const QuantizationArgs& args,
                       const LinearShape& shape) {
  std::vector<std::vector<int64_t>> members;
  bool all_neighbours = true;
  for (int64_t i = 0; i < group_of.dim(0); ++i) {
    members.push_back(members_of_groups(group_of.select(0, i), groups, args, shape));
    all_neighbours = all_neighbours && are_neighbours(group_of.select(0, i), args, shape);
  }
  ColumnOrders orders;
  if (all_neighbours) {  // one order, which need not be stored
    orders.emplace_back();
    for (int64_t group = 0; group < groups; ++group)
      if (members[0][static_cast<size_t>(group)] > 0) orders[0].groups.push_back(group);
    return orders;
  }
  const int64_t group_size = columns_of_a_group(members, args, shape);
  for (int64_t i = 0; i < group_of.dim(0); ++i)
    orders.push_back(
        sorted_columns(group_of.select(0, i), members[static_cast<size_t>(i)], group_size, shape));
  give_all_as_many_groups(orders);
  return orders;
}

// i32 [k], or [orders, k].
Tensor columns_of(const ColumnOrders& orders) {
  const int64_t k = std::ssize(orders[0].columns);
  const Tensor columns = Tensor::empty({std::ssize(orders), k}, DType::i32);
  for (size_t i = 0; i < orders.size(); ++i)
    std::copy(orders[i].columns.begin(), orders[i].columns.end(),
              columns.data<int32_t>() + static_cast<int64_t>(i) * k);
  return orders.size() == 1 ? columns.select(0, 0) : columns;
}

// Columns of an [n, groups] tensor.
template <class T>
Tensor chosen_groups(const Tensor& tensor, const ColumnOrders& orders) {
  const Tensor out = Tensor::empty({tensor.dim(0), std::ssize(orders[0].groups)}, tensor.dtype());
  for (int64_t row = 0; row < out.dim(0); ++row) {
    const ColumnOrder& order = order_of_row(orders, row, out.dim(0));
    for (int64_t i = 0; i < out.dim(1); ++i)
      out.data<T>()[row * out.dim(1) + i] =
          tensor.data<T>()[row * tensor.dim(1) + order.groups[static_cast<size_t>(i)]];
  }
  return out;
}

// The codes of the chosen columns. A column of none has the code of its group's zero point.
Tensor chosen_columns(const IntegerCodes& integers, const ColumnOrders& orders, int bits) {
  const Tensor out = Tensor::empty({integers.codes.dim(0), std::ssize(orders[0].columns)}, DType::u8);
  parallel_for(out.dim(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const ColumnOrder& order = order_of_row(orders, row, out.dim(0));
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
    const ColumnOrders orders = orders_of(sorted.group_of, sorted.scales.dim(1), args, shape);
    sorted.scales = chosen_groups<float>(sorted.scales, orders);
    if (sorted.zeros.defined()) sorted.zeros = chosen_groups<uint8_t>(sorted.zeros, orders);
    if (!orders[0].columns.empty()) {
      groups = {orders[0].group_size, 0};
      columns = columns_of(orders);
      sorted.codes = chosen_columns(sorted, orders, args.num_bits);
    }
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
