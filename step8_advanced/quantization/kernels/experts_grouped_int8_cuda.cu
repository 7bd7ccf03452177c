#include "step8_advanced/quantization/kernels/experts_grouped.cuh"

namespace ladder {

void experts_grouped_int8(const OpContext& ctx, const ExpertsGroupedArgs& args) {
  records::launch_experts_grouped<WeightCodes::int8>(ctx, args);
}

}  // namespace ladder
