#include "step8_advanced/quantization/kernels/weight_rows.h"

#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder {
namespace {

Tensor narrowed(const Tensor& tensor, int64_t begin, int64_t count) {
  return tensor.defined() ? tensor.narrow(0, begin, count) : tensor;
}

}  // namespace

QuantizedWeight rows_of(const QuantizedWeight& weight, int64_t begin, int64_t count) {
  QuantizedWeight rows = weight;
  rows.n = count;
  for (Tensor* tensor : {&rows.codes, &rows.scales, &rows.zeros}) *tensor = narrowed(*tensor, begin, count);
  rows.records.bytes =
      narrowed(rows.records.bytes, begin / kRecordRows, (count + kRecordRows - 1) / kRecordRows);
  return rows;
}

}  // namespace ladder
