#include "step8_advanced/quantization/kernels/experts_stream.cuh"

namespace ladder {

void experts_stream_int8(const OpContext& ctx, const ExpertsStreamArgs& args) {
  if (args.weight->records.zeros)
    records::launch_experts_stream<WeightCodes::int8, true, 1>(ctx, args);
  else
    records::launch_experts_stream<WeightCodes::int8, false, 1>(ctx, args);
}

}  // namespace ladder
