// The clear rung on a GPU, and the one for many rows of x: the weight written out as x's dtype, some rows of it at a time, then
// step 1's product.
#include <cuda_fp8.h>

#include <algorithm>
#include <optional>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/linear/matmul.h"
#include "step8_advanced/quantization/kernels/prepare_x_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder {

namespace {

// Written out at a time: columns enough for a good product, and memory that is small beside a model's.
constexpr int64_t kChunkElements = int64_t{1} << 25;
constexpr int kThreads = 256, kColumns = 8;  // of a thread

int64_t rows_of_chunk(const QuantizedWeight& weight) {
  return std::min(std::max<int64_t>(kChunkElements / weight.k / 128, 1) * 128, weight.n);
}

// What kColumns neighbours of a row are made of. Codes of integers are counted from the smallest one, so none is negative.
struct RowOfCodes {
  uint8_t code[kColumns];
  float scale[kColumns];
  uint8_t zero[kColumns];
};

__host__ __device__ constexpr uint8_t middle_code(WeightCodes type) {
  return type == WeightCodes::int4 ? 8 : type == WeightCodes::int8 ? 128 : 0;
}

// As they lie in a QuantizedWeight that has no records.
template <WeightCodes type>
struct PlainWeight {
  static constexpr bool kNibbles = is_nibble(type);

  const uint8_t *codes, *zeros;  // zeros: nullptr where there are none
  const float* scales;
  int64_t codes_stride, zeros_stride, scales_stride, k, group_size, group_offset;

  explicit PlainWeight(const QuantizedWeight& weight)
      : codes(cuda_data<uint8_t>(weight.codes)),
        zeros(cuda_data<uint8_t>(weight.zeros)),
        scales(cuda_data<float>(weight.scales)),
        codes_stride(weight.codes.stride(0)),
        zeros_stride(zeros != nullptr ? weight.zeros.stride(0) : 0),
        scales_stride(weight.scales.stride(0)),
        k(weight.k),
        group_size(weight.group_size),
        group_offset(weight.group_offset) {}

  __device__ void load(int64_t row, int64_t first, RowOfCodes& to) const {
    constexpr uint8_t kFlip = type == WeightCodes::int8 ? 128 : 0;
    const uint8_t* from = codes + row * codes_stride;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int64_t column = min(first + c, k - 1), group = (column + group_offset) / group_size;
      const uint8_t byte = from[kNibbles ? column / 2 : column];
      to.code[c] = kNibbles ? byte >> (column % 2 * 4) & 15 : byte ^ kFlip;
      to.scale[c] = scales[row * scales_stride + group];
      to.zero[c] = zeros != nullptr ? zeros[row * zeros_stride + group] ^ kFlip : middle_code(type);
    }
  }
};

// In records (weight_records.h).
template <WeightCodes type>
struct RecordedWeight {
  const uint8_t* records;
  int64_t blocks, record_bytes, scales_at, pair_bytes;
  int groups;
  float unit;
  bool zeros;

  explicit RecordedWeight(const QuantizedWeight& weight) {
    const RecordLayout layout = record_layout(weight);
    records = cuda_data<uint8_t>(weight.records.bytes);
    blocks = weight.records.bytes.dim(1);
    record_bytes = layout.bytes();
    scales_at = layout.codes_bytes();
    pair_bytes = layout.pair_bytes();
    groups = layout.groups;
    unit = weight.records.unit;
    zeros = layout.zeros;
  }

  __device__ void load(int64_t row, int64_t first, RowOfCodes& to) const {
    const uint8_t* record = records + (row / kRecordRows * blocks + first / kRecordColumns) * record_bytes;
    const int column = static_cast<int>(first % kRecordColumns),
              in_tile = static_cast<int>(row % kRecordRows);
    const int half = column / 64, q = column / 32 % 2, lane = in_tile % 8 * 4 + column / 8 % 4,
              odd = in_tile / 8;
    constexpr int kVectors = type == WeightCodes::int4 ? 1 : 2;
    // Word w of the lane's vector v.
    auto word = [&](int v, int w) {
      return reinterpret_cast<const uint32_t*>(record + ((half * kVectors + v) * kWarp + lane) * 16)[w];
    };
    const uint8_t* pair = record + scales_at +
                          (column * groups / static_cast<int>(kRecordColumns) * 8 + in_tile % 8) * pair_bytes;
    constexpr bool kHalves = type == WeightCodes::int4;
    const float row_scale = unit * (kHalves ? to_float(reinterpret_cast<const __half*>(pair)[odd])
                                            : reinterpret_cast<const float*>(pair)[odd]);
    const uint8_t row_zero = zeros ? pair[(kHalves ? 4 : 8) + odd] : middle_code(type);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int j = 2 * q + c / 4, i = c % 4 / 2 * 2 + odd, h = c % 2, nibble = 4 * (i + 4 * h);
      if constexpr (type == WeightCodes::int4)
        to.code[c] = word(0, j) >> nibble & 15;
      else if constexpr (type == WeightCodes::int8)
        to.code[c] = (word(0, j) >> nibble & 15) | (word(1, j) >> nibble & 15) << 4;
      else
        to.code[c] = word(q, 2 * (j % 2) + i / 2) >> 8 * (i % 2 + 2 * h) & 255;
      to.scale[c] = row_scale;
      to.zero[c] = row_zero;
    }
  }
};

template <WeightCodes type>
__device__ float number_of(uint8_t code, uint8_t zero) {
  if constexpr (type == WeightCodes::fp8_e4m3) {
    return to_float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
  } else if constexpr (type == WeightCodes::fp4_e2m1) {
    // Two exponent bits and one of mantissa at the top of a half's mantissa; the exponent's bias is 1 instead of 15.
    const float magnitude = to_float(__ushort_as_half(static_cast<uint16_t>((code & 7) << 9))) * 16384;
    return (code & 8) != 0 ? -magnitude : magnitude;
  } else {
    return static_cast<float>(static_cast<int>(code) - static_cast<int>(zero));
  }
}

// Rows [first_row, first_row + rows) to out [rows, k]; a thread has kColumns neighbours.
template <class T, WeightCodes type, class Weight>
__global__ void __launch_bounds__(kThreads)
    dequantize_rows(Weight weight, int64_t first_row, int64_t rows, int64_t k, T* out) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t packs = ceil_div<int64_t>(k, kColumns);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * packs) return;
  const int64_t row = i / packs, first = i % packs * kColumns;
  RowOfCodes from;
  weight.load(first_row + row, first, from);
  alignas(16) T values[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
    values[c] = from_float<T>(number_of<type>(from.code[c], from.zero[c]) * from.scale[c]);
  T* to = out + row * k + first;
  if (k % kColumns == 0) {
    constexpr int kPacks = kColumns / Pack<T>::kSize;
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack)
      store_pack(to + pack * Pack<T>::kSize, load_pack(values + pack * Pack<T>::kSize));
  } else {
    for (int c = 0; c < kColumns && first + c < k; ++c) to[c] = values[c];
  }
}

template <class Fn>
void with_codes(WeightCodes type, Fn&& fn) {
  switch (type) {
    case WeightCodes::int4:
      return fn(std::integral_constant<WeightCodes, WeightCodes::int4>{});
    case WeightCodes::int8:
      return fn(std::integral_constant<WeightCodes, WeightCodes::int8>{});
    case WeightCodes::fp8_e4m3:
      return fn(std::integral_constant<WeightCodes, WeightCodes::fp8_e4m3>{});
    case WeightCodes::fp4_e2m1:
      return fn(std::integral_constant<WeightCodes, WeightCodes::fp4_e2m1>{});
  }
}

void write_out(const OpContext& ctx, const QuantizedWeight& weight, int64_t first_row, const Tensor& out) {
  const int64_t rows = out.dim(0), threads = rows * ceil_div<int64_t>(weight.k, kColumns);
  with_cuda_type(out.dtype(), [&](auto tag) {
    using T = decltype(tag);
    with_codes(weight.type, [&](auto constant) {
      constexpr WeightCodes type = decltype(constant)::value;
      const auto launch = [&](auto source) {
        launch_kernel(ctx, dequantize_rows<T, type, decltype(source)>,
                      static_cast<unsigned>(ceil_div<int64_t>(threads, kThreads)), kThreads, 0, source,
                      first_row, rows, weight.k, cuda_data<T>(out));
      };
      if (weight.records.bytes.defined())
        launch(RecordedWeight<type>(weight));
      else
        launch(PlainWeight<type>(weight));
    });
  });
}

}  // namespace

bool quantized_matmul_takes_dequantized(const QuantizedMatmulArgs& args) {
  return !args.activations || are_rounded_on_a_gpu(*args.activations);
}

int64_t quantized_matmul_dequantized_workspace(const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  return prepared_x_workspace(args) + rows_of_chunk(weight) * weight.k * dtype_size(args.x.dtype());
}

void quantized_matmul_dequantized(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  const Tensor x = prepared_x(ctx, args, arena);
  const int64_t chunk = rows_of_chunk(weight);
  const Tensor dense = arena.take({chunk, weight.k}, args.x.dtype());
  for (int64_t first = 0; first < weight.n; first += chunk) {
    const int64_t rows = std::min(chunk, weight.n - first);
    write_out(ctx, weight, first, dense.rows(rows));
    matmul(ctx, x, dense.rows(rows), args.bias.defined() ? args.bias.narrow(0, first, rows) : args.bias,
           args.out.narrow(1, first, rows));
  }
}

}  // namespace ladder
