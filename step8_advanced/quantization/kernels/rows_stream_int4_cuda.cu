#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"
#include "step8_advanced/quantization/kernels/rows_stream_launch.cuh"

namespace ladder {

void rows_stream_int4(const OpContext& ctx, const QuantizedRowsStreamArgs& args) {
  if (args.weight->records.zeros)
    records::launch_rows_stream<WeightCodes::int4, true, 1, 2, 4>(ctx, args);
  else
    records::launch_rows_stream<WeightCodes::int4, false, 1, 2, 4>(ctx, args);
}

}  // namespace ladder
