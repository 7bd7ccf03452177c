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

// >>> task 8.4.int4: few rows of x: codes are unpacked in registers and scaled by group
// sums of kRows rows of x and kColumns rows of the weight, from row j on.
template <WeightCodes kType, bool kZeros, int kRows, int kColumns>
void tile(const QuantizedRows& weight, const FewRowsX& x, int64_t row, int64_t j, float* sums) {
  constexpr int kPerLane = static_cast<int>(codes_per_lane(kType));
  constexpr int kPerBlock = (kPerLane + (kZeros ? 1 : 0)) * kLanes;  // of x
  const Decoder<kType> decode;
  Vec total[kRows][kColumns];
  for (int i = 0; i < kRows; ++i)
    for (int c = 0; c < kColumns; ++c) total[i][c] = zero();
  for (int c = 0; c < kColumns; ++c)  // what the next tile needs, in lines of 64 bytes
    for (int64_t group = 0; group < weight.groups; group += 16)
      __builtin_prefetch(weight.scales + (j + c + kColumns) * weight.scales_stride + group);
  for (int64_t block = 0; block < weight.blocks; ++block) {
    const int64_t first = weight.first_group[block];
    const int32_t* lane_group = weight.lane_group + block * kLanes;
    const float* block_x = x.values + row * x.stride + block * kPerBlock;
    for (int c = 0; c < kColumns; ++c) {
      const Words words = block_words(weight, j + c, block);
      __builtin_prefetch(weight.codes + (j + c + kColumns) * weight.codes_stride + block * kLanes * 4);
      Vec code[kPerLane];
      for (int a = 0; a < kPerLane; ++a) code[a] = decode(words, a);
      const float* scales = weight.scales + (j + c) * weight.scales_stride;
      const Vec scale = spread(scales, weight.groups, first, lane_group);
      Vec zero_point = zero();
      if (kZeros)
        zero_point =
            lane_zeros<kType>(weight.zeros + (j + c) * weight.zeros_stride, weight.groups, first, lane_group);
      for (int i = 0; i < kRows; ++i) {
        const float* at = block_x + i * x.stride;
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
  for (int i = 0; i < kRows; ++i)
    for (int c = 0; c < kColumns; ++c) sums[i * x.sums_stride + c] = reduce_add(total[i][c]);
}

// Rows [row, row + rows) of x, at most kRows.
template <WeightCodes kType, bool kZeros, int kRows, int kColumns>
void tile_of(const QuantizedRows& weight, const FewRowsX& x, int64_t row, int64_t rows, int64_t j,
             float* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      tile<kType, kZeros, kRows, kColumns>(weight, x, row, j, sums);
    else
      tile_of<kType, kZeros, kRows - 1, kColumns>(weight, x, row, rows, j, sums);
  }
}

// A few rows of the weight at a time, for all rows of x: codes come from memory once.
template <WeightCodes kType, bool kZeros>
void sums_of(const QuantizedRows& weight, const FewRowsX& x, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end;) {
    const bool whole = j + kWeightRows <= end;
    for (int64_t row = 0; row < x.m; row += kMaxRows) {
      const int64_t rows = x.m - row < kMaxRows ? x.m - row : kMaxRows;
      float* sums = x.sums + row * x.sums_stride + j;
      if (whole)
        tile_of<kType, kZeros, kMaxRows, kWeightRows>(weight, x, row, rows, j, sums);
      else
        tile_of<kType, kZeros, kMaxRows, 1>(weight, x, row, rows, j, sums);
    }
    j += whole ? kWeightRows : 1;
  }
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
