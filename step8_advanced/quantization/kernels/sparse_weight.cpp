#include "step8_advanced/quantization/kernels/sparse_weight.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"

namespace ladder {
namespace {

constexpr int64_t kFour = 4;
constexpr uint16_t kAllButSign = 0x7fff;

int64_t records_along(int64_t size, int64_t of_record) {
  return (size + of_record - 1) / of_record;
}

int values_of(const uint16_t* four) {
  int values = 0;
  for (int i = 0; i < kFour; ++i) values += (four[i] & kAllButSign) != 0;
  return values;
}

// The columns of a four that are kept: those that are not 0, and as many zeros as are missing, in their order. False: there are more.
bool kept_columns(const uint16_t* four, int (&kept)[2]) {
  int zeros = 2 - values_of(four), count = 0;
  if (zeros < 0) return false;
  for (int i = 0; i < kFour && count < 2; ++i) {
    const bool is_zero = (four[i] & kAllButSign) == 0;
    if (is_zero && zeros == 0) continue;
    if (is_zero) --zeros;
    kept[count++] = i;
  }
  return true;
}

void expect_dense(const Tensor& weight) {
  LADDER_CHECK(
      weight.ndim() == 2 && weight.dim(1) % kFour == 0 && weight.is_contiguous() &&
          weight.device().is_cpu() && dtype_size(weight.dtype()) == 2,
      "a weight of which two of four are kept: expected rows of a multiple of 4 elements of 16 bits, found {}",
      weight.str());
}

const uint16_t* row_of(const Tensor& weight, int64_t row) {
  return static_cast<const uint16_t*>(weight.raw()) + row * weight.dim(1);
}

// False where a four of the row has more than two values.
bool write_row(const Tensor& weight, int64_t row, uint8_t* records) {
  const int64_t in_record = row % kSparseRows;
  const uint16_t* from = row_of(weight, row);
  for (int64_t column = 0; column < weight.dim(1); column += kFour) {
    int kept[2];
    if (!kept_columns(from + column, kept)) return false;
    uint8_t* record = records + column / kSparseColumns * kSparseRecordBytes;
    const int64_t four = column % kSparseColumns / kFour;
    std::memcpy(record + sparse_value_at(in_record, 2 * four), from + column + kept[0], 2);
    std::memcpy(record + sparse_value_at(in_record, 2 * four + 1), from + column + kept[1], 2);
    uint32_t word;
    std::memcpy(&word, record + sparse_index_at(in_record, four), 4);
    const int bit = sparse_index_bit(in_record, four);
    word = (word & ~(15u << bit)) | static_cast<uint32_t>(kept[0] | kept[1] << 2) << bit;
    std::memcpy(record + sparse_index_at(in_record, four), &word, 4);
  }
  return true;
}

}  // namespace

bool is_two_of_four(const Tensor& weight) {
  expect_dense(weight);
  std::atomic<bool> all = true;
  parallel_for(weight.dim(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end && all; ++row) {
      const uint16_t* of = row_of(weight, row);
      bool fits = true;
      for (int64_t column = 0; column < weight.dim(1); column += kFour) fits &= values_of(of + column) <= 2;
      if (!fits) all = false;
    }
  });
  return all;
}

SparseWeight in_sparse_records(const Tensor& weight) {
  expect_dense(weight);
  const int64_t n = weight.dim(0), k = weight.dim(1);
  const int64_t row_of_records = records_along(k, kSparseColumns) * kSparseRecordBytes;
  SparseWeight result{.dtype = weight.dtype(), .n = n, .k = k};
  result.records = Tensor::zeros(
      {records_along(n, kSparseRows), records_along(k, kSparseColumns), kSparseRecordBytes}, DType::u8);
  std::atomic<int64_t> bad = -1;
  parallel_for(result.records.dim(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      uint8_t* records = result.records.data<uint8_t>() + block * row_of_records;
      // Columns 0 and 1 of fours that are not there: two equal indices would be no metadata.
      for (int64_t record = 0; record < result.records.dim(1); ++record)
        std::memset(records + record * kSparseRecordBytes + kSparseValueBytes, 0x44,
                    kSparseRecordBytes - kSparseValueBytes);
      for (int64_t row = block * kSparseRows; row < std::min(n, (block + 1) * kSparseRows); ++row)
        if (!write_row(weight, row, records)) bad = row;
    }
  });
  LADDER_CHECK(bad < 0, "row {} has four neighbours of which more than two are not 0", bad.load());
  return result;
}

Tensor dense_of(const SparseWeight& weight) {
  const Tensor dense = Tensor::zeros({weight.n, weight.k}, weight.dtype);
  const int64_t records_of_row = records_along(weight.k, kSparseColumns);
  for (int64_t row = 0; row < weight.n; ++row)
    for (int64_t value = 0; value < weight.k / 2; ++value) {
      const int64_t four = value / 2 % (kSparseColumns / kFour), in_record = row % kSparseRows;
      const uint8_t* record =
          weight.records.data<uint8_t>() +
          (row / kSparseRows * records_of_row + value / (kSparseColumns / 2)) * kSparseRecordBytes;
      uint32_t word;
      std::memcpy(&word, record + sparse_index_at(in_record, four), 4);
      const uint32_t index = word >> (sparse_index_bit(in_record, four) + 2 * (value % 2)) & 3;
      std::memcpy(static_cast<uint16_t*>(dense.raw()) + row * weight.k + value / 2 * kFour + index,
                  record + sparse_value_at(in_record, value % (kSparseColumns / 2)), 2);
    }
  return dense;
}

}  // namespace ladder
