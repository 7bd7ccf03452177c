#pragma once
// What merged parts have each for themselves: words of their own along the rows, one value, one order of columns.
#include <functional>
#include <string_view>

#include "step1_layers/linear/linear_method.h"

namespace ladder {

// Codes of `bits` bits in 32-bit words: as few features and words as there are whole ones of both.
LinearDimension words_along_in(int bits);
LinearDimension words_along_out(int bits);

// The parts' rows one after the other: u8 [n, columns] of u8 [rows of the part, columns].
Tensor joined_parts(const LinearShape& shape, const std::function<Tensor(size_t part)>& rows_of_part);

// The rows that so many neighbouring parts share (0: all of them), of i32 [parts, k]: i32 [1, k] where all are the same, else
// [parts / parts_per_row, k]. Error naming `what`: parts that share one differ.
Tensor shared_rows(const Tensor& parts, int64_t parts_per_row, std::string_view what);

}  // namespace ladder
