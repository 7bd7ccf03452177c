#pragma once
// A weight [n, k] of 16-bit elements of which at most two of every four neighbours along k are not 0, as a GPU multiplies it: two
// values and two indices of 2 bits for each four, 9/16 of the bytes.
//
//             k ->   64 columns
//   64 rows  +--------+--------+--------+--
//            | record | record | record |      a record is contiguous, and so are the records of one row of them
//            +--------+--------+--------+--
//            |        |        |        |      what lies past the end is zeros
//
//   record:   values of rows 0 to 7 | ... | of rows 56 to 63 | indices of rows 0 to 15 | ... | of rows 48 to 63
//             512 bytes each                                   128 bytes each
//
// Values of eight rows are four tiles of 8 rows x 8 values, 128 bytes each: what both ldmatrix and wgmma read at a time. The value
// that is `which` (0, 1) of the four `columns 4 i to 4 i + 3` is number 2 i + which of its row.
//
// The indices are the metadata operand of mma.sp.m16n8k32 and, four warps beside each other, of wgmma.mma_async.sp.m64nNk32 (PTX ISA,
// "Sparse matrix storage", "Sparse WGMMA metadata layout"). Sixteen rows have a word of 32 bits per lane; lane 4 g + t has those of
// rows g (bits 0 to 15) and g + 8 (bits 16 to 31), of the 16 columns that begin at 16 t: of lanes 0 and 1 of a quad the
// first instruction's 32 columns (sparsity selector 0), of lanes 2 and 3 the second one's (selector 1). A four has 4 of the 16 bits, the
// column of its first value in the lower two. Indices ascend, so a four with fewer values than two has zeros among them.
#include <cstdint>

#include "step1_layers/core/tensor.h"

namespace ladder {

struct SparseWeight {
  DType dtype = DType::bf16;  // of the values: bf16 or f16
  int64_t n = 0, k = 0;
  Tensor records = {};  // u8 [n / 64, k / 64, kSparseRecordBytes], rounded up
};

inline constexpr int64_t kSparseRows = 64, kSparseColumns = 64;  // of a record
inline constexpr int64_t kSparseValueBytes = kSparseRows * kSparseColumns / 2 * 2;
inline constexpr int64_t kSparseRecordBytes = kSparseValueBytes + kSparseRows * kSparseColumns / 2 / 4;

// Where in a record the value is that is number `value` (0 to 31) of row `row`; in bytes.
inline constexpr int64_t sparse_value_at(int64_t row, int64_t value) {
  return row / 8 * 512 + value / 8 * 128 + row % 8 * 16 + value % 8 * 2;
}
// Where the word is that has its row's index of columns 4 * `four` (0 to 15) on, in bytes, and from which bit on.
inline constexpr int64_t sparse_index_at(int64_t row, int64_t four) {
  return kSparseValueBytes + row / 16 * 128 + row % 8 * 16 + four / 4 * 4;
}
inline constexpr int sparse_index_bit(int64_t row, int64_t four) {
  return static_cast<int>(row % 16 / 8 * 16 + four % 4 * 4);
}

// Whether each four has at most two values that are not 0. `weight` [n, k] bf16 or f16 on the CPU, rows contiguous; k a multiple of 4.
bool is_two_of_four(const Tensor& weight);

// On the CPU. Error: the weight is not two of four. A value of -0 becomes 0.
SparseWeight in_sparse_records(const Tensor& weight);

// [n, k], on the CPU.
Tensor dense_of(const SparseWeight& weight);

}  // namespace ladder
