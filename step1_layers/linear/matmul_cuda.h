#pragma once
// The CUDA rungs of matmul.h. Their arguments have been checked, and there is something to write.
#include "step1_layers/linear/matmul.h"

namespace ladder {

void matmul_cuda_naive(const OpContext& ctx, const MatmulArgs& args);
void matmul_cuda_tiled(const OpContext& ctx, const MatmulArgs& args);

void matmul_cuda_tensor_core(const OpContext& ctx, const MatmulArgs& args);
bool matmul_takes_tensor_core(const MatmulArgs& args);

void matmul_cublaslt(const OpContext& ctx, const MatmulArgs& args);
bool matmul_takes_cublaslt(const MatmulArgs& args);

// For few rows (decode): the weight is read once and the time is that of reading it.
void matmul_rows_warp(const OpContext& ctx, const MatmulArgs& args);
bool matmul_takes_rows_warp(const MatmulArgs& args);
void matmul_rows_vectorized(const OpContext& ctx, const MatmulArgs& args);
bool matmul_takes_rows_vectorized(const MatmulArgs& args);
void matmul_rows_tensor_core(const OpContext& ctx, const MatmulArgs& args);
bool matmul_takes_rows_tensor_core(const MatmulArgs& args);
void matmul_rows_stream(const OpContext& ctx, const MatmulArgs& args);
bool matmul_takes_rows_stream(const MatmulArgs& args);
void matmul_rows_split_k(const OpContext& ctx, const MatmulArgs& args);
bool matmul_takes_rows_split_k(const MatmulArgs& args);

}  // namespace ladder
