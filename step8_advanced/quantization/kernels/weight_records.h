#pragma once
// A quantized weight [n, k] as the GPU's kernel for few rows of x streams it (rows_stream_cuda.cu): codes, scales and
// zero points together, in the order in which a warp multiplies them.
//
//             k ->   128 columns
//   16 rows  +--------+--------+--------+--
//            | record | record | record |      a record is contiguous, and so are the records of one row of tiles
//            +--------+--------+--------+--
//            |        |        |        |
//
//   record:  codes of columns 0 to 63 | codes of columns 64 to 127 | a pair of rows, 8 times for each group of columns
//
// Half the codes are `vectors` times 32 lanes times 16 bytes. Lane 4 g + t has rows g and g + 8, at columns 8 t to 8 t + 7 of
// either 32 of the half: for j of 0 to 3, of columns 32 (j / 2) + 8 t + 4 (j % 2) + {0, 1, 2, 3} it multiplies one
// mma.m16n8k16, whose operand a has four registers of two numbers:
//
//   register i, number h:   row g + 8 (i % 2), column + 2 (i / 2) + h
//
//   int4   vector 0: word j; bits 4 (i + 4 h): register i's number h are those of one mask
//   int8   as two int4 weights, of the code's (plus 128's) low half in vector 0 and its high half in vector 1
//   fp8    vector j / 2: words 2 (j % 2) + i / 2; byte (i % 2) + 2 h
//
// A pair is that of rows g and g + 8: their scales in units of the weight's (WeightRecords::unit), f16 of int4 and else f32, then, if
// the weight has zero points, as many bytes again with the two codes that stand for 0 in front. Rows and columns past the end are
// zeros.
#include <cstdint>

#include "step8_advanced/quantization/quantized_weight.h"

namespace ladder {

inline constexpr int64_t kRecordRows = 16, kRecordColumns = 128;

struct RecordLayout {
  WeightCodes type = WeightCodes::int4;
  int groups = 1;  // of a record
  bool zeros = false;

  int64_t vectors() const { return type == WeightCodes::int4 ? 1 : 2; }  // of a half: 16 bytes per lane
  int64_t codes_bytes() const { return 2 * vectors() * 32 * 16; }
  int64_t scale_bytes() const { return type == WeightCodes::int4 ? 2 : 4; }
  int64_t pair_bytes() const { return scale_bytes() * (zeros ? 4 : 2); }
  int64_t bytes() const { return codes_bytes() + groups * 8 * pair_bytes(); }
  // Of a row (0 to 15), where its scale and its zero point stand in a record.
  int64_t scale_at(int64_t group, int64_t row) const {
    return codes_bytes() + (group * 8 + row % 8) * pair_bytes() + row / 8 * scale_bytes();
  }
  int64_t zero_at(int64_t group, int64_t row) const {
    return codes_bytes() + (group * 8 + row % 8) * pair_bytes() + 2 * scale_bytes() + row / 8;
  }
};

// Of the weight's records; the weight has some.
RecordLayout record_layout(const QuantizedWeight& weight);

// Whether a weight of these groups can be in records: a record's columns begin with a group and have 1, 2 or 4 whole ones, or are
// in one; of 8-bit weights: are in one. Not fp4.
bool groups_fit_records(const QuantizedWeight& weight);
// Whether in_records() takes the weight: its scales are exact in a record too. On the CPU.
bool fits_records(const QuantizedWeight& weight);

// The weight with records in place of codes, scales and zeros; columns stay. On the CPU.
QuantizedWeight in_records(const QuantizedWeight& weight);

}  // namespace ladder
