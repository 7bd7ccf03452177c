// The rungs that the emulator does not run. They keep their rows in the tables; forced, they are refused by name.
#include "step1_layers/attention/paged_attention_cuda.h"
#include "step1_layers/core/error.h"
#include "step1_layers/linear/matmul_cuda.h"

namespace ladder {

#define LADDER_REFUSED(Args, run, takes, name, why)                              \
  void run(const OpContext&, const Args&) {                                      \
    fail("{}: {}, which the emulator does not have: it needs a GPU", name, why); \
  }                                                                              \
  bool takes(const Args&) {                                                      \
    return false;                                                                \
  }

constexpr const char* kMma = "tensor cores (mma)";

LADDER_REFUSED(MatmulArgs, matmul_cuda_tensor_core, matmul_takes_tensor_core, "matmul=tensor_core", kMma)
LADDER_REFUSED(MatmulArgs, matmul_cublaslt, matmul_takes_cublaslt, "matmul=cublaslt", "NVIDIA's library")
LADDER_REFUSED(MatmulArgs, matmul_rows_warp, matmul_takes_rows_warp, "matmul=rows_warp", "a file with mma")
LADDER_REFUSED(MatmulArgs, matmul_rows_vectorized, matmul_takes_rows_vectorized, "matmul=rows_vectorized",
               "a file with mma")
LADDER_REFUSED(MatmulArgs, matmul_rows_tensor_core, matmul_takes_rows_tensor_core, "matmul=rows_tensor_core",
               kMma)
LADDER_REFUSED(MatmulArgs, matmul_rows_stream, matmul_takes_rows_stream, "matmul=rows_stream", kMma)
LADDER_REFUSED(MatmulArgs, matmul_rows_split_k, matmul_takes_rows_split_k, "matmul=rows_split_k", kMma)
LADDER_REFUSED(PagedAttentionArgs, paged_attention_cuda_tiled, paged_attention_takes_tiled,
               "paged_attention=tiled", "a file with mma")
LADDER_REFUSED(PagedAttentionArgs, paged_attention_cuda_tensor_core, paged_attention_takes_tensor_core,
               "paged_attention=tensor_core", kMma)
LADDER_REFUSED(PagedAttentionArgs, paged_attention_cuda_wgmma, paged_attention_takes_wgmma,
               "paged_attention=wgmma", "tensor cores (wgmma)")
LADDER_REFUSED(PagedAttentionArgs, paged_attention_cuda_grouped, paged_attention_takes_grouped,
               "paged_attention=grouped", kMma)
LADDER_REFUSED(PagedAttentionArgs, paged_attention_cuda_split, paged_attention_takes_split,
               "paged_attention=split", kMma)
LADDER_REFUSED(PagedAttentionArgs, paged_attention_cuda_cluster, paged_attention_takes_cluster,
               "paged_attention=cluster", "clusters of blocks")

}  // namespace ladder
