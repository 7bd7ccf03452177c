#include "step8_advanced/quantization/kernels/weight_rows.h"

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder {
namespace {

Tensor narrowed(const Tensor& tensor, int64_t begin, int64_t count) {
  return tensor.defined() ? tensor.narrow(0, begin, count) : tensor;
}

}  // namespace

bool have_own_orders(const QuantizedWeight& weight) {
  return weight.columns.defined() && weight.columns.ndim() == 2;
}

QuantizedWeight rows_of(const QuantizedWeight& weight, int64_t begin, int64_t count) {
  QuantizedWeight rows = weight;
  rows.n = count;
  for (Tensor* tensor : {&rows.codes, &rows.scales, &rows.zeros}) *tensor = narrowed(*tensor, begin, count);
  rows.records.bytes =
      narrowed(rows.records.bytes, begin / kRecordRows, (count + kRecordRows - 1) / kRecordRows);
  if (!have_own_orders(weight)) return rows;
  const int64_t of_order = weight.n / weight.columns.dim(0), order = begin / of_order;
  LADDER_CHECK(begin + count <= (order + 1) * of_order,
               "rows [{}, {}) of a weight with an order of columns for each {}", begin, begin + count,
               of_order);
  rows.columns = weight.columns.select(0, order);
  return rows;
}

}  // namespace ladder
