#include "step8_advanced/quantization/kernels/few_rows_simd.h"

#include "step1_layers/core/simd.h"
#include "step8_advanced/quantization/kernels/code_words.h"

namespace ladder::LADDER_ISA {

namespace {

// Of a tile: rows of the weight, and the maximum of rows of x.
#if defined(__AVX512F__)
constexpr int64_t kWeightRows = 4, kMaxRows = 4;
#else
constexpr int64_t kWeightRows = 1, kMaxRows = 4;
#endif
constexpr int64_t kAhead = 2048;  // bytes of codes between what is fetched and what is used

// Called in a loop and once behind it: with its sums in registers only where both calls are part of the loop's function.
template <WeightCodes kType, bool kZeros, int kRows, int kColumns>
[[gnu::always_inline]] inline void add_block(const QuantizedRows& weight, int64_t j, int64_t apart,
                                             int64_t block, const Words (&words)[kColumns], const float* x,
                                             int64_t x_stride, Vec (&total)[kRows][kColumns]);

// >>> task 8.4.int4: few rows of x: codes are unpacked in registers and scaled by group
// total += the products of one block of codes: of kColumns rows of the weight, row j and others `apart` rows from each
// other, with kRows rows of x, whose numbers of this block are at x.
template <WeightCodes kType, bool kZeros, int kRows, int kColumns>
void add_block(const QuantizedRows& weight, int64_t j, int64_t apart, int64_t block,
               const Words (&words)[kColumns], const float* x, int64_t x_stride,
               Vec (&total)[kRows][kColumns]) {
  constexpr int kPerLane = static_cast<int>(codes_per_lane(kType));
  const Decoder<kType> decode;
  const LaneGroups groups(weight, block);
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) {
    Vec code[kPerLane];
    for (int a = 0; a < kPerLane; ++a) code[a] = decode(words[c], a);
    const Vec scale = groups.scales(j + c * apart);
    const Vec zero_point = kZeros ? groups.zeros<kType>(j + c * apart) : zero();
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const float* at = x + i * x_stride;
      Vec even = load(at) * code[0], odd = load(at + kLanes) * code[1];
      for (int a = 2; a < kPerLane; a += 2) {
        even = fma(load(at + a * kLanes), code[a], even);
        odd = fma(load(at + (a + 1) * kLanes), code[a + 1], odd);
      }
      Vec sum = even + odd;
      if (kZeros) sum = fma(zero_point, load(at + kPerLane * kLanes), sum);
      total[i][c] = fma(scale, sum, total[i][c]);
    }
  }
}

// sums of kRows rows of x and kColumns rows of the weight.
template <WeightCodes kType, bool kZeros, int kRows, int kColumns>
void tile(const QuantizedRows& weight, const FewRowsX& x, int64_t row, int64_t j, int64_t apart,
          float* sums) {
  constexpr int64_t kBytes = kLanes * 4;                                              // of a block
  constexpr int64_t kPerBlock = (codes_per_lane(kType) + (kZeros ? 1 : 0)) * kLanes;  // of x
  const float* block_x = x.values + row * x.stride;
  const uint8_t* codes = weight.codes + j * weight.codes_stride;
  const int64_t stream = apart * weight.codes_stride;
  const float* ahead = weight.scales + j * weight.scales_stride + kAhead * weight.groups / weight.row_bytes;
  const int64_t scales_stream = apart * weight.scales_stride;
  Vec total[kRows][kColumns];
  for (int i = 0; i < kRows; ++i)
    for (int c = 0; c < kColumns; ++c) total[i][c] = zero();
  Words words[kColumns];
  int64_t block = 0;
  for (; (block + 1) * kBytes <= weight.row_bytes; ++block, block_x += kPerBlock) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      words[c] = load_words(codes + c * stream + block * kBytes);
      __builtin_prefetch(codes + c * stream + block * kBytes + kAhead);
      __builtin_prefetch(ahead + c * scales_stream + weight.first_group[block]);
    }
    add_block<kType, kZeros>(weight, j, apart, block, words, block_x, x.stride, total);
  }
  if (block < weight.blocks) {
    for (int c = 0; c < kColumns; ++c) words[c] = block_words(weight, j + c * apart, block);
    add_block<kType, kZeros>(weight, j, apart, block, words, block_x, x.stride, total);
  }
  for (int i = 0; i < kRows; ++i)
    for (int c = 0; c < kColumns; ++c) sums[i * x.sums_stride + c * apart] = reduce_add(total[i][c]);
}

// Rows [row, row + rows) of x, at most kRows.
template <WeightCodes kType, bool kZeros, int kRows, int kColumns>
void tile_of(const QuantizedRows& weight, const FewRowsX& x, int64_t row, int64_t rows, int64_t j,
             int64_t apart, float* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      tile<kType, kZeros, kRows, kColumns>(weight, x, row, j, apart, sums);
    else
      tile_of<kType, kZeros, kRows - 1, kColumns>(weight, x, row, rows, j, apart, sums);
  }
}

// All rows of x: codes come from memory once.
template <WeightCodes kType, bool kZeros, int kColumns>
void all_rows(const QuantizedRows& weight, const FewRowsX& x, int64_t j, int64_t apart) {
  for (int64_t row = 0; row < x.m; row += kMaxRows) {
    const int64_t rows = x.m - row < kMaxRows ? x.m - row : kMaxRows;
    tile_of<kType, kZeros, kMaxRows, kColumns>(weight, x, row, rows, j, apart,
                                               x.sums + row * x.sums_stride + j);
  }
}

// kWeightRows streams: each tile has a row of each, so a stream is read from end to end.
template <WeightCodes kType, bool kZeros>
void sums_of(const QuantizedRows& weight, const FewRowsX& x, int64_t begin, int64_t end) {
  const int64_t apart = (end - begin) / kWeightRows;
  for (int64_t j = begin; j < begin + apart; ++j) all_rows<kType, kZeros, kWeightRows>(weight, x, j, apart);
  for (int64_t j = begin + apart * kWeightRows; j < end; ++j) all_rows<kType, kZeros, 1>(weight, x, j, 0);
}
// <<< task 8.4.int4

}  // namespace

void few_rows_sums(const QuantizedRows& weight, const FewRowsX& x, int64_t begin, int64_t end) {
  const bool zeros = weight.zeros != nullptr;
  switch (weight.type) {
    case WeightCodes::int4:
      return zeros ? sums_of<WeightCodes::int4, true>(weight, x, begin, end)
                   : sums_of<WeightCodes::int4, false>(weight, x, begin, end);
    case WeightCodes::int8:
      return zeros ? sums_of<WeightCodes::int8, true>(weight, x, begin, end)
                   : sums_of<WeightCodes::int8, false>(weight, x, begin, end);
    case WeightCodes::fp8_e4m3:
      return sums_of<WeightCodes::fp8_e4m3, false>(weight, x, begin, end);
    case WeightCodes::fp4_e2m1:
      return sums_of<WeightCodes::fp4_e2m1, false>(weight, x, begin, end);
  }
}

}  // namespace ladder::LADDER_ISA
