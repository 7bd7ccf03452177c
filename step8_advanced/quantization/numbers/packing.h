#pragma once
// Task 8.1: codes of two to eight bits in 32-bit words, as the files of others have them, in both directions.
//
// Here a code is unsigned, a byte of its own, 0 to 2^b - 1, and a matrix of them u8 [n, k] like the weight; files keep q + 2^(b-1)
// for a signed q. Code i of a packed row lies at the bits [i b, i b + b) of its words, the lowest bits of a word
// first. Where b does not divide 32 a code may begin in one word and end in the next: 32 codes of 3 bits are 3 words.
//
//   format                 words                      packed along
//   compressed-tensors     i32 [n, ceil(k b / 32)]    k: pack_rows
//     its zero points      i32 [ceil(n b / 32), G]    n: pack_columns
//   GPTQ's qweight         i32 [k b / 32, n]          k, and transposed
//     its qzeros           i32 [G, n b / 32]          n, and transposed
//   AWQ's both             i32 [k, n / 8]             n, transposed; nibble i of a word is column (0, 2, 4, 6, 1, 3, 5, 7)[i] of 8
//   NVFP4, MXFP4           u8 [n, k / 2]              k, the even column in the low half
//
// Tensors are contiguous and on the CPU; whatever the words are, nothing outside of them is read. Error, beginning with `what`:
// dtype, shape or bits are not those above. Packing, also where a code has more than b bits.
#include <cstdint>
#include <string_view>

#include "step1_layers/core/tensor.h"

namespace ladder {

// The words that `count` codes take.
int64_t packed_words(int64_t count, int bits);

// Every row for itself: u8 [rows, count] and i32 [rows, packed_words(count, bits)]. Older versions of compressed-tensors
// put 32 / b whole codes into a word and let none cross, which is another number of words unless there are few: then
// unpack_rows and unpack_columns read that.
Tensor pack_rows(const Tensor& codes, int bits);
Tensor unpack_rows(const Tensor& words, int bits, int64_t count, std::string_view what);

// Every column for itself: u8 [count, columns] and i32 [packed_words(count, bits), columns].
Tensor pack_columns(const Tensor& codes, int bits);
Tensor unpack_columns(const Tensor& words, int bits, int64_t count, std::string_view what);

// GPTQ's qweight, u8 [n, k] and i32 [k b / 32, n]; k b is a multiple of 32.
Tensor pack_gptq(const Tensor& codes, int bits);
Tensor unpack_gptq(const Tensor& qweight, int bits, int64_t n, int64_t k, std::string_view what);

// GPTQ's qzeros, u8 [n, groups] and i32 [groups, n b / 32]. `one_less`: the file has zero - 1, modulo 2^b (checkpoint_format
// "gptq"; "gptq_v2" has the zero). A zero of 0 is then all ones. Programs that wrote it forgot the modulo: of AutoGPTQ's
// words the borrow overwrote all higher zeros, which are lost and read as 0; GPTQModel subtracts from the word as a whole,
// and the next zero reads one too small.
Tensor pack_gptq_zeros(const Tensor& zeros, int bits, bool one_less);
Tensor unpack_gptq_zeros(const Tensor& qzeros, int bits, bool one_less, int64_t n, int64_t groups,
                         std::string_view what);

// AWQ's qweight and qzeros, four bits: u8 [n, rows] and i32 [rows, n / 8]; rows: k, or the groups.
Tensor pack_awq(const Tensor& codes);
Tensor unpack_awq(const Tensor& words, int64_t n, int64_t rows, std::string_view what);

// Two codes of four bits a byte, also the form in memory (quantized_weight.h): u8 [n, count] and u8 [n, ceil(count / 2)].
Tensor pack_nibbles(const Tensor& codes);
Tensor unpack_nibbles(const Tensor& bytes, int64_t count, std::string_view what);

}  // namespace ladder
