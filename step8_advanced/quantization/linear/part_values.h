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

// The row that all parts have, of i32 [parts, k]. Error naming `what`: they differ.
Tensor common_value(const Tensor& parts, std::string_view what);

}  // namespace ladder
