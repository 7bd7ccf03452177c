#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"
#include "step8_advanced/quantization/kernels/rows_stream_launch.cuh"

namespace ladder {

void rows_stream_int8(const OpContext& ctx, const QuantizedRowsStreamArgs& args) {
  if (args.weight->records.zeros)
    records::launch_rows_stream<WeightCodes::int8, true, 1>(ctx, args);
  else
    records::launch_rows_stream<WeightCodes::int8, false, 1>(ctx, args);
}

}  // namespace ladder
