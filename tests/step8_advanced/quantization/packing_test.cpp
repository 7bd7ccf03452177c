#include "step8_advanced/quantization/numbers/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;

Tensor random_codes(std::mt19937_64& random, int64_t rows, int64_t columns, int bits) {
  const Tensor codes = Tensor::empty({rows, columns}, DType::u8);
  for (int64_t i = 0; i < codes.numel(); ++i)
    codes.data<uint8_t>()[i] = static_cast<uint8_t>(random() & ((1u << bits) - 1));
  return codes;
}

Tensor matrix(const std::vector<uint8_t>& values, int64_t rows, int64_t columns) {
  return Tensor::from<uint8_t>(values, {rows, columns});
}

Tensor words(const std::vector<uint32_t>& values, int64_t rows, int64_t columns) {
  const Tensor out = Tensor::empty({rows, columns}, DType::i32);
  std::copy(values.begin(), values.end(), static_cast<uint32_t*>(out.raw()));
  return out;
}

std::vector<uint32_t> words_in(const Tensor& tensor) {
  const auto* values = static_cast<const uint32_t*>(tensor.raw());
  return {values, values + tensor.numel()};
}

std::vector<int> bytes_in(const Tensor& tensor) {
  const auto* values = tensor.data<uint8_t>();
  return {values, values + tensor.numel()};
}

void expect_same(const Tensor& seen, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(seen.shape(), expected.shape()) << what;
  EXPECT_EQ(bytes_in(seen), bytes_in(expected)) << what;
}

// The error of unpacking, which has to be one.
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Task8_1_Pack, TheLowestBitsOfAWordAreTheFirstCode) {
  EXPECT_EQ(words_in(pack_rows(matrix({1, 2, 3, 4, 5, 6, 7, 8, 9}, 1, 9), 4)),
            (std::vector<uint32_t>{0x87654321, 9}));
  EXPECT_EQ(words_in(pack_rows(matrix({1, 2, 3, 0, 255, 254, 253, 252}, 2, 4), 8)),
            (std::vector<uint32_t>{0x00030201, 0xfcfdfeff}));
}

TEST(Task8_1_Pack, ACodeMayCrossIntoTheNextWord) {
  // Ten codes of 3 bits are 30 bits; the eleventh, 0b110, has two bits in the first word and one in the second.
  EXPECT_EQ(words_in(pack_rows(matrix({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 1}, 1, 12), 3)),
            (std::vector<uint32_t>{0x80000000, 0b11}));
  EXPECT_EQ(bytes_in(unpack_rows(words({0x80000000, 0b11}, 1, 2), 3, 12, "words")),
            (std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 1}));
  EXPECT_EQ(packed_words(32, 3), 3);
  EXPECT_EQ(packed_words(33, 3), 4);
  EXPECT_EQ(packed_words(7, 5), 2);
}

TEST(Task8_1_Pack, RowsAndColumnsComeBackForEveryWidth) {
  std::mt19937_64 random(testing::fresh_seed());
  for (int bits = 2; bits <= 8; ++bits)
    for (const int64_t rows : {1, 3, 64})
      for (const int64_t columns : {1, 8, 31, 32, 33, 100}) {
        const Tensor codes = random_codes(random, rows, columns, bits);
        const std::string what = fmt::format("{} bits, {} x {}", bits, rows, columns);
        const Tensor by_row = pack_rows(codes, bits), by_column = pack_columns(codes, bits);
        EXPECT_EQ(by_row.shape(), (Shape{rows, (columns * bits + 31) / 32})) << what;
        EXPECT_EQ(by_column.shape(), (Shape{(rows * bits + 31) / 32, columns})) << what;
        expect_same(unpack_rows(by_row, bits, columns, "words"), codes, what);
        expect_same(unpack_columns(by_column, bits, rows, "words"), codes, what);
      }
}

TEST(Task8_1_Pack, WholeCodesOfAWordAreToldByTheNumberOfWords) {
  std::mt19937_64 random(testing::fresh_seed());
  for (const int bits : {3, 5, 6, 7}) {
    const int per_word = 32 / bits;
    const Tensor codes = random_codes(random, 2, 96, bits);
    const int64_t width = (96 + per_word - 1) / per_word;
    const Tensor old = Tensor::zeros({2, width}, DType::i32);
    const Tensor standing = Tensor::zeros({width, 2}, DType::i32),
                 upright = Tensor::empty({96, 2}, DType::u8);
    for (int64_t row = 0; row < 2; ++row)
      for (int64_t i = 0; i < 96; ++i) {
        const uint8_t code = codes.at<uint8_t>({row, i});
        const auto bits_of_code = static_cast<int32_t>(uint32_t{code} << (i % per_word * bits));
        old.at<int32_t>({row, i / per_word}) |= bits_of_code;
        standing.at<int32_t>({i / per_word, row}) |= bits_of_code;
        upright.at<uint8_t>({i, row}) = code;
      }
    expect_same(unpack_rows(old, bits, 96, "words"), codes, fmt::format("{} bits", bits));
    expect_same(unpack_columns(standing, bits, 96, "words"), upright, fmt::format("{} bits, columns", bits));
  }
}

TEST(Task8_1_Pack, GptqPacksAlongTheInputFeatures) {
  // One output feature of eight codes: one word; the next feature is the next word.
  const Tensor codes = matrix({1, 2, 3, 4, 5, 6, 7, 8, 15, 0, 0, 0, 0, 0, 0, 14}, 2, 8);
  const Tensor packed = pack_gptq(codes, 4);
  EXPECT_EQ(packed.shape(), (Shape{1, 2}));
  EXPECT_EQ(words_in(packed), (std::vector<uint32_t>{0x87654321, 0xe000000f}));
  std::mt19937_64 random(testing::fresh_seed());
  for (const int bits : {2, 3, 4, 8}) {
    const Tensor many = random_codes(random, 5, 96, bits);
    const Tensor there = pack_gptq(many, bits);
    EXPECT_EQ(there.shape(), (Shape{96 * bits / 32, 5}));
    expect_same(unpack_gptq(there, bits, 5, 96, "qweight"), many, fmt::format("{} bits", bits));
  }
}

// Three words of 3 bits as AutoGPTQ's code builds them, code by code.
TEST(Task8_1_Pack, GptqHasThirtyTwoCodesOfThreeBitsInThreeWords) {
  std::mt19937_64 random(testing::fresh_seed());
  const Tensor codes = random_codes(random, 1, 32, 3);
  const auto* c = codes.data<uint8_t>();
  uint32_t word[3] = {};
  for (int i = 0; i < 10; ++i) word[0] |= uint32_t{c[i]} << (3 * i);
  word[0] |= uint32_t{c[10]} << 30;
  word[1] |= uint32_t{c[10]} >> 2 & 1;
  for (int i = 0; i < 10; ++i) word[1] |= uint32_t{c[11 + i]} << (3 * i + 1);
  word[1] |= uint32_t{c[21]} << 31;
  word[2] |= uint32_t{c[21]} >> 1 & 3;
  for (int i = 0; i < 10; ++i) word[2] |= uint32_t{c[22 + i]} << (3 * i + 2);
  EXPECT_EQ(words_in(pack_gptq(codes, 3)), (std::vector<uint32_t>{word[0], word[1], word[2]}));
}

TEST(Task8_1_Pack, GptqZerosAreOneLessInVersionOne) {
  const Tensor zeros = matrix({8, 7, 0, 15, 1, 8, 8, 8}, 8, 1);
  EXPECT_EQ(words_in(pack_gptq_zeros(zeros, 4, true)), (std::vector<uint32_t>{0x7770ef67}));
  EXPECT_EQ(words_in(pack_gptq_zeros(zeros, 4, false)), (std::vector<uint32_t>{0x8881f078}));
  std::mt19937_64 random(testing::fresh_seed());
  for (const int bits : {2, 3, 4, 8})
    for (const bool one_less : {false, true}) {
      const Tensor many = random_codes(random, 64, 3, bits);
      const Tensor there = pack_gptq_zeros(many, bits, one_less);
      EXPECT_EQ(there.shape(), (Shape{3, 64 * bits / 32}));
      expect_same(unpack_gptq_zeros(there, bits, one_less, 64, 3, "qzeros"), many,
                  fmt::format("{} bits, one less: {}", bits, one_less));
    }
}

TEST(Task8_1_Pack, AStoredFifteenIsAZeroOfZero) {
  EXPECT_EQ(bytes_in(unpack_gptq_zeros(words({0xffffff07}, 1, 1), 4, true, 8, 1, "qzeros")),
            (std::vector<int>{8, 1, 0, 0, 0, 0, 0, 0}));
}

TEST(Task8_1_Pack, AwqHasItsOwnOrderWithinAWord) {
  // Column c holds the code c: the nibbles, lowest first, are 0 2 4 6 1 3 5 7.
  const Tensor codes = matrix({0, 1, 2, 3, 4, 5, 6, 7}, 8, 1);
  EXPECT_EQ(words_in(pack_awq(codes)), (std::vector<uint32_t>{0x75316420}));
  std::mt19937_64 random(testing::fresh_seed());
  const Tensor many = random_codes(random, 24, 7, 4);
  const Tensor there = pack_awq(many);
  EXPECT_EQ(there.shape(), (Shape{7, 3}));
  expect_same(unpack_awq(there, 24, 7, "qweight"), many, "24 x 7");
}

TEST(Task8_1_Pack, TheEvenColumnIsTheLowNibble) {
  EXPECT_EQ(bytes_in(pack_nibbles(matrix({1, 2, 3, 4, 5, 6}, 2, 3))), (std::vector<int>{0x21, 3, 0x54, 6}));
  std::mt19937_64 random(testing::fresh_seed());
  const Tensor many = random_codes(random, 3, 17, 4);
  expect_same(unpack_nibbles(pack_nibbles(many), 17, "packed"), many, "3 x 17");
}

TEST(Task8_1_Pack, WordsOfAnotherShapeAreRefusedByName) {
  const Tensor four = words({1, 2, 3, 4}, 2, 2);
  EXPECT_THAT(error_of([&] { unpack_rows(four, 4, 100, "x.weight_packed"); }), HasSubstr("x.weight_packed"));
  EXPECT_THAT(error_of([&] { unpack_rows(four, 4, 8, "x.weight_packed"); }), HasSubstr("[2, 1]"));
  EXPECT_THAT(error_of([&] { unpack_rows(four, 9, 8, "x.weight_packed"); }), HasSubstr("9 bits"));
  EXPECT_THAT(error_of([&] { unpack_rows(four, 4, -8, "x.weight_packed"); }), HasSubstr("-8"));
  EXPECT_THAT(error_of([&] { unpack_rows(Tensor(), 4, 8, "x.weight_packed"); }),
              HasSubstr("x.weight_packed"));
  EXPECT_THAT(error_of([&] { unpack_columns(four, 4, 33, "x.zeros"); }), HasSubstr("x.zeros"));
  EXPECT_THAT(error_of([&] { unpack_gptq(four, 4, 3, 16, "x.qweight"); }), HasSubstr("x.qweight"));
  EXPECT_THAT(error_of([&] { unpack_gptq(four, 3, 2, 17, "x.qweight"); }), HasSubstr("17"));
  EXPECT_THAT(error_of([&] { unpack_gptq_zeros(four, 4, true, 16, 3, "x.qzeros"); }), HasSubstr("x.qzeros"));
  EXPECT_THAT(error_of([&] { unpack_awq(four, 12, 2, "x.qweight"); }), HasSubstr("12"));
  EXPECT_THAT(error_of([&] { unpack_awq(four, 24, 2, "x.qweight"); }), HasSubstr("x.qweight"));
  EXPECT_THAT(error_of([&] { unpack_nibbles(four, 4, "x.packed"); }), HasSubstr("u8[2, 2]"));
  EXPECT_THAT(error_of([&] { pack_rows(matrix({4}, 1, 1), 2); }), HasSubstr("4"));
}

}  // namespace
}  // namespace ladder
