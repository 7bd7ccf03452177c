#include "step8_advanced/quantization/numbers/packing.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"

namespace ladder {
namespace {

constexpr int kAwqOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
constexpr int64_t kMaxCodes = int64_t{1} << 40;  // of a row; more is a damaged shape
constexpr int64_t kGrain = 1 << 16;              // codes that are worth a thread

void expect_bits(int bits, int64_t count, std::string_view what) {
  LADDER_CHECK(bits >= 2 && bits <= 8, "{}: {} bits, packed are 2 to 8", what, bits);
  LADDER_CHECK(count >= 0 && count <= kMaxCodes, "{}: rows of {} codes", what, count);
}

void expect_packed(const Tensor& packed, DType dtype, int64_t rows, int64_t columns, std::string_view what) {
  LADDER_CHECK(packed.defined() && packed.device().is_cpu() && packed.is_contiguous(),
               "{}: not contiguous in the CPU's memory", what);
  LADDER_CHECK(
      packed.dtype() == dtype && packed.ndim() == 2 && packed.dim(0) == rows && packed.dim(1) == columns,
      "{} is {}, expected {}[{}, {}]", what, packed.str(), dtype_name(dtype), rows, columns);
}

void expect_codes(const Tensor& codes, int bits, std::string_view what) {
  expect_bits(bits, 0, what);
  LADDER_CHECK(codes.defined() && codes.device().is_cpu() && codes.is_contiguous() &&
                   codes.dtype() == DType::u8 && codes.ndim() == 2,
               "{}: codes are {}, expected a contiguous u8 matrix", what, codes.str());
  const auto* values = codes.data<uint8_t>();
  for (int64_t i = 0; i < codes.numel(); ++i)
    LADDER_CHECK(values[i] >> bits == 0, "{}: code {} has more than {} bits", what, values[i], bits);
}

Tensor transposed(const Tensor& matrix) {
  const int64_t rows = matrix.dim(0), columns = matrix.dim(1);
  const Tensor out = Tensor::empty({columns, rows}, DType::u8);
  const auto* from = matrix.data<uint8_t>();
  auto* to = out.data<uint8_t>();
  constexpr int64_t kTile = 64;
  parallel_for(columns, std::max<int64_t>(kTile, kGrain / std::max<int64_t>(rows, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = 0; row < rows; row += kTile)
                   for (int64_t column = begin; column < end; ++column)
                     for (int64_t r = row; r < std::min(row + kTile, rows); ++r)
                       to[column * rows + r] = from[r * columns + column];
               });
  return out;
}

// Codes of a word in which none crosses into the next; 0: they do.
int codes_of_whole_words(int64_t words, int bits, int64_t count) {
  const int per_word = 32 / bits;
  return words != packed_words(count, bits) && words == (count + per_word - 1) / per_word ? per_word : 0;
}

}  // namespace

int64_t packed_words(int64_t count, int bits) {
  return (count / 32) * bits + (count % 32 * bits + 31) / 32;
}

// >>> task 8.1.pack: codes of a few bits in words, in the order of each format
namespace {

// `lanes` sequences side by side: code i of lane j is codes[i * lanes + j], word w of it words[w * lanes + j]. The words are
// zero before.
void pack_lanes(const uint8_t* codes, int64_t count, int bits, int64_t lanes, uint32_t* words) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t* word = words + i * bits / 32 * lanes;
    const int shift = static_cast<int>(i * bits % 32);
    for (int64_t j = 0; j < lanes; ++j) {
      const uint32_t code = codes[i * lanes + j];
      word[j] |= code << shift;
      if (shift + bits > 32) word[lanes + j] |= code >> (32 - shift);
    }
  }
}

// The codes [begin, end) of each lane. `per_word`: this many whole codes in a word; 0: they lie close together.
void unpack_lanes(const uint32_t* words, int bits, int per_word, int64_t begin, int64_t end, int64_t lanes,
                  uint8_t* codes) {
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t* word = words + (per_word > 0 ? i / per_word : i * bits / 32) * lanes;
    const int shift = static_cast<int>(per_word > 0 ? i % per_word * bits : i * bits % 32);
    for (int64_t j = 0; j < lanes; ++j) {
      uint32_t code = word[j] >> shift;
      if (shift + bits > 32) code |= word[lanes + j] << (32 - shift);
      codes[i * lanes + j] = static_cast<uint8_t>(code & mask);
    }
  }
}

}  // namespace

Tensor pack_rows(const Tensor& codes, int bits) {
  expect_codes(codes, bits, "pack_rows");
  const int64_t rows = codes.dim(0), count = codes.dim(1), width = packed_words(count, bits);
  const Tensor words = Tensor::zeros({rows, width}, DType::i32);
  const auto* from = codes.data<uint8_t>();
  auto* to = static_cast<uint32_t*>(words.raw());
  for (int64_t row = 0; row < rows; ++row) pack_lanes(from + row * count, count, bits, 1, to + row * width);
  return words;
}

Tensor unpack_rows(const Tensor& words, int bits, int64_t count, std::string_view what) {
  expect_bits(bits, count, what);
  const int64_t width = words.ndim() == 2 ? words.dim(1) : 0, rows = words.ndim() == 2 ? words.dim(0) : 0;
  const int per_word = codes_of_whole_words(width, bits, count);
  expect_packed(words, DType::i32, rows, per_word > 0 ? width : packed_words(count, bits), what);
  const Tensor codes = Tensor::empty({rows, count}, DType::u8);
  const auto* from = static_cast<const uint32_t*>(words.raw());
  auto* to = codes.data<uint8_t>();
  parallel_for(rows, kGrain / std::max<int64_t>(count, 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      unpack_lanes(from + row * width, bits, per_word, 0, count, 1, to + row * count);
  });
  return codes;
}

Tensor pack_columns(const Tensor& codes, int bits) {
  expect_codes(codes, bits, "pack_columns");
  const int64_t count = codes.dim(0), columns = codes.dim(1);
  const Tensor words = Tensor::zeros({packed_words(count, bits), columns}, DType::i32);
  pack_lanes(codes.data<uint8_t>(), count, bits, columns, static_cast<uint32_t*>(words.raw()));
  return words;
}

Tensor unpack_columns(const Tensor& words, int bits, int64_t count, std::string_view what) {
  expect_bits(bits, count, what);
  const int64_t height = words.ndim() == 2 ? words.dim(0) : 0, columns = words.ndim() == 2 ? words.dim(1) : 0;
  const int per_word = codes_of_whole_words(height, bits, count);
  expect_packed(words, DType::i32, per_word > 0 ? height : packed_words(count, bits), columns, what);
  const Tensor codes = Tensor::empty({count, columns}, DType::u8);
  parallel_for(count, kGrain / std::max<int64_t>(columns, 1), [&](int64_t begin, int64_t end) {
    unpack_lanes(static_cast<const uint32_t*>(words.raw()), bits, per_word, begin, end, columns,
                 codes.data<uint8_t>());
  });
  return codes;
}

Tensor pack_gptq_zeros(const Tensor& zeros, int bits, bool one_less) {
  expect_codes(zeros, bits, "pack_gptq_zeros");
  const Tensor stored = transposed(zeros);
  if (one_less)
    for (int64_t i = 0; i < stored.numel(); ++i) {
      uint8_t& zero = stored.data<uint8_t>()[i];
      zero = static_cast<uint8_t>((zero - 1) & ((1 << bits) - 1));
    }
  return pack_rows(stored, bits);
}

Tensor unpack_gptq_zeros(const Tensor& qzeros, int bits, bool one_less, int64_t n, int64_t groups,
                         std::string_view what) {
  expect_bits(bits, n, what);
  expect_packed(qzeros, DType::i32, groups, packed_words(n, bits), what);
  const Tensor zeros = transposed(unpack_rows(qzeros, bits, n, what));
  if (one_less)
    for (int64_t i = 0; i < zeros.numel(); ++i) {
      uint8_t& zero = zeros.data<uint8_t>()[i];
      zero = static_cast<uint8_t>((zero + 1) & ((1 << bits) - 1));
    }
  return zeros;
}

Tensor unpack_awq(const Tensor& words, int64_t n, int64_t rows, std::string_view what) {
  LADDER_CHECK(n % 8 == 0, "{}: {} output features, a multiple of 8 was expected", what, n);
  expect_packed(words, DType::i32, rows, n / 8, what);
  const Tensor codes = Tensor::empty({rows, n}, DType::u8);
  const auto* from = static_cast<const uint32_t*>(words.raw());
  parallel_for(rows, kGrain / std::max<int64_t>(n, 1), [&](int64_t begin, int64_t end) {
    for (int64_t word = begin * n / 8; word < end * n / 8; ++word)
      for (int i = 0; i < 8; ++i)
        codes.data<uint8_t>()[word * 8 + kAwqOrder[i]] = static_cast<uint8_t>(from[word] >> (4 * i) & 15);
  });
  return transposed(codes);
}
// <<< task 8.1.pack

Tensor pack_awq(const Tensor& codes) {
  expect_codes(codes, 4, "pack_awq");
  const int64_t n = codes.dim(0), rows = codes.dim(1);
  LADDER_CHECK(n % 8 == 0, "pack_awq: {} output features, a multiple of 8 was expected", n);
  const Tensor words = Tensor::zeros({rows, n / 8}, DType::i32);
  auto* to = static_cast<uint32_t*>(words.raw());
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t at = 0; at < n; ++at)
      to[(row * n + at) / 8] |= uint32_t{codes.data<uint8_t>()[(at / 8 * 8 + kAwqOrder[at % 8]) * rows + row]}
                                << (at % 8 * 4);
  return words;
}

Tensor pack_gptq(const Tensor& codes, int bits) {
  expect_codes(codes, bits, "pack_gptq");
  LADDER_CHECK(codes.dim(1) * bits % 32 == 0,
               "pack_gptq: {} input features of {} bits do not fill whole words", codes.dim(1), bits);
  return pack_columns(transposed(codes), bits);
}

Tensor unpack_gptq(const Tensor& qweight, int bits, int64_t n, int64_t k, std::string_view what) {
  expect_bits(bits, k, what);
  LADDER_CHECK(k * bits % 32 == 0, "{}: {} input features of {} bits do not fill whole words", what, k, bits);
  expect_packed(qweight, DType::i32, k * bits / 32, n, what);
  return transposed(unpack_columns(qweight, bits, k, what));
}

Tensor pack_nibbles(const Tensor& codes) {
  expect_codes(codes, 4, "pack_nibbles");
  const int64_t rows = codes.dim(0), count = codes.dim(1), width = (count + 1) / 2;
  const Tensor bytes = Tensor::zeros({rows, width}, DType::u8);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < count; ++i)
      bytes.data<uint8_t>()[row * width + i / 2] |=
          static_cast<uint8_t>(codes.data<uint8_t>()[row * count + i] << (i % 2 * 4));
  return bytes;
}

Tensor unpack_nibbles(const Tensor& bytes, int64_t count, std::string_view what) {
  expect_bits(4, count, what);
  const int64_t rows = bytes.ndim() == 2 ? bytes.dim(0) : 0, width = (count + 1) / 2;
  expect_packed(bytes, DType::u8, rows, width, what);
  const Tensor codes = Tensor::empty({rows, count}, DType::u8);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < count; ++i)
      codes.data<uint8_t>()[row * count + i] =
          static_cast<uint8_t>(bytes.data<uint8_t>()[row * width + i / 2] >> (i % 2 * 4) & 15);
  return codes;
}

}  // namespace ladder
