// A weight in records written out: what a thread has of two rows comes by one load, and codes are found in it by constants.
#include <cstdint>

#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/row_codes.cuh"

namespace ladder {

namespace {

constexpr int kThreads = static_cast<int>(kRecordRows) / 2 * kWarp;

struct Records {
  const uint8_t* bytes;
  int blocks, record_bytes, scales_at, pair_bytes, groups;
  float unit;
  bool zeros;
};

// A warp's lanes store 512 bytes of a row side by side. With a lane's words as rows_stream takes them, which are parts of 8 rows to a
// store, writing out took twice as long.
constexpr int kColumnsOfWarp = kWarp * kCodesAtOnce;

// Rows from first_tile's on to out [rows, k]. A block takes a tile's 16 rows, two to a warp, and kColumnsOfWarp columns.
template <WeightCodes type, class T>
__global__ void __launch_bounds__(kThreads)
    write_out(Records from, int64_t first_tile, int pieces, int rows, int k, T* out) {
  constexpr bool kHalves = type == WeightCodes::int4;
  constexpr int kVectors = kHalves ? 1 : 2;
  allow_next_kernel();
  const int tile = static_cast<int>(blockIdx.x) / pieces, piece = static_cast<int>(blockIdx.x) % pieces;
  const int g = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = piece * kColumnsOfWarp + lane * kCodesAtOnce;
  const bool is_there = column < k;
  const int part = column % static_cast<int>(kRecordColumns) / 32, t = lane % 4, q = part % 2;
  const uint8_t* record = from.bytes + ((first_tile + tile) * from.blocks +
                                        (is_there ? column / static_cast<int>(kRecordColumns) : 0)) *
                                           from.record_bytes;
  const auto* vectors = reinterpret_cast<const uint4*>(record) + part / 2 * kVectors * kWarp + g * 4 + t;
  const uint8_t* pair = record + from.scales_at + (part * from.groups / 4 * 8 + g) * from.pair_bytes;
  // fp8: all of vector q; else words 2 q and 2 q + 1 of each.
  uint32_t words[4];
  if constexpr (type == WeightCodes::fp8_e4m3) {
    const uint4 four = vectors[q * kWarp];
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  } else {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint2 two = reinterpret_cast<const uint2*>(vectors + v * kWarp)[q];
      words[2 * v] = two.x, words[2 * v + 1] = two.y;
    }
  }
  // As recorded_code() asks where q is 0: the words of the other q lie in their places.
  const auto word = [&](int v, int w) { return type == WeightCodes::fp8_e4m3 ? words[w] : words[2 * v + w]; };
  float scales[2];
  uint8_t zeros[2];
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    scales[odd] = from.unit * (kHalves ? to_float(reinterpret_cast<const __half*>(pair)[odd])
                                       : reinterpret_cast<const float*>(pair)[odd]);
    zeros[odd] = from.zeros ? pair[(kHalves ? 4 : 8) + odd] : middle_code(type);
  }
  wait_for_previous_kernel();  // which may still read what out was
  if (!is_there) return;
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const int row = tile * static_cast<int>(kRecordRows) + g + 8 * odd;
    if (row >= rows) return;
    alignas(16) T values[kCodesAtOnce];
#pragma unroll
    for (int c = 0; c < kCodesAtOnce; ++c)
      values[c] =
          from_float<T>(number_of<type>(recorded_code<type>(word, 0, c, odd), zeros[odd]) * scales[odd]);
    T* to = out + int64_t{row} * k + column;
    if (k % kCodesAtOnce == 0) {
      constexpr int kPacks = kCodesAtOnce / Pack<T>::kSize;
#pragma unroll
      for (int pack = 0; pack < kPacks; ++pack)
        store_pack(to + pack * Pack<T>::kSize, load_pack(values + pack * Pack<T>::kSize));
    } else {
      for (int c = 0; c < kCodesAtOnce && column + c < k; ++c) to[c] = values[c];
    }
  }
}

}  // namespace

void write_out_records(const OpContext& ctx, const QuantizedWeight& weight, int64_t first_row,
                       const Tensor& out) {
  const RecordLayout layout = record_layout(weight);
  const Records from{.bytes = cuda_data<uint8_t>(weight.records.bytes),
                     .blocks = static_cast<int>(weight.records.bytes.dim(1)),
                     .record_bytes = static_cast<int>(layout.bytes()),
                     .scales_at = static_cast<int>(layout.codes_bytes()),
                     .pair_bytes = static_cast<int>(layout.pair_bytes()),
                     .groups = layout.groups,
                     .unit = weight.records.unit,
                     .zeros = layout.zeros};
  const int64_t rows = out.dim(0), pieces = ceil_div<int64_t>(weight.k, kColumnsOfWarp);
  with_cuda_type(out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto launch = [&](auto* kernel) {
      launch_kernel(ctx, kernel, static_cast<unsigned>(ceil_div(rows, kRecordRows) * pieces), kThreads, 0,
                    from, first_row / kRecordRows, pieces, rows, weight.k, cuda_data<T>(out));
    };
    switch (weight.type) {
      case WeightCodes::int4:
        return launch(write_out<WeightCodes::int4, T>);
      case WeightCodes::int8:
        return launch(write_out<WeightCodes::int8, T>);
      case WeightCodes::fp8_e4m3:
        return launch(write_out<WeightCodes::fp8_e4m3, T>);
      case WeightCodes::fp4_e2m1:
        break;  // has no records
    }
  });
}

}  // namespace ladder
