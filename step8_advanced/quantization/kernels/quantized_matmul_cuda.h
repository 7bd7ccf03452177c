#pragma once
// The CUDA rungs of quantized_matmul.h. Their arguments have been checked, and there is something to write.
#include "step1_layers/linear/fused_product.h"
#include "step8_advanced/quantization/kernels/eight_bit_rows_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul.h"

namespace ladder {

// The weight written out as x's dtype, then matmul (dequantized_cuda.cu).
void quantized_matmul_dequantized(const OpContext& ctx, const QuantizedMatmulArgs& args);
bool quantized_matmul_takes_dequantized(const QuantizedMatmulArgs& args);
int64_t quantized_matmul_dequantized_workspace(const QuantizedMatmulArgs& args);
// Rows of the weight from first_row on, columns in stored order, to out [rows, k], contiguous.
void write_out_weight(const OpContext& ctx, const QuantizedWeight& weight, int64_t first_row,
                      const Tensor& out);
// Of a weight in plain codes, a thread to kCodesAtOnce neighbours of a row (dequantized_cuda.cu).
void write_out_rows(const OpContext& ctx, const QuantizedWeight& weight, int64_t first_row,
                    const Tensor& out);
// Records in their own order (dequantized_records_cuda.cu); first_row in whole kRecordRows.
void write_out_records(const OpContext& ctx, const QuantizedWeight& weight, int64_t first_row,
                       const Tensor& out);

// Many rows of x, of a weight of 4 bits in records (records_wgmma_cuda.cu).
void quantized_matmul_wgmma(const OpContext& ctx, const QuantizedMatmulArgs& args);
bool quantized_matmul_takes_wgmma(const QuantizedMatmulArgs& args);
int64_t quantized_matmul_wgmma_workspace(const QuantizedMatmulArgs& args);

// 8-bit codes on both sides, multiplied as they are (cublaslt_8bit_cuda.cpp).
void quantized_matmul_cublaslt_8bit(const OpContext& ctx, const QuantizedMatmulArgs& args);
bool quantized_matmul_takes_cublaslt_8bit(const QuantizedMatmulArgs& args);
int64_t quantized_matmul_cublaslt_8bit_workspace(const QuantizedMatmulArgs& args);

// The same on kernels of our own (codes_wgmma_cuda.cu).
void quantized_matmul_wgmma_8bit(const OpContext& ctx, const QuantizedMatmulArgs& args);
bool quantized_matmul_takes_wgmma_8bit(const QuantizedMatmulArgs& args);
int64_t quantized_matmul_wgmma_8bit_workspace(const QuantizedMatmulArgs& args);
// The product alone, of rows that have been rounded: args.x says how many and of which type they were.
// Of kMaxRowsOfCodes rows or fewer what follows the product is done in its kernel.
void wgmma_8bit_of_codes(const OpContext& ctx, const QuantizedMatmulArgs& args, const RowCodes& x,
                         Epilogue epilogue = Epilogue::store);

// The same of few rows of x (rows_stream_8bit_cuda.cu).
void quantized_matmul_rows_stream_8bit(const OpContext& ctx, const QuantizedMatmulArgs& args);
bool quantized_matmul_takes_rows_stream_8bit(const QuantizedMatmulArgs& args);
int64_t quantized_matmul_rows_stream_8bit_workspace(const QuantizedMatmulArgs& args);
void rows_stream_8bit_of_codes(const OpContext& ctx, const QuantizedMatmulArgs& args, const RowCodes& x);

// Few rows of x, of a weight in records (rows_stream.cuh).
void quantized_matmul_rows_stream(const OpContext& ctx, const QuantizedMatmulArgs& args);
bool quantized_matmul_takes_rows_stream(const QuantizedMatmulArgs& args);
int64_t quantized_matmul_rows_stream_workspace(const QuantizedMatmulArgs& args);

}  // namespace ladder
