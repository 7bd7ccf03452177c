#include "step8_advanced/quantization/kernels/experts_stream.cuh"

namespace ladder {

void experts_stream_int4(const OpContext& ctx, const ExpertsStreamArgs& args) {
  if (args.weight->records.zeros)
    records::launch_experts_stream<WeightCodes::int4, true, 1, 2, 4>(ctx, args);
  else
    records::launch_experts_stream<WeightCodes::int4, false, 1, 2, 4>(ctx, args);
}

}  // namespace ladder
