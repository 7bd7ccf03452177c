#include "step8_advanced/quantization/kernels/experts_stream.cuh"

namespace ladder {

void experts_stream_fp8(const OpContext& ctx, const ExpertsStreamArgs& args) {
  records::launch_experts_stream<WeightCodes::fp8_e4m3, false, 1>(ctx, args);
}

}  // namespace ladder
