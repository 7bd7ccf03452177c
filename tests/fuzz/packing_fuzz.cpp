// Packed words and the shape that somebody says they have: read or refused, never a byte outside of them. What was read
// packs to what unpacks to it again.
//
// Input: reader, bits, words' rows and columns, count, rows, a byte each; the words.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/numbers/packing.h"

namespace {

using ladder::DType;
using ladder::Tensor;

void expect_equal(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) != 0)
    std::abort();
}

void read(int reader, int bits, const Tensor& words, int64_t count, int64_t rows) {
  switch (reader % 7) {
    case 0: {
      const Tensor codes = ladder::unpack_rows(words, bits, count, "words");
      return expect_equal(codes, ladder::unpack_rows(ladder::pack_rows(codes, bits), bits, count, "again"));
    }
    case 1: {
      const Tensor codes = ladder::unpack_columns(words, bits, count, "words");
      return expect_equal(codes,
                          ladder::unpack_columns(ladder::pack_columns(codes, bits), bits, count, "again"));
    }
    case 2: {
      const Tensor codes = ladder::unpack_gptq(words, bits, rows, count, "qweight");
      return expect_equal(words, ladder::pack_gptq(codes, bits));
    }
    case 3:
    case 4: {
      const bool one_less = reader % 7 == 3;
      const Tensor zeros = ladder::unpack_gptq_zeros(words, bits, one_less, count, rows, "qzeros");
      return expect_equal(zeros, ladder::unpack_gptq_zeros(ladder::pack_gptq_zeros(zeros, bits, one_less),
                                                           bits, one_less, count, rows, "again"));
    }
    case 5: {
      const Tensor codes = ladder::unpack_awq(words, count, rows, "words");
      return expect_equal(words, ladder::pack_awq(codes));
    }
    default: {
      const int64_t width = words.numel() * 4;
      const Tensor bytes = Tensor::wrap(words.raw(), {1, width}, DType::u8);
      const Tensor codes = ladder::unpack_nibbles(bytes, count, "bytes");
      return expect_equal(codes, ladder::unpack_nibbles(ladder::pack_nibbles(codes), count, "again"));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 6) return 0;
  const int64_t rows = data[2], columns = data[3];
  // Memory of exactly these words, so that a byte beyond them is seen.
  std::vector<uint32_t> memory(static_cast<size_t>(rows * columns));
  if (!memory.empty()) std::memcpy(memory.data(), data + 6, std::min(size - 6, memory.size() * 4));
  try {
    read(data[0], data[1], Tensor::wrap(memory.data(), {rows, columns}, DType::i32), data[4], data[5]);
  } catch (const ladder::Error&) {
  }
  return 0;
}
