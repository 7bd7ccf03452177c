#pragma once
// The quantized rows_stream: the fused product (fused_product.h) of a weight in records, for few rows (sm_90).
#include "step1_layers/linear/fused_product.h"
#include "step8_advanced/quantization/kernels/quantized_matmul.h"

namespace ladder {

struct QuantizedRowsStreamArgs : FusedProduct {
  const QuantizedWeight* weight = nullptr;  // [n, k], columns in the order of x's
  Tensor bias;                              // [n], or undefined
  // How x, normed, is rounded before the product, as QuantizedMatmulArgs has it. Then codes are multiplied by codes, row by row of
  // the weight as they lie (eight_bit_codes.h), else x by the weight's records.
  std::optional<QuantizationArgs> activations = {};
  float input_scale = 1;
};

// Rows of x are packed (packed.h). A normed x has kMaxNormedRows rows and kMaxNormed elements at most: every block norms it for itself,
// and has it in shared memory beside the weight. In bf16, beside int4 or int8, x (normed, where it is) is below 2^64: beyond, what comes of
// its row is not finite. One that is to be rounded has rows of kMaxNormedColumns (eight_bit_rows_cuda.h).
void quantized_rows_stream(const OpContext& ctx, const QuantizedRowsStreamArgs& args);
bool quantized_rows_stream_takes(const QuantizedRowsStreamArgs& args);

// A launch for each type of codes, in a file of its own as they compile slowly. Up to kMaxRowsStreamed rows of x.
inline constexpr int64_t kMaxRowsStreamed = 16;
inline constexpr int64_t kMaxNormedRows = 8, kMaxNormed = 8192;

void rows_stream_int4(const OpContext& ctx, const QuantizedRowsStreamArgs& args);
void rows_stream_int8(const OpContext& ctx, const QuantizedRowsStreamArgs& args);
void rows_stream_fp8(const OpContext& ctx, const QuantizedRowsStreamArgs& args);

// Of codes on both sides: up to kMaxRowsOfCodes rows of x.
inline constexpr int64_t kMaxRowsOfCodes = 32;

// Up to kMaxRowsStreamed of them stay in shared memory beside a ring of the weight's codes (rows_stream_8bit_cuda.cu), if there is room and
// columns come in multiples of 512; else they are brought with every tile (codes_wgmma_cuda.cu). One of up to 16384 columns, or two of up
// to 8192, every block norms and rounds for itself; others a kernel of its own does, which takes a microsecond and a half.
// Without a norm an E4M3 row is the same in any batch of 1 to 16, or to 8 where it has over 7168 columns.
bool rows_stream_8bit_takes(int64_t rows, int64_t columns);
bool rounded_by_blocks(int64_t rows, int64_t columns);
void rows_stream_8bit(const OpContext& ctx, const QuantizedRowsStreamArgs& args);

}  // namespace ladder
