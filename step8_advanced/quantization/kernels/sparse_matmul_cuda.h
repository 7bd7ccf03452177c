#pragma once
// The CUDA rungs of sparse_matmul.h, and the fused product of a sparse weight. Arguments have been checked, and there is something to
// write.
#include "step1_layers/linear/fused_product.h"
#include "step8_advanced/quantization/kernels/sparse_matmul.h"

namespace ladder {

// An output per thread (sparse_matmul_cuda.cu).
void sparse_matmul_gather(const OpContext& ctx, const SparseMatmulArgs& args);

// The fused product (fused_product.h) for few rows (sparse_stream_cuda.cu).
struct SparseStreamArgs : FusedProduct {
  const SparseWeight* weight = nullptr;
  Tensor bias;  // [n], or undefined
};
void sparse_stream(const OpContext& ctx, const SparseStreamArgs& args);
bool sparse_stream_takes(const SparseStreamArgs& args);
void sparse_matmul_rows_stream(const OpContext& ctx, const SparseMatmulArgs& args);
bool sparse_matmul_takes_rows_stream(const SparseMatmulArgs& args);

// Many rows, on wgmma (sparse_wgmma_cuda.cu).
void sparse_matmul_wgmma(const OpContext& ctx, const SparseMatmulArgs& args);
bool sparse_matmul_takes_wgmma(const SparseMatmulArgs& args);

}  // namespace ladder
