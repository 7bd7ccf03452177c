#include "step8_advanced/quantization/kernels/experts_grouped.cuh"

namespace ladder {

void experts_grouped_fp8(const OpContext& ctx, const ExpertsGroupedArgs& args) {
  records::launch_experts_grouped<WeightCodes::fp8_e4m3>(ctx, args);
}

}  // namespace ladder
