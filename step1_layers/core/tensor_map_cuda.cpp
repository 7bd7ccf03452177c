#include "step1_layers/core/tensor_map_cuda.h"

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// The driver's function, asked for at run time: no library is linked that a machine without a GPU lacks.
decltype(&cuTensorMapEncodeTiled) encode_function() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    LADDER_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                       cudaEnableDefault, &result));
    LADDER_CHECK(result == cudaDriverEntryPointSuccess, "the CUDA driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const TensorView& view) {
  cuuint64_t sizes[kMapRank], strides[kMapRank - 1];
  cuuint32_t box[kMapRank], steps[kMapRank];
  for (size_t i = 0; i < kMapRank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(view.sizes[i]);
    box[i] = static_cast<cuuint32_t>(view.box[i]);
    steps[i] = 1;
    if (i + 1 < kMapRank) strides[i] = static_cast<cuuint64_t>(view.strides[i] * dtype_size(view.dtype));
  }
  CUtensorMap map;
  const CUresult status = encode_function()(
      &map, view.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      kMapRank, const_cast<void*>(view.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      view.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  LADDER_CHECK(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed: CUresult {}",
               static_cast<int>(status));
  return map;
}

}  // namespace ladder
