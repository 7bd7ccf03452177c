#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"
#include "step8_advanced/quantization/kernels/rows_stream_launch.cuh"

namespace ladder {

void rows_stream_fp8(const OpContext& ctx, const QuantizedRowsStreamArgs& args) {
  records::launch_rows_stream<WeightCodes::fp8_e4m3, false, 1>(ctx, args);
}

}  // namespace ladder
